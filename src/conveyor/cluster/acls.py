"""ACLs: which may be added, and which a filter means. Source: AclControlManager, ResourcePatternFilter."""

from collections.abc import Iterable, Sequence
from enum import Enum
from ipaddress import ip_address
from itertools import chain

import msgspec

from conveyor.cluster.changes import AclAdded, AclRemoved
from conveyor.cluster.image import ClusterImage
from conveyor.kernel.access.acl import ANY, CLUSTER_NAME, Acl, AclOperation, PatternType, Permission, ResourceType
from conveyor.kernel.access.caller import client_address
from conveyor.kernel.errors import ErrorKind, RequestError

MAX_ACLS = 20_000
"""Of a cluster."""
MAX_TEXT_BYTES = 1_024
"""Of each name in an ACL."""
MAX_FILTERS = 1_000
"""In a request to remove ACLs. Each is compared with all ACLs."""
MAX_FOUND = MAX_ACLS
"""By the filters of a request. An ACL that several filters mean counts for each."""


class PatternFilter(Enum):
    """The patterns that a filter with a name means: MATCHING are those of all ACLs that count for the name."""

    ANY = 1
    MATCHING = 2
    LITERAL = 3
    PREFIXED = 4


class AclFilter(msgspec.Struct, frozen=True):
    """Means the ACLs that have these values; None stands for all."""

    resource_type: ResourceType | None = None
    name: str | None = None
    pattern: PatternFilter = PatternFilter.ANY
    principal: str | None = None
    host: str | None = None
    operation: AclOperation | None = None
    permission: Permission | None = None

    def means(self, acl: Acl) -> bool:
        """Return whether the filter means an ACL."""
        return (
            self.resource_type in (None, acl.resource_type)
            and self.principal in (None, acl.principal)
            and self.host in (None, acl.host)
            and self.operation in (None, acl.operation)
            and self.permission in (None, acl.permission)
            and self._means_name(acl)
        )

    def _means_name(self, acl: Acl) -> bool:
        if self.pattern in (PatternFilter.LITERAL, PatternFilter.PREFIXED) and self.pattern.name != acl.pattern.name:
            return False
        if self.name is None or self.name == acl.name:
            return True
        if self.pattern is not PatternFilter.MATCHING:
            return False
        return self.name.startswith(acl.name) if acl.pattern is PatternType.PREFIXED else acl.name == ANY


def check_acl(acl: Acl) -> None:
    """Raise RequestError (INVALID_REQUEST) if an ACL could never count."""
    if any(len(text.encode()) > MAX_TEXT_BYTES for text in (acl.name, acl.principal, acl.host)):
        raise _invalid(f"a name in an ACL has at most {MAX_TEXT_BYTES} bytes")
    if not acl.name:
        raise _invalid("an ACL names a resource: '*' is any")
    kind, _, user = acl.principal.partition(":")
    if kind != "User" or not user:
        raise _invalid(f"the principal {acl.principal!r}: it is written as 'User:alice', any as 'User:*'")
    if acl.host != ANY and not _is_address(acl.host):
        raise _invalid(f"the host {acl.host!r}: it is an IP address, as '192.0.2.1' or '2001:db8::1', any is '*'")
    if acl.resource_type is ResourceType.CLUSTER and (acl.pattern, acl.name) != (PatternType.LITERAL, CLUSTER_NAME):
        raise _invalid(f"the only resource of the type Cluster is {CLUSTER_NAME}")


def added(image: ClusterImage, acls: Sequence[Acl]) -> list[AclAdded]:
    """Return what to change in the image. Raises RequestError if the cluster would have too many ACLs."""
    missing = [acl for acl in dict.fromkeys(acls) if acl not in image.acls]
    if len(image.acls) + len(missing) > MAX_ACLS:
        raise RequestError(
            ErrorKind.INVALID_REQUEST,
            f"the cluster would have more than {MAX_ACLS} ACLs: name resources by prefixes, or remove ACLs",
        )
    return [AclAdded(acl=acl) for acl in missing]


def meant(acls: Iterable[Acl], filters: Sequence[AclFilter]) -> list[list[Acl]]:
    """Return the ACLs that each filter means."""
    return [[acl for acl in acls if chosen.means(acl)] for chosen in filters]


def still_in(image: ClusterImage, found: Sequence[Sequence[Acl]]) -> list[list[Acl]]:
    """Return those that the image still has."""
    return [[acl for acl in acls if acl in image.acls] for acls in found]


def removed(found: Sequence[Sequence[Acl]]) -> list[AclRemoved]:
    """Return what to change in the image."""
    return [AclRemoved(acl=acl) for acl in dict.fromkeys(chain.from_iterable(found))]


def _is_address(text: str) -> bool:
    """Return whether an address is written as that of a client is."""
    try:
        address = ip_address(text)
    except ValueError:
        return False
    return str(address) == text == client_address(text)


def _invalid(reason: str) -> RequestError:
    return RequestError(ErrorKind.INVALID_REQUEST, reason)
