"""The positions of one subscription's dead-letter copies, for the dead letters of one partition.

It holds only messages that are still dead letters, each with its newest copy, so a page of dead letters is found
however many there have ever been. Dead-letter topics are identified by their ids, because a topic may be deleted and
created again. A run of adjacent messages with adjacent copies takes 48 bytes, and so does a single dead letter at most.
"""

from collections.abc import Iterator, Mapping
from typing import NamedTuple
from uuid import UUID

from conveyor.queues.messages.offset_map import OffsetMap, Run

LAST_OFFSET = 1 << 62


class CopyLog(NamedTuple):
    """A partition of a dead-letter topic."""

    topic_id: UUID
    partition: int


class Copy(NamedTuple):
    log: CopyLog
    offset: int


class CopiedRange(NamedTuple):
    """The originals [start, end), whose copies are in `log` from `copy_offset` on."""

    log: CopyLog
    start: int
    end: int
    copy_offset: int

    @property
    def copy_end(self) -> int:
        return self.copy_offset + self.end - self.start


class DeadCopies:
    """Both directions of the mapping; see the module's docstring. An original has at most one copy here, and a copy
    one original.
    """

    def __init__(self) -> None:
        self._copies: dict[CopyLog, OffsetMap] = {}
        self._originals: dict[CopyLog, OffsetMap] = {}

    def add(self, copied: CopiedRange) -> None:
        """Add copies of originals. They replace the originals' earlier copies."""
        self.remove(copied.start, copied.end)
        run = Run(copied.start, copied.end, copied.copy_offset)
        copies = self._copies.setdefault(copied.log, OffsetMap())
        originals = self._originals.setdefault(copied.log, OffsetMap())
        for lost in originals.take(run.image, run.image_end):  # A power failure truncated the dead-letter topic's log.
            copies.take(lost.image, lost.image_end)
        copies.put(run)
        originals.put(Run(run.image, run.image_end, run.start))

    def remove(self, start: int, end: int) -> None:
        """Remove the originals [start, end), which are no longer dead letters."""
        for log, copies in list(self._copies.items()):
            for run in copies.take(start, end):
                self._originals[log].take(run.image, run.image_end)
            if not copies:
                del self._copies[log], self._originals[log]

    def ranges(self) -> Iterator[CopiedRange]:
        """Yield all copies."""
        for log in self._copies:
            yield from self.of_originals(log, 0, LAST_OFFSET)

    def of_originals(self, log: CopyLog, start: int, end: int) -> Iterator[CopiedRange]:
        """Yield the copies in `log` of the originals [start, end), in the originals' order."""
        copies = self._copies.get(log)
        for run in () if copies is None else copies.runs(start, end):
            yield CopiedRange(log, run.start, run.end, run.image)

    def logs(self, topic_id: UUID) -> list[CopyLog]:
        """Return the partitions of a topic that have copies, ascending."""
        return sorted(log for log in self._copies if log.topic_id == topic_id)

    def from_copy(self, topic_id: UUID, partition: int, offset: int) -> Iterator[CopiedRange]:
        """Yield the copies in a topic from a place in it on, in the copies' order."""
        for log in self.logs(topic_id):
            start = offset if log.partition == partition else 0
            for run in self._originals[log].runs(start, LAST_OFFSET) if log.partition >= partition else ():
                yield CopiedRange(log, run.image, run.image_end, run.start)


def copied_ranges(copies: Mapping[int, Copy]) -> list[CopiedRange]:
    """Return the copies as ranges, with adjacent ones merged."""
    ranges: list[CopiedRange] = []
    for offset in sorted(copies):
        log, copy_offset = copies[offset]
        last = ranges[-1] if ranges else None
        if last is not None and (last.log, last.end, last.copy_end) == (log, offset, copy_offset):
            ranges[-1] = last._replace(end=offset + 1)
        else:
            ranges.append(CopiedRange(log, offset, offset + 1, copy_offset))
    return ranges
