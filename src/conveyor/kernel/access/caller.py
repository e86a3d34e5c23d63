"""The caller of an operation: a client of a door, or a broker that acts on its own account.

A door makes one caller for each connection. It goes with every call from the door to a room, and from there in the
frame of every call to another broker. Only brokers have a principal of type Broker: no door ever makes one.
"""

from enum import StrEnum
from ipaddress import IPv6Address
from typing import Annotated

import msgspec

from conveyor.kernel.ids import NodeId

NO_CONNECTION = 0
"""In place of a connection's id, of what a broker does on its own account."""

PLAINTEXT, HTTP, PEER = "PLAINTEXT", "HTTP", "PEER"
"""Names of listeners: of a Kafka listener that is given none, of the HTTP listener, and of the one for brokers."""

AUDIT = "AUDIT"
"""In place of a listener, of what a broker writes to the audit."""

MAX_USER_BYTES = 255
"""Of the name of a user."""

_Name = Annotated[str, msgspec.Meta(min_length=1)]


class PrincipalType(StrEnum):
    """The kinds of principals. The values are sent, and `User` is Kafka's."""

    USER = "User"
    BROKER = "Broker"


class Principal(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The identity of a caller. `str` shows it as `User:alice`."""

    type: PrincipalType
    name: _Name

    def __str__(self) -> str:
        return f"{self.type}:{self.name}"


ANONYMOUS = Principal(PrincipalType.USER, "ANONYMOUS")
"""The principal of a client that has not authenticated. Source: KafkaPrincipal."""


def client_address(host: str) -> str:
    """Return the address of a client as ACLs and quotas name it. A socket for IPv6 and IPv4 alike, bound to `::`, shows
    192.0.2.1 as ::ffff:192.0.2.1.
    """
    mapped = IPv6Address(host).ipv4_mapped if host.startswith("::ffff:") else None
    return host if mapped is None else str(mapped)


def is_user_name(name: str) -> bool:
    """Return whether a user may have this name. Logs show names, so all characters are printable."""
    return name.isprintable() and 0 < len(name.encode()) <= MAX_USER_BYTES


class Caller(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """See the module's docstring. A caller with a field that this version does not know cannot be decoded: the field
    might restrict what the caller may do.

    address: of the client's host; empty for a broker. listener: the name of that which has accepted the connection.
    connection_id: rises with each connection that a broker accepts, whichever its door; NO_CONNECTION for a broker.
    """

    principal: Principal
    address: str
    listener: _Name
    connection_id: Annotated[int, msgspec.Meta(ge=0)]

    def __str__(self) -> str:
        return f"{self.principal}@{self.address}" if self.address else str(self.principal)

    @classmethod
    def broker(cls, node_id: NodeId) -> "Caller":
        """Return the caller of what a broker does on its own account."""
        return cls(Principal(PrincipalType.BROKER, str(node_id)), "", PEER, NO_CONNECTION)
