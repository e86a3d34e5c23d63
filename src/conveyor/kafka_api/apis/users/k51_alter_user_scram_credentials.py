"""AlterUserScramCredentials (key 51): new and removed credentials of users (KIP-554), in force before the response is
sent. The client sends a hash of the password, never the password.
"""

from conveyor.cluster.users import CredentialChange, Upsertion
from conveyor.kafka_api.apis import result_errors
from conveyor.kafka_api.wire.call import KafkaCall
from conveyor.kernel.errors import RequestError


def handle(call: KafkaCall) -> None:
    call.start(_alter(call))


async def _alter(call: KafkaCall) -> None:
    request = call.request
    changes = [CredentialChange(each.name, each.mechanism) for each in request.deletions]
    changes += [
        CredentialChange(each.name, each.mechanism, Upsertion(each.iterations, each.salt, each.salted_password))
        for each in request.upsertions
    ]
    errors: dict[str, RequestError | None]
    try:
        errors = dict(await call.broker.clients.credentials.alter(call.caller, changes))
    except RequestError as error:
        errors = dict.fromkeys((change.user for change in changes), error.detached())
    call.answer({"results": [{"user": user, **result_errors.fields(error)} for user, error in errors.items()]})
