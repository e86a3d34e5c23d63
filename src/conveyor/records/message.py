"""A record as queue clients see it, and the text ids of messages."""

import re
from typing import NamedTuple

from conveyor.records.message_attributes import PUBLISHER, TAG, last_header
from conveyor.records.record import Header

_MESSAGE_ID = re.compile(r"[0-9]{1,10}-[0-9]{1,19}")
_HEADER_BYTES = 256


class Message(NamedTuple):
    """One record and its place. `value=None` is a tombstone. Headers keep their order, and a name may occur again. They
    are the `true_headers` of the record.
    """

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: tuple[Header, ...] = ()

    @property
    def message_id(self) -> str:
        """The id of the message, unique in its topic."""
        return format_message_id(self.partition, self.offset)

    @property
    def weight_bytes(self) -> int:
        """The approximate memory for storing and displaying the message. A header costs far more than its bytes."""
        weight = len(self.value or b"") + len(self.key or b"")
        if self.headers:
            weight += sum(len(name) + len(value or b"") + _HEADER_BYTES for name, value in self.headers)
        return weight

    @property
    def tag(self) -> str | None:
        tag = last_header(self.headers, TAG)
        return None if tag is None else tag.decode("utf-8", "replace")

    @property
    def publisher(self) -> str | None:
        """The user who has published the message, as `User:alice`; None if it is not known."""
        publisher = last_header(self.headers, PUBLISHER)
        return None if publisher is None else publisher.decode("utf-8", "replace")


def format_message_id(partition: int, offset: int) -> str:
    return f"{partition}-{offset}"


def is_message_id(text: str) -> bool:
    """Return whether a text has the form of an id of a message in the log, `<partition>-<offset>`."""
    return _MESSAGE_ID.fullmatch(text) is not None


def parse_message_id(text: str) -> tuple[int, int]:
    """Return (partition, offset) of a text that `is_message_id` accepts. Raises ValueError for any other text."""
    if not is_message_id(text):
        raise ValueError(f"'{text}' is not a message id: use <partition>-<offset>, as in 0-42")
    partition, _, offset = text.partition("-")
    return int(partition), int(offset)
