"""One limit for what many holders keep in memory. Above it the largest holder gives up its oldest part.

Holders are kept in classes by the number of bits of their sizes, so that the largest, within a factor of two, is found
without comparing all of them. A holder that keeps little loses nothing to one that keeps much.
"""

from typing import Protocol

_CLASSES_COUNT = 64


class Holder(Protocol):
    """Keeps something that counts against a budget."""

    def shed(self) -> int:
        """Give up the oldest part, at least something. Returns its size."""
        ...


class MemoryBudget:
    """See the module's docstring. limit: in the unit of the sizes, whatever it is."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._sizes: dict[Holder, int] = {}
        self._classes: list[dict[Holder, None]] = [{} for _ in range(_CLASSES_COUNT)]
        self.total = 0
        """The sizes of all holders."""

    def add(self, holder: Holder, size: int) -> None:
        """A holder keeps so much more; it may be asked to shed some of it before this returns."""
        self._resize(holder, self._sizes.get(holder, 0) + size)
        while self.total > self._limit:
            largest = self._largest()
            self._resize(largest, self._sizes[largest] - largest.shed())

    def remove(self, holder: Holder, size: int) -> None:
        """A holder keeps so much less."""
        self._resize(holder, self._sizes[holder] - size)

    def forget(self, holder: Holder) -> None:
        """A holder keeps nothing any more."""
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
        highest = next(each for each in reversed(self._classes) if each)
        return next(iter(highest))
