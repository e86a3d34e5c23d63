"""The open and the undecided transactions of one log. They limit what readers of committed records may see.

    open         has a batch in the log, and no marker
    undecided    has a marker that is not below the high watermark: another leader may not have the marker
    decided      its marker is below the high watermark: forgotten here

The first unstable offset is the lowest first offset of an open or undecided transaction. Source: KIP-98.
"""

from collections import deque
from collections.abc import Iterable
from typing import NamedTuple

from conveyor.kernel.ids import Offset


class OpenTransaction(NamedTuple):
    """A producer's transaction without a marker: its first offset, and when its first batch was appended."""

    first_offset: int
    since_ms: int


class EndedTransaction(NamedTuple):
    """A transaction that a marker has ended. last_offset: the marker's.

    last_stable_offset: the first offset of the transactions that were open then, or the offset after the marker.
    """

    first_offset: int
    last_offset: int
    last_stable_offset: int


class UndecidedTransaction(NamedTuple):
    """A transaction whose marker may still be lost."""

    first_offset: int
    marker_offset: int


class OpenTransactions:
    """See the module's docstring. At most one transaction of a producer is open."""

    __slots__ = ("last_marker_offset", "opened", "undecided")

    def __init__(
        self,
        opened: Iterable[tuple[int, OpenTransaction]] = (),
        undecided: Iterable[UndecidedTransaction] = (),
        last_marker_offset: int = -1,
    ) -> None:
        self.opened: dict[int, OpenTransaction] = dict(sorted(opened, key=_first_offset))
        """By producer id, in the order of the first offsets."""
        self.undecided: deque[UndecidedTransaction] = deque(undecided)
        """In the order of the markers."""
        self.last_marker_offset = last_marker_offset

    def open(self, producer_id: int, offset: int, now_ms: int) -> None:
        """Note a transactional batch. It begins a transaction unless one of this producer is open."""
        if producer_id not in self.opened:
            self.opened[producer_id] = OpenTransaction(offset, now_ms)

    def end(self, producer_id: int, marker_offset: int) -> EndedTransaction | None:
        """Note a marker. Returns the transaction that it ends; None if the transaction has no batch in this log."""
        self.last_marker_offset = marker_offset
        opened = self.opened.pop(producer_id, None)
        if opened is None:
            return None
        self.undecided.append(UndecidedTransaction(opened.first_offset, marker_offset))
        others = next(iter(self.opened.values()), None)
        return EndedTransaction(
            opened.first_offset, marker_offset, marker_offset + 1 if others is None else others.first_offset
        )

    def forget_decided(self, high_watermark: int) -> None:
        """Forget the transactions whose marker is below the high watermark."""
        while self.undecided and self.undecided[0].marker_offset < high_watermark:
            self.undecided.popleft()

    def forget_below(self, cleaned_offset: int) -> None:
        """Forget the open transactions that began in the compacted part of the log. They have ended: compaction has
        removed their markers, which an older snapshot does not know.
        """
        self.opened = {
            producer_id: opened for producer_id, opened in self.opened.items() if opened.first_offset >= cleaned_offset
        }

    def first_unstable_offset(self, high_watermark: int) -> Offset | None:
        """Return the lowest first offset of all open and undecided transactions; None if there are none."""
        firsts = [ended.first_offset for ended in self.undecided if ended.marker_offset >= high_watermark]
        if self.opened:
            firsts.append(next(iter(self.opened.values())).first_offset)
        return Offset(min(firsts)) if firsts else None


def _first_offset(entry: tuple[int, OpenTransaction]) -> int:
    return entry[1].first_offset
