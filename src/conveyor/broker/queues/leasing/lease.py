"""A lease, as queue clients see it."""

from typing import NamedTuple

from conveyor.records.message import Message


class Lease(NamedTuple):
    """A leased message."""

    ack_id: str
    message: Message
    delivery_count: int
    expires_ms: int
