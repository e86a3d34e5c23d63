"""The last settlements of one subscription in one partition: when messages were settled, and after how many deliveries.

It is derived from applied records, so a new leader knows them as far back as the state log reaches: a snapshot of the
state has no times. The size is limited: an entry is about a range of messages that one record has settled, and the
oldest entries are dropped.
"""

from collections.abc import Iterable, Sequence
from struct import Struct
from typing import NamedTuple

from conveyor.queues.subscription.queue_records import Attempt, Kind, Range

KEPT_ENTRIES = 256
"""The entries that are kept at least. Twice as many, 15 kB, are kept at most."""

_ENTRY = Struct(">qqqBi")
"""Start, end, time in ms, kind, failed deliveries."""
_UNKNOWN = -1
_KEPT_BYTES = KEPT_ENTRIES * _ENTRY.size


class RecentSettlement(NamedTuple):
    """The settlement of a message. kind: SETTLED, EXPIRED, DEAD or DROPPED. failed_deliveries: those before it; None of
    a dead letter that was dropped.
    """

    kind: Kind
    settled_ms: int
    failed_deliveries: int | None


class RecentSettlements:
    """See the module's docstring."""

    __slots__ = ("_entries",)

    def __init__(self) -> None:
        self._entries = bytearray()
        """The newest entry is the last one."""

    def add(
        self, ranges: Sequence[Range], kind: Kind, settled_ms: int, attempts: Iterable[tuple[int, Attempt]]
    ) -> None:
        """Add what one record has settled. attempts: of those messages that had been delivered before."""
        entries, failed = self._entries, _UNKNOWN if kind is Kind.DROPPED else 0
        for start, end in ranges[-KEPT_ENTRIES:]:
            entries += _ENTRY.pack(start, end, settled_ms, kind, failed)
        for offset, attempt in attempts:
            entries += _ENTRY.pack(offset, offset + 1, settled_ms, kind, attempt.deliveries)
        if len(entries) > 2 * _KEPT_BYTES:
            del entries[:-_KEPT_BYTES]

    def of(self, offset: int) -> RecentSettlement | None:
        """Return the last settlement of a message; None if it is not known any more."""
        for start, end, settled_ms, kind, failed in reversed(list(_ENTRY.iter_unpack(self._entries))):
            if start <= offset < end:
                return RecentSettlement(Kind(kind), settled_ms, None if failed == _UNKNOWN else failed)
        return None

    def clear(self) -> None:
        """Forget all: the messages are new again."""
        self._entries.clear()
