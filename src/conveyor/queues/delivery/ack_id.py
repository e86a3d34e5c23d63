"""The text that names one lease: whoever has it may settle that lease, and no other.

    0  tag of the subscription  4 bytes     8  offset             int64
    4  partition                uint32      16 incarnation        uint32    of the machine that gave the lease
                                            20 lease number       uint64    in that incarnation

in hexadecimal: 56 characters.
"""

from struct import Struct, error
from typing import NamedTuple
from uuid import UUID

_LAYOUT = Struct(">4sIqIQ")
_TEXT_LENGTH = 2 * _LAYOUT.size


class LeaseName(NamedTuple):
    """What an ack id says."""

    partition: int
    offset: int
    incarnation: int
    number: int


def encode_ack_id(subscription: UUID, name: LeaseName) -> str:
    return _LAYOUT.pack(subscription.bytes[:4], *name).hex()


def decode_ack_id(subscription: UUID, text: str) -> LeaseName | None:
    """The lease, or None if this is no ack id of that subscription."""
    if len(text) != _TEXT_LENGTH:
        return None
    try:
        tag, *rest = _LAYOUT.unpack(bytes.fromhex(text))
    except (ValueError, error):
        return None
    return LeaseName(*rest) if tag == subscription.bytes[:4] and rest[1] >= 0 else None
