"""DescribeUserScramCredentials (key 50): the mechanisms of users, and nothing of their secrets (KIP-554)."""

from collections import Counter
from typing import Any

from conveyor.cluster.users import described
from conveyor.kafka_api.apis import result_errors
from conveyor.kafka_api.wire.call import KafkaCall
from conveyor.kernel.errors import ErrorKind, RequestError


def handle(call: KafkaCall) -> None:
    users = described(call.broker.metadata.image)
    if call.request.users:
        counts = Counter(each.name for each in call.request.users)
        results = [_result(name, users, count) for name, count in counts.items()]
    else:
        results = [_result(name, users, 1) for name in users]
    call.answer(result_errors.fields(None) | {"results": results}, len(results))


def _result(name: str, users: Any, count: int) -> dict[str, Any]:
    error = None
    if count > 1:
        error = RequestError(ErrorKind.DUPLICATE_RESOURCE, "a user is described once in one request")
    elif name not in users:
        error = RequestError(ErrorKind.RESOURCE_NOT_FOUND, f"user {name!r} has no credentials")
    infos = () if error is not None else users[name]
    credentials = [{"mechanism": mechanism.number, "iterations": iterations} for mechanism, iterations in infos]
    return {"user": name, **result_errors.fields(error), "credential_infos": credentials}
