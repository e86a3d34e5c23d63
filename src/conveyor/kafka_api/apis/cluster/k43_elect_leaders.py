"""ElectLeaders (key 43). v1 election type (KIP-460), a top-level error · v2 flexible.

Null requests all partitions; the response then omits partitions that need no election.
"""

from collections.abc import Iterable
from itertools import groupby
from typing import Any

from conveyor.cluster.controller.elections import ElectionRequest
from conveyor.cluster.controller.partition_transition import Election
from conveyor.kafka_api.apis import result_errors
from conveyor.kafka_api.wire.call import KafkaCall
from conveyor.kernel.errors import ErrorKind, RequestError

_PREFERRED = 0
_ELECTIONS = {_PREFERRED: Election.PREFERRED, 1: Election.UNCLEAN}


def handle(call: KafkaCall) -> None:
    number = getattr(call.request, "election_type", _PREFERRED)
    election = _ELECTIONS.get(number)
    if election is None:
        unknown = RequestError(ErrorKind.INVALID_REQUEST, f"there is no election of type {number}")
        return _refuse(call, _requested(call, Election.PREFERRED), unknown)
    call.start(_elect(call, election))


async def _elect(call: KafkaCall, election: Election) -> None:
    operations = call.broker.topics.operations
    is_for_all = call.request.topic_partitions is None
    requests = operations.elections_needed(election) if is_for_all else _requested(call, election)
    try:
        outcomes = await operations.elect(call.caller, requests)
    except RequestError as error:
        return _refuse(call, requests, error)
    results = [
        (request, error)
        for request, error in zip(requests, outcomes, strict=True)
        if not (is_for_all and error is not None and error.kind is ErrorKind.ELECTION_NOT_NEEDED)
    ]
    _answer(call, results, None)


def _requested(call: KafkaCall, election: Election) -> list[ElectionRequest]:
    return [
        ElectionRequest(topic=topic.topic, partition=number, election=election)
        for topic in call.request.topic_partitions or ()
        for number in topic.partitions
    ]


def _refuse(call: KafkaCall, requests: Iterable[ElectionRequest], error: RequestError) -> None:
    _answer(call, [(request, error) for request in requests], error)


def _answer(
    call: KafkaCall, results: Iterable[tuple[ElectionRequest, RequestError | None]], error: RequestError | None
) -> None:
    topics = [
        {"topic": name, "partition_result": [_result(request, outcome) for request, outcome in outcomes]}
        for name, outcomes in groupby(results, key=lambda result: result[0].topic)
    ]
    call.answer({"error_code": result_errors.code(error), "replica_election_results": topics})


def _result(request: ElectionRequest, error: RequestError | None) -> dict[str, Any]:
    return {"partition_id": request.partition, **result_errors.fields(error)}
