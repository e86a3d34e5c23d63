"""DeleteAcls (key 31): removes the ACLs that filters mean, and lists those of each filter (KIP-140). v2 flexible · v3
user types.
"""

from collections.abc import Sequence
from typing import Any

from conveyor.cluster.acls import AclFilter
from conveyor.kafka_api.apis import result_errors
from conveyor.kafka_api.apis.users.acl_fields import entry_fields, filter_of, resource_fields
from conveyor.kafka_api.wire.call import KafkaCall
from conveyor.kernel.access.acl import Acl
from conveyor.kernel.errors import RequestError

_NO_ERROR = result_errors.fields(None)


def handle(call: KafkaCall) -> None:
    call.start(_delete(call))


async def _delete(call: KafkaCall) -> None:
    access = call.broker.clients.access
    wanted = call.request.filters
    try:
        access.require_enabled()
        filters = [_filter_or_error(fields) for fields in wanted]
        removed = iter(await access.remove(call.caller, [each for each in filters if isinstance(each, AclFilter)]))
        results = [_result(next(removed)) if isinstance(each, AclFilter) else _refused(each) for each in filters]
    except RequestError as error:
        results = [_refused(error)] * len(wanted)
    call.answer({"filter_results": results}, sum(1 + len(result["matching_acls"]) for result in results))


def _filter_or_error(fields: Any) -> AclFilter | RequestError:
    try:
        return filter_of(fields)
    except RequestError as error:
        return error.detached()


def _result(removed: Sequence[Acl]) -> dict[str, Any]:
    acls = [_NO_ERROR | resource_fields(acl) | entry_fields(acl) for acl in removed]
    return _NO_ERROR | {"matching_acls": acls}


def _refused(error: RequestError) -> dict[str, Any]:
    return result_errors.fields(error) | {"matching_acls": ()}
