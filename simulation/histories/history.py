"""The history of transactional clients: their requests, the replies that they received, and the times.

Times are seconds of one monotonic clock that all clients share. Values are unique: each is sent once. A history ends
with a full read of every partition, once everything is decided. All parts can be written as JSON lines by processes
that may be killed at any moment.
"""

from collections.abc import Sequence
from enum import Enum
from typing import NamedTuple

import msgspec


class HistoryPlace(NamedTuple):
    """A partition of a topic."""

    topic: str
    partition: int


class SourceRecord(NamedTuple):
    """A record that a transaction has read in order to process it."""

    place: HistoryPlace
    offset: int


class KnownOutcome(Enum):
    """The knowledge of a client about the end of its transaction.

    COMMITTED, ABORTED: the client received this reply. NOT_ASKED: the client has not asked for a commit, so the
    transaction is aborted sooner or later. UNKNOWN: it has asked for a commit and got no answer; all records are
    there, or none.
    """

    COMMITTED = "committed"
    ABORTED = "aborted"
    NOT_ASKED = "not asked"
    UNKNOWN = "unknown"


class SentRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A record that was sent in a transaction. offset: if it was acknowledged. source: what it results from."""

    place: HistoryPlace
    value: str
    sent_at: float
    offset: int | None = None
    source: SourceRecord | None = None


class ClientTransaction(msgspec.Struct, frozen=True, kw_only=True):
    """One transaction of one process. asked_at: when it asked for the commit. ended_at: when it received the outcome.

    settled: the records of a queue that the transaction acknowledges, or whose offset it commits.
    """

    process: str
    transactional_id: str
    sends: Sequence[SentRecord]
    outcome: KnownOutcome
    asked_at: float | None = None
    ended_at: float | None = None
    settled: Sequence[SourceRecord] = ()


class Initialization(msgspec.Struct, frozen=True, kw_only=True):
    """A process received a transactional id. asked_at: when it asked. at: when it received the reply."""

    process: str
    transactional_id: str
    asked_at: float
    at: float


class PollResult(msgspec.Struct, frozen=True, kw_only=True):
    """The committed records that one poll of a reader has returned from one partition: offset and value, in order.

    is_new_position: the reader has chosen another position before this poll.
    """

    reader: str
    place: HistoryPlace
    records: Sequence[tuple[int, str]]
    at: float
    is_new_position: bool = False


class Delivery(msgspec.Struct, frozen=True, kw_only=True):
    """A process has received a record in order to process it. asked_at: when it asked for it."""

    process: str
    source: SourceRecord
    asked_at: float


class History(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that was observed. polls: in the order of each reader. contents: the full read at the end."""

    transactions: Sequence[ClientTransaction] = ()
    initializations: Sequence[Initialization] = ()
    polls: Sequence[PollResult] = ()
    deliveries: Sequence[Delivery] = ()
    contents: dict[HistoryPlace, Sequence[tuple[int, str]]]
