"""ElectLeaders (key 43). v1 election type (KIP-460), a top-level error · v2 flexible.

Null requests all partitions; the response then omits partitions that need no election.
"""

from collections.abc import Iterable
from typing import Any

from conveyor.broker.partitions.leader_election import ElectionKind, elect_leader
from conveyor.kafka_api.apis import result_errors
from conveyor.kafka_api.wire.call import KafkaCall
from conveyor.kernel.errors import ErrorKind, RequestError


def handle(call: KafkaCall) -> None:
    number = getattr(call.request, "election_type", ElectionKind.PREFERRED.value)
    requested = call.request.topic_partitions
    if number not in {kind.value for kind in ElectionKind}:
        return _refuse(call, RequestError(ErrorKind.INVALID_REQUEST, f"there is no election of type {number}"))
    kind = ElectionKind(number)
    if requested is None:
        results = [
            _topic(call, topic.name, range(len(topic.partitions)), kind, only_needed=True)
            for topic in call.broker.metadata.image.topics.values()
        ]
    else:
        results = [_topic(call, topic.topic, topic.partitions, kind) for topic in requested]
    call.answer({"error_code": result_errors.NONE, "replica_election_results": results})


def _topic(
    call: KafkaCall, name: str, partitions: Iterable[int], kind: ElectionKind, *, only_needed: bool = False
) -> dict[str, Any]:
    image = call.broker.metadata.image
    outcomes = [(number, elect_leader(image, call.broker.partitions, name, number, kind)) for number in partitions]
    results = [
        _result(number, error)
        for number, error in outcomes
        if not (only_needed and error.kind is ErrorKind.ELECTION_NOT_NEEDED)
    ]
    return {"topic": name, "partition_result": results}


def _refuse(call: KafkaCall, error: RequestError) -> None:
    results = [
        {"topic": topic.topic, "partition_result": [_result(number, error) for number in topic.partitions]}
        for topic in call.request.topic_partitions or ()
    ]
    call.answer({"error_code": result_errors.code(error), "replica_election_results": results})


def _result(number: int, error: RequestError) -> dict[str, Any]:
    return {"partition_id": number, "error_code": result_errors.code(error), "error_message": error.message}
