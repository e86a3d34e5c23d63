"""Where copies lie: found by the copies and by the originals, whatever was added and removed."""

from random import Random
from uuid import UUID

import pytest

from conveyor.queues.messages.dead_copies import Copy, CopyLog, DeadCopies, copied_ranges

LOGS = [CopyLog(UUID(int=topic), number) for topic in (1, 2) for number in (0, 1)]
ORIGINALS, COPIES = 60, 80


def of_originals(copies: DeadCopies, log: CopyLog, start: int, end: int) -> dict[int, int]:
    return {
        offset: each.copy_offset + offset - each.start
        for each in copies.of_originals(log, start, end)
        for offset in range(each.start, each.end)
    }


def from_copy(copies: DeadCopies, log: CopyLog, start: int, end: int) -> list[tuple[int, int]]:
    return [
        (copy_offset, each.start + copy_offset - each.copy_offset)
        for each in copies.from_copy(log, start, end)
        for copy_offset in range(each.copy_offset, each.copy_end)
    ]


@pytest.mark.parametrize("seed", range(20))
def test_copies_are_found_both_ways(seed: int) -> None:
    random, copies, expected = Random(seed), DeadCopies(), dict[int, Copy]()
    for _ in range(150):
        start, log = random.randrange(ORIGINALS), random.choice(LOGS)
        end, copy_offset = start + random.randrange(1, 8), random.randrange(COPIES)
        if random.random() < 0.6:
            added = {offset: Copy(log, copy_offset + offset - start) for offset in range(start, end)}
            expected = {each: copy for each, copy in expected.items() if copy not in added.values()} | added
            for copied in copied_ranges(added):
                copies.add(copied)
        else:
            expected = {each: copy for each, copy in expected.items() if not start <= each < end}
            copies.remove(start, end)
        for each in LOGS:
            mine = {offset: copy.offset for offset, copy in expected.items() if copy.log == each}
            near = {offset: copy_offset for offset, copy_offset in mine.items() if start <= offset < end}
            assert of_originals(copies, each, 0, 1_000) == mine
            assert of_originals(copies, each, start, end) == near
            behind = sorted((copy_offset, offset) for offset, copy_offset in mine.items() if 20 <= copy_offset < 70)
            assert from_copy(copies, each, 20, 70) == behind
    copies.remove(0, 1_000)
    assert list(copies.ranges()) == []


def test_neighbours_with_neighbouring_copies_are_one_range() -> None:
    log, other = LOGS[:2]
    found = copied_ranges({5: Copy(log, 8), 4: Copy(log, 7), 3: Copy(other, 6), 7: Copy(log, 10), 8: Copy(log, 12)})
    assert [(each.log, each.start, each.end, each.copy_offset) for each in found] == [
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
