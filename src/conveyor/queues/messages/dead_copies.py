"""Where the copies of one subscription's dead letters lie, for the dead letters of one partition.

A page of dead letters is found by it however many there have ever been: it knows those that still count, each by the
last copy that was made, and nothing of the others. Dead-letter topics are known by their ids, as one may be deleted and
made again. A run of neighbours with neighbouring copies takes 48 bytes, and so does at most each dead letter.
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
    """One copy."""

    log: CopyLog
    offset: int


class CopiedRange(NamedTuple):
    """The originals in [start, end), whose copies lie in `log` from `copy_offset` on."""

    log: CopyLog
    start: int
    end: int
    copy_offset: int

    @property
    def copy_end(self) -> int:
        return self.copy_offset + self.end - self.start


class DeadCopies:
    """See the module's docstring. An original has one copy here at most, and a copy one original."""

    def __init__(self) -> None:
        self._copies: dict[CopyLog, OffsetMap] = {}
        self._originals: dict[CopyLog, OffsetMap] = {}

    def add(self, copied: CopiedRange) -> None:
        """Originals have got copies; earlier ones of theirs do not count any more."""
        self.remove(copied.start, copied.end)
        run = Run(copied.start, copied.end, copied.copy_offset)
        copies = self._copies.setdefault(copied.log, OffsetMap())
        originals = self._originals.setdefault(copied.log, OffsetMap())
        for lost in originals.take(run.image, run.image_end):  # The dead-letter topic's log was cut in a power cut.
            copies.take(lost.image, lost.image_end)
        copies.put(run)
        originals.put(Run(run.image, run.image_end, run.start))

    def remove(self, start: int, end: int) -> None:
        """The originals in [start, end) are dead letters no more."""
        for log, copies in list(self._copies.items()):
            for run in copies.take(start, end):
                self._originals[log].take(run.image, run.image_end)
            if not copies:
                del self._copies[log], self._originals[log]

    def ranges(self) -> Iterator[CopiedRange]:
        """All of it."""
        for log in self._copies:
            yield from self.of_originals(log, 0, LAST_OFFSET)

    def of_originals(self, log: CopyLog, start: int, end: int) -> Iterator[CopiedRange]:
        """The copies in a log of the originals in [start, end), by the originals."""
        copies = self._copies.get(log)
        for run in () if copies is None else copies.runs(start, end):
            yield CopiedRange(log, run.start, run.end, run.image)

    def from_copy(self, log: CopyLog, start: int, end: int) -> Iterator[CopiedRange]:
        """The copies in a log that lie in [start, end), by the copies."""
        originals = self._originals.get(log)
        for run in () if originals is None else originals.runs(start, end):
            yield CopiedRange(log, run.image, run.image_end, run.start)


def copied_ranges(copies: Mapping[int, Copy]) -> list[CopiedRange]:
    """The copies of some originals, neighbours joined."""
    ranges: list[CopiedRange] = []
    for offset in sorted(copies):
        log, copy_offset = copies[offset]
        last = ranges[-1] if ranges else None
        if last is not None and (last.log, last.end, last.copy_end) == (log, offset, copy_offset):
            ranges[-1] = last._replace(end=offset + 1)
        else:
            ranges.append(CopiedRange(log, offset, offset + 1, copy_offset))
    return ranges
