"""One memory limit for many holders. Above the limit, the largest holder discards its oldest entries.

Holders are kept in classes by the bit length of their sizes. The largest holder, within a factor of two, is thus found
without a comparison of all. A holder with few entries loses none to one with many.
"""

from typing import Protocol

_CLASSES_COUNT = 64


class Holder(Protocol):
    """Holds entries that count against a budget."""

    def shed(self) -> int:
        """Discard the oldest entries, at least one. Returns the size of the discarded entries."""
        ...


class MemoryBudget:
    """The budget; see the module's docstring. limit: in the unit of the sizes, which the holders choose."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._sizes: dict[Holder, int] = {}
        self._classes: list[dict[Holder, None]] = [{} for _ in range(_CLASSES_COUNT)]
        self.total = 0
        """The sum of all holders' sizes."""

    def add(self, holder: Holder, size: int) -> None:
        """Add to a holder's size. The holder may have to `shed` before this returns."""
        self._resize(holder, self._sizes.get(holder, 0) + size)
        while self.total > self._limit:
            largest = self._largest()
            self._resize(largest, self._sizes[largest] - largest.shed())

    def forget(self, holder: Holder) -> None:
        """Set a holder's size to 0."""
        self._resize(holder, 0)

    def _resize(self, holder: Holder, size: int) -> None:
        before = self._sizes.get(holder, 0)
        self.total += size - before
        if size:
            self._sizes[holder] = size
        else:
            self._sizes.pop(holder, None)
        if size.bit_length() != before.bit_length():
            self._classes[before.bit_length()].pop(holder, None)
            if size:
                self._classes[size.bit_length()][holder] = None

    def _largest(self) -> Holder:
        largest_class = next(holders for holders in reversed(self._classes) if holders)
        return next(iter(largest_class))
