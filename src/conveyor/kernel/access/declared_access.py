"""The rights that a kind of request needs, as each API and each endpoint declares them beside its version or its path.

A declaration lists needs. A request needs all of them, one after the other:

    Access   an operation on each resource that the request names, or that its answer lists
    AnyOf    the first of these that the caller has; the right on the cluster stands before that on its parts

Nothing is decided here. The declaration says where a request names its resources, so one function decides on every
request before its handler starts.

Source: Kafka's page "Authorization and ACLs", operations and resources on protocols.
"""

from collections.abc import Container

import msgspec

from conveyor.kernel.access.acl import AclOperation, ResourceType
from conveyor.kernel.errors import ErrorKind

READ, WRITE, CREATE, DELETE = AclOperation.READ, AclOperation.WRITE, AclOperation.CREATE, AclOperation.DELETE
ALTER, DESCRIBE = AclOperation.ALTER, AclOperation.DESCRIBE
ALTER_CONFIGS, DESCRIBE_CONFIGS = AclOperation.ALTER_CONFIGS, AclOperation.DESCRIBE_CONFIGS
CLUSTER_ACTION, IDEMPOTENT_WRITE = AclOperation.CLUSTER_ACTION, AclOperation.IDEMPOTENT_WRITE
TWO_PHASE_COMMIT = AclOperation.TWO_PHASE_COMMIT


Fields = tuple[str, ...]
FieldValues = tuple[tuple[str, ...], Container[int]]
"""A field of a request, by each name that it has in some version, and numbers."""


REFUSALS = {
    ResourceType.TOPIC: ErrorKind.TOPIC_AUTHORIZATION_FAILED,
    ResourceType.GROUP: ErrorKind.GROUP_AUTHORIZATION_FAILED,
    ResourceType.CLUSTER: ErrorKind.CLUSTER_AUTHORIZATION_FAILED,
    ResourceType.TRANSACTIONAL_ID: ErrorKind.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
}
"""The errors for a missing right on a resource of each type that a request can need a right on."""


class Access(msgspec.Struct, frozen=True):
    """One operation on resources of one type.

    named_by: the fields of a request that name the resources, each with the fields that lead to it, joined by dots. Of
    each item the first field counts that is there and not null; it may be an id. Without a field, the right is on the
    cluster, or on each resource that the answer lists.
    listed_by: the fields by which the answer names resources. It leaves out those without the right.
    is_any: the right is needed on any resource of the type.
    given: the right is needed only if a field of the request, or of the item, has one of these numbers; it has 0 in
    versions without it. unless: the right is not needed if this field is not null.
    """

    operation: AclOperation
    resource_type: ResourceType
    named_by: tuple[str, ...] = ()
    given: FieldValues | None = None
    unless: str | None = None
    listed_by: tuple[str, ...] = ()
    is_any: bool = False

    def __str__(self) -> str:
        return f"{self.operation.value} {self.resource_type.value}"


class AnyOf(msgspec.Struct, frozen=True):
    """Alternatives. One whose `given` or `unless` makes it needless is none. The refusal is that of the last one.

    to_create: needed only if the last one names a topic that does not exist, and that the request would create.
    """

    alternatives: tuple[Access, ...]
    to_create: bool = False

    def __str__(self) -> str:
        return " or ".join(map(str, self.alternatives))


Needs = tuple[Access | AnyOf, ...]

NO_ACCESS: Needs = ()
"""Anybody may ask."""


def topic(operation: AclOperation, *named_by: str, given: FieldValues | None = None, listed_by: Fields = ()) -> Access:
    return Access(operation, ResourceType.TOPIC, named_by, given, listed_by=listed_by)


def any_topic(operation: AclOperation, *, unless: str) -> Access:
    return Access(operation, ResourceType.TOPIC, unless=unless, is_any=True)


def group(operation: AclOperation, *named_by: str, given: FieldValues | None = None, listed_by: Fields = ()) -> Access:
    return Access(operation, ResourceType.GROUP, named_by, given, listed_by=listed_by)


def transactional_id(
    operation: AclOperation, *named_by: str, given: FieldValues | None = None, listed_by: Fields = ()
) -> Access:
    return Access(operation, ResourceType.TRANSACTIONAL_ID, named_by, given, listed_by=listed_by)


def cluster(operation: AclOperation, *, given: FieldValues | None = None, unless: str | None = None) -> Access:
    return Access(operation, ResourceType.CLUSTER, (), given, unless)


def any_of(*alternatives: Access) -> AnyOf:
    return AnyOf(alternatives)


def to_create(*named_by: str) -> AnyOf:
    """Return the need of a request that creates the topics it names if they do not exist."""
    return AnyOf((cluster(CREATE), topic(CREATE, *named_by)), to_create=True)
