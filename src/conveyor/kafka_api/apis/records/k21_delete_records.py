"""DeleteRecords (key 21): delete all records before an offset; -1 is the high watermark (KIP-107). v2 flexible.

The offset of a record that acks=1 acknowledged before its commit is valid: the request waits for the commit, within its
timeout. A partition is answered once its replicas have deleted the records; see `Retention.delete_records`. The
partitions of a request do not wait for each other's replicas. Each is named once; see `Division`.
"""

import asyncio
from datetime import timedelta
from typing import Any

from conveyor.kafka_api.apis import result_errors
from conveyor.kafka_api.wire.call import KafkaCall
from conveyor.kernel.errors import RequestError

_NO_OFFSET = -1
_MILLISECOND = timedelta(milliseconds=1)


def handle(call: KafkaCall) -> None:
    call.wait(call.start(_delete_all(call)).cancel)


async def _delete_all(call: KafkaCall) -> None:
    deadline_ms = call.broker.clock.now_ms() + call.request.timeout // _MILLISECOND
    topics = await asyncio.gather(*(_delete_in(call, topic, deadline_ms) for topic in call.request.topics))
    call.answer({"topics": topics})


async def _delete_in(call: KafkaCall, topic: Any, deadline_ms: int) -> dict[str, Any]:
    deletions = (_delete(call, topic.name, partition, deadline_ms) for partition in topic.partitions)
    return {"name": topic.name, "partitions": await asyncio.gather(*deletions)}


async def _delete(call: KafkaCall, topic: str, requested: Any, deadline_ms: int) -> dict[str, Any]:
    low_watermark, error = _NO_OFFSET, None
    left_ms = deadline_ms - call.broker.clock.now_ms()
    try:
        low_watermark = await call.broker.partitions.retention.delete_records(
            call.caller, topic, requested.partition_index, requested.offset, left_ms
        )
    except RequestError as failure:
        error = failure.detached()
    return {
        "partition_index": requested.partition_index, "low_watermark": low_watermark,
        "error_code": result_errors.code(error),
    }  # fmt: skip
