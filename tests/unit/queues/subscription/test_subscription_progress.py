"""The progress of a subscription: from records, and back to records."""

from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conveyor.kernel import range_set
from conveyor.kernel.state_machine import LogRecord
from conveyor.queues.messages.dead_copies import CopiedRange, CopyLog
from conveyor.queues.subscription import queue_records
from conveyor.queues.subscription.queue_records import Attempt, Kind
from conveyor.queues.subscription.subscription_progress import Progress

MINE = UUID(int=7 << 96)
FAILED = Attempt(2, 10, 20, 30)
DEAD_LETTERING = Attempt(5, 10, 20, 20, "delivered 5 times")


def begun(offset: int = 0) -> Progress:
    progress = Progress()
    apply(progress, queue_records.started(MINE, offset))
    return progress


def apply(progress: Progress, *written: LogRecord) -> None:
    for record in written:
        assert record.value is not None
        progress.apply(Kind(record.value[0]), record.value, record.timestamp_ms)


def ranges(kind: Kind, *found: tuple[int, int]) -> LogRecord:
    return queue_records.ranges_record(MINE.bytes, kind, found)


def copied(start: int, end: int, copy_offset: int, partition: int = 0) -> CopiedRange:
    return CopiedRange(CopyLog(UUID(int=1), partition), start, end, copy_offset)


def state(progress: Progress) -> tuple[object, ...]:
    sets = (progress.settled, progress.expired, progress.dead, progress.restored)
    return progress.start_offset, *map(list, sets), progress.attempts, sorted(progress.copies.ranges())


def test_everything_below_the_start_is_settled() -> None:
    progress = begun(5)
    assert [progress.is_settled(offset) for offset in (4, 5)] == [True, False]
    assert progress.unsettled_count(10) == 5
    assert progress.unsettled_count(3) == 0


def test_start_follows_what_is_settled_without_a_gap() -> None:
    progress = begun()
    apply(progress, ranges(Kind.SETTLED, (1, 3)), ranges(Kind.EXPIRED, (4, 5)))
    assert (progress.start_offset, progress.unsettled_count(6)) == (0, 3)
    apply(progress, ranges(Kind.DEAD, (0, 1)))
    assert (progress.start_offset, progress.unsettled_count(6)) == (3, 2)
    assert list(progress.settled) == [(4, 5)]


def test_what_is_settled_beyond_the_end_does_not_count() -> None:
    progress = begun()
    apply(progress, ranges(Kind.SETTLED, (2, 3), (6, 9)))
    assert progress.unsettled_count(5) == 4
    assert progress.unsettled_count(8) == 5


def test_settling_forgets_attempts() -> None:
    progress = begun()
    apply(
        progress,
        queue_records.failed(MINE, [(1, FAILED), (2, FAILED)]),
        queue_records.dead_lettering(MINE, 3, DEAD_LETTERING),
    )
    assert progress.attempts == {1: FAILED, 2: FAILED, 3: DEAD_LETTERING}
    apply(progress, ranges(Kind.SETTLED, (1, 2)), ranges(Kind.DEAD, (3, 4)))
    assert progress.attempts == {2: FAILED}
    apply(progress, ranges(Kind.SETTLED, (0, 1_000_000)))
    assert progress.attempts == {}


def test_restored_message_is_unsettled_again_and_starts_anew() -> None:
    progress = begun()
    apply(
        progress,
        queue_records.dead_lettering(MINE, 3, DEAD_LETTERING),
        ranges(Kind.DEAD, (3, 4)),
        ranges(Kind.RESTORED, (3, 4)),
    )
    assert not progress.is_settled(3)
    assert (list(progress.dead), list(progress.restored), progress.attempts) == ([], [(3, 4)], {})
    apply(progress, ranges(Kind.SETTLED, (3, 4)))
    assert list(progress.restored) == []


def test_restored_messages_below_the_start_bring_it_back() -> None:
    progress = begun()
    apply(progress, ranges(Kind.DEAD, (2, 4)), ranges(Kind.SETTLED, (0, 10)))
    assert progress.start_offset == 10
    apply(progress, ranges(Kind.RESTORED, (3, 4)))
    apply(progress, ranges(Kind.RESTORED, (2, 3)))
    apply(progress, ranges(Kind.RESTORED, (2, 3)))
    assert [offset for offset in range(12) if not progress.is_settled(offset)] == [2, 3, 10, 11]
    assert progress.unsettled_count(12) == 4


