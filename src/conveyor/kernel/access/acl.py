"""ACLs: who may, or may not, do what on which resources. The names and the numbers are Kafka's.

Source: KIP-11, KIP-290, AclOperation, ResourceType, AclPermissionType and PatternType of kafka-clients.
"""

from enum import Enum
from typing import Self

import msgspec

CLUSTER_NAME = "kafka-cluster"
"""The only resource of the type CLUSTER."""
ANY = "*"
"""As the name of a resource, any; as a host, any; `User:*` is any user."""
ANY_USER = "User:*"


class _Numbered(Enum):
    """An enumeration whose members have Kafka's numbers, too. The value is the name as Kafka's page writes it."""

    number: int
    __hash__ = object.__hash__  # Enum's own is written in Python, and each decision hashes two members.

    def __new__(cls, value: str, number: int) -> Self:
        member = object.__new__(cls)
        member._value_ = value
        member.number = number
        return member


class AclOperation(_Numbered):
    """An operation on a resource."""

    ALL = "All", 2
    READ = "Read", 3
    WRITE = "Write", 4
    CREATE = "Create", 5
    DELETE = "Delete", 6
    ALTER = "Alter", 7
    DESCRIBE = "Describe", 8
    CLUSTER_ACTION = "ClusterAction", 9
    DESCRIBE_CONFIGS = "DescribeConfigs", 10
    ALTER_CONFIGS = "AlterConfigs", 11
    IDEMPOTENT_WRITE = "IdempotentWrite", 12
    CREATE_TOKENS = "CreateTokens", 13
    DESCRIBE_TOKENS = "DescribeTokens", 14
    TWO_PHASE_COMMIT = "TwoPhaseCommit", 15


class ResourceType(_Numbered):
    """A kind of resource that has rights. A subscription is the group of its name.

    Nothing is a delegation token here; ACLs about them are kept, as are those about users, without effect.
    """

    TOPIC = "Topic", 2
    GROUP = "Group", 3
    CLUSTER = "Cluster", 4
    TRANSACTIONAL_ID = "TransactionalId", 5
    DELEGATION_TOKEN = "DelegationToken", 6
    USER = "User", 7


class PatternType(_Numbered):
    """The way in which an ACL names its resources. LITERAL: by the name, or `*` for all."""

    LITERAL = "Literal", 3
    PREFIXED = "Prefixed", 4


class Permission(_Numbered):
    DENY = "Deny", 2
    ALLOW = "Allow", 3


class Acl(msgspec.Struct, frozen=True, array_like=True, order=False):
    """One ACL. principal: as `User:alice`, or ANY_USER. host: the address of the client, or ANY."""

    resource_type: ResourceType
    name: str
    pattern: PatternType
    principal: str
    host: str
    operation: AclOperation
    permission: Permission

    def __str__(self) -> str:
        """Show the ACL in one line: `Allow User:alice from * to Read Topic orders-*`, a prefix with a star."""
        name = f"{self.name}*" if self.pattern is PatternType.PREFIXED else self.name
        who = f"{self.permission.value} {self.principal} from {self.host}"
        return f"{who} to {self.operation.value} {self.resource_type.value} {name}"


OPERATIONS: dict[ResourceType, tuple[AclOperation, ...]] = {
    ResourceType.TOPIC: (
        AclOperation.READ, AclOperation.WRITE, AclOperation.CREATE, AclOperation.DELETE, AclOperation.ALTER,
        AclOperation.DESCRIBE, AclOperation.DESCRIBE_CONFIGS, AclOperation.ALTER_CONFIGS,
    ),
    ResourceType.GROUP: (
        AclOperation.READ, AclOperation.DESCRIBE, AclOperation.DELETE, AclOperation.DESCRIBE_CONFIGS,
        AclOperation.ALTER_CONFIGS,
    ),
    ResourceType.CLUSTER: (
        AclOperation.CREATE, AclOperation.CLUSTER_ACTION, AclOperation.DESCRIBE_CONFIGS, AclOperation.ALTER_CONFIGS,
        AclOperation.IDEMPOTENT_WRITE, AclOperation.ALTER, AclOperation.DESCRIBE,
    ),
    ResourceType.TRANSACTIONAL_ID: (AclOperation.DESCRIBE, AclOperation.WRITE, AclOperation.TWO_PHASE_COMMIT),
    ResourceType.DELEGATION_TOKEN: (AclOperation.DESCRIBE,),
    ResourceType.USER: (AclOperation.CREATE_TOKENS, AclOperation.DESCRIBE_TOKENS),
}  # fmt: skip
"""The operations that there are on each kind of resource. Source: AclEntry.supportedOperations."""
