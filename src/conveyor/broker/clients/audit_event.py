"""One record of `__audit`: a JSON object, whose fields docs/security.md describes. The key is the principal."""

from datetime import UTC, datetime

import msgspec

from conveyor.kernel.access.acl import AclOperation, ResourceType
from conveyor.kernel.access.acl_rules import AccessDecision
from conveyor.kernel.access.caller import Caller
from conveyor.kernel.ids import NodeId

MAX_NAME_CHARACTERS = 512
"""Of the name of a resource in an event. Clients choose it, up to the size of a request."""


class AuditEvent(msgspec.Struct, kw_only=True):
    """A decision on a request of a client. time: of the first decision that `count` has."""

    time: str
    principal: str
    address: str
    listener: str
    request: str
    operation: str
    resource_type: str
    resource: str
    allowed: bool
    rule: str
    broker: int
    count: int = 1

    @property
    def key(self) -> bytes:
        return self.principal.encode()


encode_event = msgspec.json.Encoder().encode


def audit_event(
    caller: Caller,
    request: str,
    operation: AclOperation,
    resource_type: ResourceType,
    name: str,
    decision: AccessDecision,
    broker: NodeId,
    now_ms: int,
) -> AuditEvent:
    """Return the event of one decision. request: the API, or the method and the path of the endpoint."""
    return AuditEvent(
        time=shown_time(now_ms),
        principal=str(caller.principal),
        address=caller.address,
        listener=caller.listener,
        request=request,
        operation=operation.value,
        resource_type=resource_type.value,
        resource=name if len(name) <= MAX_NAME_CHARACTERS else f"{name[:MAX_NAME_CHARACTERS]}...",
        allowed=decision.is_allowed,
        rule=str(decision.rule),
        broker=broker,
    )


def shown_time(now_ms: int) -> str:
    """Return a time as ISO 8601 in UTC, with milliseconds."""
    time = datetime.fromtimestamp(now_ms / 1000, UTC)
    return time.isoformat(timespec="milliseconds").replace("+00:00", "Z")
