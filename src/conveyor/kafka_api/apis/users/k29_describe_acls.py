"""DescribeAcls (key 29): the ACLs that a filter means, by resource (KIP-140). v1 pattern types · v2 flexible · v3 user
types.
"""

from collections.abc import Iterable
from typing import Any

from conveyor.kafka_api.apis import result_errors
from conveyor.kafka_api.apis.users.acl_fields import entry_fields, filter_of, resource_fields
from conveyor.kafka_api.wire.call import KafkaCall
from conveyor.kernel.access.acl import Acl, PatternType, ResourceType
from conveyor.kernel.errors import RequestError


def handle(call: KafkaCall) -> None:
    call.wait(call.start(_describe(call)).cancel)


async def _describe(call: KafkaCall) -> None:
    access = call.broker.clients.access
    try:
        access.require_enabled()
        acls = await access.find(filter_of(call.request))
    except RequestError as error:
        return call.answer(result_errors.fields(error) | {"resources": ()})
    call.answer(result_errors.fields(None) | {"resources": _by_resource(acls)}, len(acls))


def _by_resource(acls: Iterable[Acl]) -> list[dict[str, Any]]:
    resources: dict[tuple[ResourceType, str, PatternType], dict[str, Any]] = {}
    for acl in acls:
        resource = acl.resource_type, acl.name, acl.pattern
        if resource in resources:
            resources[resource]["acls"].append(entry_fields(acl))
        else:
            resources[resource] = resource_fields(acl) | {"acls": [entry_fields(acl)]}
    return list(resources.values())
