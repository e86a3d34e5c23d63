"""The ack id, which identifies one lease. It settles this lease and no other.

    0  tag of the subscription  4 bytes     8  offset             int64
    4  partition                uint32      16 incarnation        uint64    of the machine that granted the lease
                                            24 lease number       uint64    in that incarnation

in hexadecimal: 64 characters. The upper half of the incarnation is the leader epoch in which the lease was granted.
"""

from struct import Struct, error
from typing import NamedTuple
from uuid import UUID

_LAYOUT = Struct(">4sIqQQ")
_TEXT_LENGTH = 2 * _LAYOUT.size


class LeaseId(NamedTuple):
    """The fields of an ack id, without the subscription's tag."""

    partition: int
    offset: int
    incarnation: int
    number: int


def encode_ack_id(subscription: UUID, lease_id: LeaseId) -> str:
    return _LAYOUT.pack(subscription.bytes[:4], *lease_id).hex()


def decode_ack_id(subscription: UUID, text: str) -> LeaseId | None:
    """Return the lease, or None if the text is not an ack id of this subscription."""
    if len(text) != _TEXT_LENGTH:
        return None
    try:
        tag, *rest = _LAYOUT.unpack(bytes.fromhex(text))
    except (ValueError, error):
        return None
    return LeaseId(*rest) if tag == subscription.bytes[:4] and rest[1] >= 0 else None
