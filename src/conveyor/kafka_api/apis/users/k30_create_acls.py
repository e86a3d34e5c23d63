"""CreateAcls (key 30): ACLs to add, in force before the response is sent (KIP-140). v2 flexible · v3 user types.

An ACL that exists already is no error. One that could never count is refused alone.
"""

from typing import Any

from conveyor.kafka_api.apis import result_errors
from conveyor.kafka_api.apis.users.acl_fields import acl_of
from conveyor.kafka_api.wire.call import KafkaCall
from conveyor.kernel.access.acl import Acl
from conveyor.kernel.errors import RequestError


def handle(call: KafkaCall) -> None:
    call.start(_create(call))


async def _create(call: KafkaCall) -> None:
    access = call.broker.clients.access
    creations = call.request.creations
    errors: list[RequestError | None]
    try:
        access.require_enabled()
        described = [_acl_or_error(creation) for creation in creations]
        added = iter(await access.add(call.caller, [each for each in described if isinstance(each, Acl)]))
        errors = [next(added) if isinstance(each, Acl) else each for each in described]
    except RequestError as error:
        errors = [error.detached()] * len(creations)
    call.answer({"results": [result_errors.fields(error) for error in errors]})


def _acl_or_error(creation: Any) -> Acl | RequestError:
    try:
        return acl_of(creation)
    except RequestError as error:
        return error.detached()