def test_dropped_dead_letters_stay_settled() -> None:
    progress = begun()
    apply(progress, ranges(Kind.DEAD, (2, 4)), ranges(Kind.DROPPED, (2, 3)))
    assert list(progress.dead) == [(3, 4)]
    assert progress.is_settled(2)


def test_copies_are_known_as_long_as_their_originals_are_dead_letters() -> None:
    progress = begun()
    apply(progress, *queue_records.copied_records(MINE, [copied(0, 10, 100), copied(20, 30, 200)]))
    assert list(progress.dead) == [(0, 10), (20, 30)]
    apply(progress, ranges(Kind.RESTORED, (0, 3)), ranges(Kind.DROPPED, (5, 6)), queue_records.started(MINE, 25))
    assert list(progress.copies.ranges()) == [copied(3, 5, 103), copied(6, 10, 106), copied(20, 25, 200)]
    apply(progress, *queue_records.copied_records(MINE, [copied(4, 5, 300)]))
    assert list(progress.copies.ranges()) == [copied(3, 4, 103), copied(4, 5, 300), *list(progress.copies.ranges())[2:]]
    apply(progress, ranges(Kind.DEAD, (6, 30)))
    assert list(progress.copies.ranges()) == [copied(3, 4, 103), copied(4, 5, 300)]
    progress.cut(4)
    assert list(progress.copies.ranges()) == [copied(3, 4, 103)]


def test_starting_again_makes_what_is_above_new() -> None:
    progress = begun()
    apply(
        progress,
        ranges(Kind.DEAD, (1, 2), (6, 7)),
        ranges(Kind.SETTLED, (8, 9)),
        queue_records.failed(MINE, [(7, FAILED)]),
    )
    apply(progress, queue_records.started(MINE, 5))
    assert state(progress) == (5, [], [], [(1, 2)], [], {}, [])


def test_dead_letters_outlive_their_originals() -> None:
    progress = begun()
    apply(progress, ranges(Kind.DEAD, (1, 2)), ranges(Kind.EXPIRED, (2, 3)))
    progress.forget_below(10)
    assert (list(progress.dead), list(progress.expired)) == ([(1, 2)], [])


def test_records_make_the_same_state() -> None:
    progress = begun(2)
    apply(
        progress,
        ranges(Kind.DEAD, (3, 5), (7, 8)),
        ranges(Kind.EXPIRED, (9, 10)),
        ranges(Kind.SETTLED, (11, 20)),
        ranges(Kind.RESTORED, (4, 5)),
        queue_records.failed(MINE, [(21, FAILED)]),
        queue_records.dead_lettering(MINE, 22, DEAD_LETTERING),
        *queue_records.copied_records(MINE, [copied(30, 40, 7), copied(50, 51, 3, partition=4)]),
    )
    again = Progress()
    apply(again, *progress.records(MINE))
    assert state(again) == state(progress)


RANGES = st.lists(st.tuples(st.integers(0, 40), st.integers(1, 4), st.integers(0, 60)), min_size=1, max_size=8)
KINDS = st.sampled_from([Kind.SETTLED, Kind.EXPIRED, Kind.DEAD, Kind.COPIED, Kind.RESTORED, Kind.DROPPED])


@pytest.mark.slow
@given(st.lists(st.tuples(KINDS, RANGES), max_size=8), st.sampled_from([0, 64]))
def test_record_of_many_ranges_has_the_effect_of_a_record_for_each(
    records: list[tuple[Kind, list[tuple[int, int, int]]]], few: int
) -> None:
    at_once, one_by_one = begun(), begun()
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(range_set, "_FEW", few)
        for kind, entries in records:
            if kind is Kind.COPIED:
                copies = [copied(start, start + length, copy) for start, length, copy in entries]
                apply(at_once, *queue_records.copied_records(MINE, copies))
                apply(one_by_one, *(record for copy in copies for record in queue_records.copied_records(MINE, [copy])))
            else:
                found = [(start, start + length) for start, length, _ in entries]
                apply(at_once, ranges(kind, *found))
                apply(one_by_one, *(ranges(kind, bounds) for bounds in found))
            assert state(at_once) == state(one_by_one)
