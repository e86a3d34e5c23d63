"""DeleteRecords (key 21): delete everything below an offset; -1 is the high watermark (KIP-107). v2 flexible.

An offset that acks=1 has acknowledged may be named at once: the answer waits until it is committed, within the timeout.
"""

from datetime import timedelta
from typing import Any

from conveyor.kafka_api.apis import result_errors as errors
from conveyor.kafka_api.wire.call import Call
from conveyor.kernel.errors import RequestError

_NO_OFFSET = -1
_MILLISECOND = timedelta(milliseconds=1)


def handle(call: Call) -> None:
    call.broker.tasks.start(_delete_all(call))


async def _delete_all(call: Call) -> None:
    deadline_ms = call.broker.clock.now_ms() + call.request.timeout // _MILLISECOND
    topics = [
        {
            "name": topic.name,
            "partitions": [await _delete(call, topic.name, each, deadline_ms) for each in topic.partitions],
        }
        for topic in call.request.topics
    ]
    call.answer({"topics": topics})


async def _delete(call: Call, topic: str, asked: Any, deadline_ms: int) -> dict[str, Any]:
    low_watermark, error = _NO_OFFSET, None
    left_ms = deadline_ms - call.broker.clock.now_ms()
    try:
        low_watermark = await call.broker.retention.delete_records(topic, asked.partition_index, asked.offset, left_ms)
    except RequestError as failure:
        error = failure
    return {
        "partition_index": asked.partition_index, "low_watermark": low_watermark, "error_code": errors.code(error)
    }  # fmt: skip
