"""The calls with which a broker reads messages of partitions that another broker leads."""

import msgspec

from conveyor.broker.remote.calls import Call
from conveyor.queues.subscription.policy import StartPosition
from conveyor.records.message import Message


class BrowsePartition(msgspec.Struct, frozen=True, array_like=True):
    """Read up to `limit` messages and about `max_bytes` from a position, or from an offset, on.

    is_whole: refuse if an open transaction hides messages.
    """

    topic: str
    number: int
    start: StartPosition | int
    limit: int
    max_bytes: int
    is_whole: bool = False


class ReadPartition(msgspec.Struct, frozen=True, array_like=True):
    """As BrowsePartition, from an offset on; empty at and beyond the partition's end."""

    topic: str
    number: int
    start: int
    limit: int
    max_bytes: int


class FindMessage(msgspec.Struct, frozen=True, array_like=True):
    """Read the message with an id."""

    topic: str
    number: int
    offset: int


class FindEnd(msgspec.Struct, frozen=True, array_like=True):
    """Return the high watermark of a partition; -1 if it could not be opened."""

    topic: str
    number: int


Browsed = tuple[list[Message], int]
"""Messages, and the weight in bytes of them and of what was left out."""

BROWSE: Call[BrowsePartition, Browsed] = Call("browse", BrowsePartition, Browsed, is_repeatable=True)
READ: Call[ReadPartition, list[Message]] = Call("read", ReadPartition, list[Message], is_repeatable=True)
FIND: Call[FindMessage, Message] = Call("find", FindMessage, Message, is_repeatable=True)
END: Call[FindEnd, int] = Call("end", FindEnd, int, is_repeatable=True)
