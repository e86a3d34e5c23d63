"""The positions of copies, by copy and by original, after any additions and removals."""

from random import Random
from uuid import UUID

import pytest

from conveyor.queues.messages.dead_copies import Copy, CopyLog, DeadCopies, copied_ranges

LOGS = [CopyLog(UUID(int=topic), number) for topic in (1, 2) for number in (0, 1)]
ORIGINALS, COPIES = 60, 80


def of_originals(copies: DeadCopies, log: CopyLog, start: int, end: int) -> dict[int, int]:
    return {
        offset: copied.copy_offset + offset - copied.start
        for copied in copies.of_originals(log, start, end)
        for offset in range(copied.start, copied.end)
    }


def from_copy(copies: DeadCopies, log: CopyLog, start: int) -> list[tuple[CopyLog, int, int]]:
    return [
        (copied.log, copy_offset, copied.start + copy_offset - copied.copy_offset)
        for copied in copies.from_copy(*log, start)
        for copy_offset in range(copied.copy_offset, copied.copy_end)
    ]


@pytest.mark.parametrize("seed", range(20))
def test_copies_are_found_both_ways(seed: int) -> None:
    random, copies, expected = Random(seed), DeadCopies(), dict[int, Copy]()
    for _ in range(150):
        start, log = random.randrange(ORIGINALS), random.choice(LOGS)
        end, copy_offset = start + random.randrange(1, 8), random.randrange(COPIES)
        if random.random() < 0.6:
            added = {offset: Copy(log, copy_offset + offset - start) for offset in range(start, end)}
            expected = {original: copy for original, copy in expected.items() if copy not in added.values()} | added
            for copied in copied_ranges(added):
                copies.add(copied)
        else:
            expected = {original: copy for original, copy in expected.items() if not start <= original < end}
            copies.remove(start, end)
        for copy_log in LOGS:
            copies_in_log = {offset: copy.offset for offset, copy in expected.items() if copy.log == copy_log}
            near = {offset: copy_offset for offset, copy_offset in copies_in_log.items() if start <= offset < end}
            assert of_originals(copies, copy_log, 0, 1_000) == copies_in_log
            assert of_originals(copies, copy_log, start, end) == near
            behind = sorted(
                (*copy, offset)
                for offset, copy in expected.items()
                if copy.log.topic_id == copy_log.topic_id and copy >= (copy_log, 20)
            )
            assert from_copy(copies, copy_log, 20) == behind
    copies.remove(0, 1_000)
    assert list(copies.ranges()) == []


def test_neighbours_with_neighbouring_copies_are_one_range() -> None:
    log, other = LOGS[:2]
    copied_runs = copied_ranges(
        {5: Copy(log, 8), 4: Copy(log, 7), 3: Copy(other, 6), 7: Copy(log, 10), 8: Copy(log, 12)}
    )
    assert [(copied.log, copied.start, copied.end, copied.copy_offset) for copied in copied_runs] == [
        (other, 3, 4, 6),
        (log, 4, 6, 7),
        (log, 7, 8, 10),
        (log, 8, 9, 12),
    ]


def test_a_hundred_thousand_letters_that_died_in_order_are_one_run() -> None:
    copies = DeadCopies()
    for start in range(0, 100_000, 100):
        for copied in copied_ranges({offset: Copy(LOGS[0], 7 + offset) for offset in range(start, start + 100)}):
            copies.add(copied)
    assert len(list(copies.ranges())) == 1
