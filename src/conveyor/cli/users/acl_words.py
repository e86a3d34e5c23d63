"""The words for the values of ACLs in commands and tables: `transactional-id`, `describe-configs`."""

from collections.abc import Iterable
from enum import Enum
from typing import TypeVar

from conveyor.cli.terminal.kafka_client import ClientError
from conveyor.kernel.access.acl import OPERATIONS, AclOperation, ResourceType

Kind = TypeVar("Kind", bound=Enum)

ANYTHING = "any"
"""Instead of a principal or an operation, in what chooses ACLs."""


def word(kind: Enum) -> str:
    return kind.name.lower().replace("_", "-")


def words(kinds: Iterable[Enum]) -> str:
    return ", ".join(map(word, kinds))


def resource_type_of(text: str) -> ResourceType:
    """Return the type of resource that a word names. Raises ClientError."""
    kind = _named(ResourceType, text)
    if kind is None:
        raise ClientError(f"there are no ACLs for '{text}': the types of resources are {words(ResourceType)}")
    return kind


def operations_of(text: str, resource_type: ResourceType | None) -> list[AclOperation]:
    """Return the operations that words name, separated by commas. Raises ClientError if the type has no such one."""
    permitted = AclOperation if resource_type is None else (*OPERATIONS[resource_type], AclOperation.ALL)
    place = "" if resource_type is None else f" on a {word(resource_type)}"
    found = []
    for part in text.split(","):
        operation = _named(permitted, part)
        if operation is None:
            raise ClientError(f"there is no operation '{part.strip()}'{place}: there are {words(permitted)}")
        found.append(operation)
    return found


def _named(kinds: Iterable[Kind], text: str) -> Kind | None:
    """Return the kind of this name, in whichever case, with or without its hyphens."""
    wanted = _plain(text)
    return next((kind for kind in kinds if _plain(kind.name) == wanted), None)


def _plain(text: str) -> str:
    return text.strip().lower().replace("-", "").replace("_", "")
