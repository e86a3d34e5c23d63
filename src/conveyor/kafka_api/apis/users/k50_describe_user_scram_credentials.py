"""DescribeUserScramCredentials (key 50): the mechanisms of users, and nothing of their secrets (KIP-554)."""

from collections import Counter
from typing import Any

from conveyor.cluster.image import ClusterImage
from conveyor.cluster.users import mechanisms_of, user_names
from conveyor.kafka_api.apis import result_errors
from conveyor.kafka_api.wire.call import KafkaCall
from conveyor.kernel.errors import ErrorKind, RequestError


def handle(call: KafkaCall) -> None:
    call.start(_describe(call))


async def _describe(call: KafkaCall) -> None:
    image = call.broker.metadata.image
    counts = Counter([user.name for user in call.request.users or ()] or user_names(image))
    results = [_result(image, name, counts[name]) async for name in call.broker.slices.each(counts)]
    call.answer(result_errors.fields(None) | {"results": results}, len(results))


def _result(image: ClusterImage, name: str, count: int) -> dict[str, Any]:
    error = None
    mechanisms = mechanisms_of(image, name)
    if count > 1:
        error = RequestError(ErrorKind.DUPLICATE_RESOURCE, "a user is described once in one request")
    elif not mechanisms:
        error = RequestError(ErrorKind.RESOURCE_NOT_FOUND, f"user {name!r} has no credentials")
    credentials = (
        []
        if error is not None
        else [{"mechanism": mechanism.number, "iterations": iterations} for mechanism, iterations in mechanisms]
    )
    return {"user": name, **result_errors.fields(error), "credential_infos": credentials}
