"""ListOffsets (key 2): the first offset, the next one to come, or the first at a time.

v1 one offset per partition · v2 isolation level · v4 leader epoch · v6 flexible · v7 newest timestamp (KIP-734) ·
v8 earliest local · v9 latest tiered · v10 timeout · v11 earliest pending upload.
"""

from collections import Counter
from typing import Any

from conveyor.broker.list_offsets import (
    EARLIEST,
    EARLIEST_LOCAL,
    EARLIEST_PENDING_UPLOAD,
    LATEST,
    LATEST_TIERED,
    NEWEST_TIMESTAMP,
    NO_OFFSET,
    find_offset,
)
from conveyor.kafka_api import errors
from conveyor.kafka_api.call import Call
from conveyor.kernel.errors import ErrorKind, RequestError
from conveyor.kernel.ids import NO_TIMESTAMP

_FIRST_VERSIONS = {
    LATEST: 1,
    EARLIEST: 1,
    NEWEST_TIMESTAMP: 7,
    EARLIEST_LOCAL: 8,
    LATEST_TIERED: 9,
    EARLIEST_PENDING_UPLOAD: 11,
}
"""Since when a timestamp below 0 has its meaning."""


def handle(call: Call) -> None:
    counts = Counter((topic.name, each.partition_index) for topic in call.request.topics for each in topic.partitions)
    topics = [
        {"name": topic.name, "partitions": [_find(call, topic.name, each, counts) for each in topic.partitions]}
        for topic in call.request.topics
    ]
    call.answer({"topics": topics})


def _find(call: Call, topic: str, asked: Any, counts: Counter[tuple[str, int]]) -> dict[str, Any]:
    error, offset, timestamp_ms, epoch = None, NO_OFFSET, NO_TIMESTAMP, -1
    try:
        if counts[topic, asked.partition_index] > 1:
            raise RequestError(ErrorKind.INVALID_REQUEST, "a partition is named twice in one request")
        _check_timestamp(call, asked.timestamp)
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


def _check_timestamp(call: Call, timestamp: int) -> None:
    if timestamp < 0 and call.api_version < _FIRST_VERSIONS.get(timestamp, call.api_version + 1):
        raise RequestError(
            ErrorKind.UNSUPPORTED_VERSION, f"timestamp {timestamp} has no meaning in version {call.api_version}"
        )
