"""Threads look up by time while the log grows: wherever a lookup or an append is interrupted, the answer is exact."""

import sys
from collections.abc import Callable, Sequence
from functools import partial
from itertools import product
from types import FrameType
from typing import Any, NamedTuple

import pytest

from conveyor.log.log import Log
from conveyor.log.segments.lookup import find_newest, find_time
from conveyor.settings.tree import TopicSettings
from conveyor.testing import MemoryDisk
from tests.unit.log.logs import append, batch, flush, open_topic_log

pytestmark = pytest.mark.slow

TIMES = (30, 10, 40, 20, 40, 35, 50, 45)
SIZE = len(batch(b"v"))
Found = tuple[int, int] | None


class Growth(NamedTuple):
    """A log, and the batch that comes while another thread looks up.

    appended: the batches before; every second one gets an index entry. is_reopened: the first entries are in files.
    is_rolled: the batch begins a segment, and the one before it is sealed.
    """

    appended: int
    at_ms: int
    is_reopened: bool
    is_rolled: bool

    def opened(self) -> Log:
        disk = MemoryDisk()
        topic = TopicSettings(index_interval_bytes=2 * SIZE - 1)
        log = open_topic_log(disk, topic)
        for number, at_ms in enumerate(TIMES[: self.appended]):
            append(log, batch(b"v", at_ms=at_ms))
            if self.is_reopened and number == 3:
                log.close()
                log = open_topic_log(disk, topic)
        if self.is_rolled:
            log.use(TopicSettings(segment_bytes=self.appended * SIZE, index_interval_bytes=2 * SIZE - 1))
        return log

    def grow(self, log: Log) -> None:
        append(log, batch(b"v", at_ms=self.at_ms))
        flush(log)


GROWTHS = [Growth(*of) for of in product((len(TIMES), len(TIMES) - 1), (5, 45, 60), (False, True), (False, True))]


def lookups(log: Log) -> Sequence[Callable[[], Found]]:
    """Return the lookups of each time, and of the newest, below the present end."""
    limit = log.written_offset

    def first(at_ms: int) -> Found:
        record = find_time(log.segments.all, at_ms, limit)
        return None if record is None else (record.offset, record.timestamp_ms)

    def newest(start: int) -> Found:
        record = find_newest(log.segments.all, limit, start)
        return None if record is None else (record.offset, record.timestamp_ms)

    return [partial(first, at_ms) for at_ms in (0, *sorted({*TIMES}), 51)] + [
        partial(newest, start) for start in (0, 3)
    ]


def interrupt(work: Callable[[], Any], number: int, other: Callable[[], object]) -> tuple[Any, bool]:
    """Do other work before one of the lines that work executes in the room of segments. Returns the result of the work,
    and whether it had so many lines.
    """
    lines = 0

    def trace(frame: FrameType, event: str, _argument: object) -> Any:
        nonlocal lines
        if "/log/segments/" not in frame.f_code.co_filename:
            return None
        if event == "line":
            lines += 1
            if lines == number:
                sys.settrace(None)
                other()
        return trace

    tracing = sys.gettrace()
    sys.settrace(trace)
    try:
        return work(), lines >= number
    finally:
        sys.settrace(tracing)


@pytest.mark.parametrize("growth", GROWTHS, ids=str)
def test_append_during_a_lookup_changes_nothing(growth: Growth) -> None:
    for which, expected in enumerate([find() for find in lookups(growth.opened())]):
        number, goes_on = 1, True
        while goes_on:
            log = growth.opened()
            found, goes_on = interrupt(lookups(log)[which], number, partial(growth.grow, log))
            assert found == expected, (which, number)
            number += 1


@pytest.mark.parametrize("growth", GROWTHS, ids=str)
def test_lookup_during_an_append_finds_the_same(growth: Growth) -> None:
    expected = [find() for find in lookups(growth.opened())]
    number, goes_on = 1, True
    while goes_on:
        log = growth.opened()
        finds, found = lookups(log), list[Found]()

        def look_up(finds: Sequence[Callable[[], Found]] = finds, found: list[Found] = found) -> None:
            found += [find() for find in finds]

        _, goes_on = interrupt(partial(growth.grow, log), number, look_up)
        assert not goes_on or found == expected, number
        number += 1
