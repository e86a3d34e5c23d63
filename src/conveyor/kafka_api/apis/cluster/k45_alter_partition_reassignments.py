"""AlterPartitionReassignments (key 45, KIP-455): other replicas for partitions; null cancels a reassignment.

v1 whether the number of replicas may change (KIP-860). The broker answers once the reassignments are stored;
ListPartitionReassignments shows their progress.
"""

from collections.abc import Sequence
from itertools import groupby
from typing import Any

from conveyor.cluster.controller.reassignments import Reassignment
from conveyor.kafka_api.apis import result_errors
from conveyor.kafka_api.wire.call import KafkaCall
from conveyor.kernel.errors import RequestError
from conveyor.kernel.ids import NodeId


def handle(call: KafkaCall) -> None:
    call.start(_reassign(call))


async def _reassign(call: KafkaCall) -> None:
    requests = _requested(call)
    try:
        outcomes = await call.broker.topics.operations.reassign(call.caller, requests)
    except RequestError as error:
        return _answer(call, [], error)
    results = zip(requests, outcomes, strict=True)
    topics = [
        {"name": name, "partitions": [_result(request, outcome) for request, outcome in of_topic]}
        for name, of_topic in groupby(results, key=lambda result: result[0].topic)
    ]
    _answer(call, topics, None)


def _requested(call: KafkaCall) -> list[Reassignment]:
    keeps_factor = not getattr(call.request, "allow_replication_factor_change", True)
    return [
        Reassignment(
            topic=topic.name,
            partition=partition.partition_index,
            target=None if partition.replicas is None else tuple(map(NodeId, partition.replicas)),
            keeps_factor=keeps_factor,
        )
        for topic in call.request.topics
        for partition in topic.partitions
    ]


def _answer(call: KafkaCall, topics: Sequence[dict[str, Any]], error: RequestError | None) -> None:
    may_change_factor = getattr(call.request, "allow_replication_factor_change", True)
    call.answer(
        result_errors.fields(error) | {"responses": topics, "allow_replication_factor_change": may_change_factor}
    )


def _result(request: Reassignment, error: RequestError | None) -> dict[str, Any]:
    return {"partition_index": request.partition, **result_errors.fields(error)}
