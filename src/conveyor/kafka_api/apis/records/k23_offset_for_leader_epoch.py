"""OffsetForLeaderEpoch (key 23): the end of a leader epoch (KIP-101, KIP-320). v2 current epoch · v4 flexible."""

from typing import Any

from conveyor.broker.fetch.list_offsets import find_epoch_end
from conveyor.kafka_api.apis import result_errors
from conveyor.kafka_api.wire.call import KafkaCall
from conveyor.kernel.errors import RequestError
from conveyor.log.leader_epochs import NO_EPOCH, NO_OFFSET


def handle(call: KafkaCall) -> None:
    topics = [
        {"topic": topic.topic, "partitions": [_find(call, topic.topic, partition) for partition in topic.partitions]}
        for topic in call.request.topics
    ]
    call.answer({"topics": topics})


def _find(call: KafkaCall, topic: str, requested: Any) -> dict[str, Any]:
    epoch, end_offset, error = NO_EPOCH, NO_OFFSET, None
    current = getattr(requested, "current_leader_epoch", NO_EPOCH)
    try:
        epoch, end_offset = find_epoch_end(
            call.broker.partitions.table, topic, requested.partition, requested.leader_epoch, current
        )
    except RequestError as failure:
        error = failure.detached()
    return {
        "partition": requested.partition, "error_code": result_errors.code(error), "leader_epoch": epoch,
        "end_offset": end_offset,
    }  # fmt: skip
