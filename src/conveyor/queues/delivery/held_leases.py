"""The leases of one subscription in one partition, by offset. Messages that were acquired together share a lease.

A message that an open transaction has acknowledged keeps its lease, which then does not end, in `pending`.
"""

from heapq import heapify, heappop, heappush, heapreplace
from operator import attrgetter

import msgspec

from conveyor.kernel.access.caller import Caller

_MAX_STALE_OFFSETS = 1_000


class Lease(msgspec.Struct, frozen=True, gc=False):
    """A lease of one message or of several. delivery_count: 1 for the first delivery. priority, group: the place to
    which the messages return. published_ms: the timestamp of the messages; 0 while they have not been read. caller,
    client_id: who holds it, as long as this broker knows the lease: nothing of a lease is stored. first_delivered_ms:
    when the messages were first leased.
    """

    number: int
    ends_ms: int
    delivery_count: int
    priority: int
    group: str
    published_ms: int = 0
    caller: Caller | None = None
    client_id: str = ""
    first_delivered_ms: int = 0


published_ms_of = attrgetter("published_ms")


class HeldLeases(dict[int, Lease]):
    """See the module's docstring. Removing an offset ends its lease."""

    def __init__(self) -> None:
        super().__init__()
        self.pending: dict[int, Lease] = {}
        self.work_count = 0
        """The number of messages that `pop_ended` has looked at."""
        self._ends: list[tuple[int, int, int]] = []
        """(end in ms, start, end) of granted ranges. Some messages of a range may have another lease now, or none."""
        self._offsets_count = 0
        """The sum of the ranges' lengths. It has a limit, so that `next_end_ms` drops few of them at once."""

    def grant(self, start: int, end: int, lease: Lease) -> None:
        """Grant a lease of [start, end), in place of earlier ones."""
        self.update(dict.fromkeys(range(start, end), lease))
        heappush(self._ends, (lease.ends_ms, start, end))
        self._offsets_count += end - start
        if self._offsets_count > 2 * len(self) + _MAX_STALE_OFFSETS:
            self._index_ends()

    def pop_ended(self, now_ms: int, limit: int) -> list[tuple[int, Lease]]:
        """Remove and return leases that have ended. limit: the most messages to look at."""
        ended: list[tuple[int, Lease]] = []
        while limit > 0:
            end_ms = self.next_end_ms()
            if end_ms is None or end_ms > now_ms:
                break
            _, start, end = heappop(self._ends)
            rest = min(end, start + limit)
            if rest < end:
                heappush(self._ends, (end_ms, rest, end))
            self._offsets_count -= rest - start
            self.work_count += rest - start
            limit -= rest - start
            leases = [(offset, self.get(offset)) for offset in range(start, rest)]
            found = [(offset, lease) for offset, lease in leases if lease is not None and lease.ends_ms == end_ms]
            for offset, _ in found:  # Before the next range: a message that was granted this end twice is in both.
                del self[offset]
            ended += found
        return ended

    def next_end_ms(self) -> int | None:
        """Return when the first lease ends. Drops the ends of leases that were extended or settled."""
        ends = self._ends
        while ends:
            end_ms, start, end = ends[0]
            first = start
            while first < end and ((lease := self.get(first)) is None or lease.ends_ms != end_ms):
                first += 1
            if first == start:
                return end_ms
            self._offsets_count -= first - start
            if first < end:
                heapreplace(ends, (end_ms, first, end))
            else:
                heappop(ends)
        return None

    def clock_set(self, by_ms: int) -> None:
        """Shift the ends of all leases by `by_ms`, because the wall clock was set."""
        for offset, lease in self.items():
            self[offset] = msgspec.structs.replace(lease, ends_ms=lease.ends_ms + by_ms)
        self._index_ends()

    def _index_ends(self) -> None:
        ends: list[tuple[int, int, int]] = []
        start = next_offset = end_ms = -1
        for offset, lease in self.items():
            if offset != next_offset or lease.ends_ms != end_ms:
                ends.append((end_ms, start, next_offset))
                start, end_ms = offset, lease.ends_ms
            next_offset = offset + 1
        ends.append((end_ms, start, next_offset))
        self._ends, self._offsets_count = ends[1:], len(self)
        heapify(self._ends)
