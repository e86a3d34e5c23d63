"""ACLs and their filters, as the fields of requests and responses have them, by Kafka's numbers."""

from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

from conveyor.cluster.acls import AclFilter, PatternFilter
from conveyor.kernel.access.acl import Acl, AclOperation, PatternType, Permission, ResourceType
from conveyor.kernel.errors import ErrorKind, RequestError

_ANY = 1
"""In a filter. 0 is a value that the client does not know itself."""

_Kind = TypeVar("_Kind", ResourceType, PatternType, AclOperation, Permission)
_Value = TypeVar("_Value")


def _by_number(kinds: Iterable[_Kind]) -> dict[int, _Kind]:
    return {kind.number: kind for kind in kinds}


_RESOURCE_TYPES = _by_number(ResourceType)
_PATTERNS = _by_number(PatternType)
_OPERATIONS = _by_number(AclOperation)
_PERMISSIONS = _by_number(Permission)
_PATTERN_FILTERS = {chosen.value: chosen for chosen in PatternFilter}


def acl_of(creation: Any) -> Acl:
    """Return the ACL that a request describes. Raises RequestError."""
    return Acl(
        resource_type=_known(_RESOURCE_TYPES, creation.resource_type, "type of resource"),
        name=creation.resource_name,
        pattern=_known(_PATTERNS, creation.resource_pattern_type, "type of pattern"),
        principal=creation.principal,
        host=creation.host,
        operation=_known(_OPERATIONS, creation.operation, "operation"),
        permission=_known(_PERMISSIONS, creation.permission_type, "type of permission"),
    )


def filter_of(fields: Any) -> AclFilter:
    """Return the filter that a request describes. Raises RequestError."""
    return AclFilter(
        resource_type=_known_or_any(_RESOURCE_TYPES, fields.resource_type_filter, "type of resource"),
        name=fields.resource_name_filter,
        pattern=_known(_PATTERN_FILTERS, fields.pattern_type_filter, "type of pattern"),
        principal=fields.principal_filter,
        host=fields.host_filter,
        operation=_known_or_any(_OPERATIONS, fields.operation, "operation"),
        permission=_known_or_any(_PERMISSIONS, fields.permission_type, "type of permission"),
    )


def resource_fields(acl: Acl) -> dict[str, Any]:
    """Return the fields that tell which resources an ACL names."""
    return {
        "resource_type": acl.resource_type.number,
        "resource_name": acl.name,
        "pattern_type": acl.pattern.number,
    }


def entry_fields(acl: Acl) -> dict[str, Any]:
    """Return the fields that tell who may, or may not, do something."""
    return {
        "principal": acl.principal,
        "host": acl.host,
        "operation": acl.operation.number,
        "permission_type": acl.permission.number,
    }


def _known(values: Mapping[int, _Value], number: int, what: str) -> _Value:
    value = values.get(number)
    if value is None:
        raise RequestError(ErrorKind.INVALID_REQUEST, f"an ACL cannot have the {what} {number}")
    return value


def _known_or_any(values: Mapping[int, _Value], number: int, what: str) -> _Value | None:
    return None if number == _ANY else _known(values, number, what)
