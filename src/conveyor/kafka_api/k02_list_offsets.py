"""ListOffsets (key 2): the first offset, the next one to come, or the first at a time.

v1 one offset per partition · v2 isolation level · v4 leader epoch · v6 flexible · v7 newest timestamp (KIP-734) ·
v8 earliest local · v9 latest tiered · v10 timeout · v11 earliest pending upload. Nothing is tiered here: the last two
are answered with UNSUPPORTED_VERSION.
"""

from typing import Any

from conveyor.broker.list_offsets import NO_OFFSET, find_offset
from conveyor.kafka_api import errors
from conveyor.kafka_api.call import Call
from conveyor.kernel.errors import RequestError
from conveyor.kernel.ids import NO_TIMESTAMP


def handle(call: Call) -> None:
    topics = [
        {"name": topic.name, "partitions": [_find(call, topic.name, each) for each in topic.partitions]}
        for topic in call.request.topics
    ]
    call.answer({"topics": topics})


def _find(call: Call, topic: str, asked: Any) -> dict[str, Any]:
    error, offset, timestamp_ms, epoch = None, NO_OFFSET, NO_TIMESTAMP, -1
    try:
        offset, timestamp_ms, epoch = find_offset(
            call.broker.partitions,
            topic,
            asked.partition_index,
            asked.timestamp,
            getattr(asked, "current_leader_epoch", -1),
        )
    except RequestError as failure:
        error = failure
    return {
        "partition_index": asked.partition_index,
        "error_code": errors.code(error),
        "timestamp": timestamp_ms,
        "offset": offset,
        "leader_epoch": epoch,
    }
