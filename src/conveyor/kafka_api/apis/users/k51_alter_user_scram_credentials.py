"""AlterUserScramCredentials (key 51): new and removed credentials of users (KIP-554), in force before the response is
sent. The client sends a hash of the password, never the password.
"""

from typing import Any

from conveyor.cluster.users import CredentialChange, Upsertion
from conveyor.kafka_api.apis import result_errors
from conveyor.kafka_api.wire.call import KafkaCall
from conveyor.kernel.errors import RequestError


def handle(call: KafkaCall) -> None:
    call.start(_alter(call))


async def _alter(call: KafkaCall) -> None:
    slices = call.broker.slices
    changes = [_change(item) async for item in slices.each((*call.request.deletions, *call.request.upsertions))]
    errors: dict[str, RequestError | None]
    try:
        errors = dict(await call.broker.clients.credentials.alter(call.caller, changes))
    except RequestError as error:
        errors = dict.fromkeys((change.user for change in changes), error.detached())
    results = [{"user": user, **result_errors.fields(error)} async for user, error in slices.each(errors.items())]
    call.answer({"results": results}, len(results))


def _change(item: Any) -> CredentialChange:
    """Return the change that an upsertion or a deletion, which has no salt, asks for."""
    if not hasattr(item, "salt"):
        return CredentialChange(item.name, item.mechanism)
    return CredentialChange(item.name, item.mechanism, Upsertion(item.iterations, item.salt, item.salted_password))
