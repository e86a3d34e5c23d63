"""DeleteRecords (key 21): let go of everything below an offset; -1 is the high watermark (KIP-107). v2 flexible."""

from typing import Any

from conveyor.kafka_api import errors
from conveyor.kafka_api.call import Call
from conveyor.kernel.errors import RequestError

_NO_OFFSET = -1


def handle(call: Call) -> None:
    call.broker.tasks.start(_delete_all(call))


async def _delete_all(call: Call) -> None:
    topics = [
        {"name": topic.name, "partitions": [await _delete(call, topic.name, each) for each in topic.partitions]}
        for topic in call.request.topics
    ]
    call.answer({"topics": topics})


async def _delete(call: Call, topic: str, asked: Any) -> dict[str, Any]:
    low_watermark, error = _NO_OFFSET, None
    try:
        low_watermark = await call.broker.retention.delete_records(topic, asked.partition_index, asked.offset)
    except RequestError as failure:
        error = failure
    return {
        "partition_index": asked.partition_index, "low_watermark": low_watermark, "error_code": errors.code(error)
    }  # fmt: skip
