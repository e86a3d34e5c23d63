"""Deadlines: each key falls due at its earliest one, and deadlines that count no more take no memory."""

import tracemalloc

from conveyor.kernel.deadlines import Deadlines

_WEEK_MS = 604_800_000


def test_key_falls_due_at_the_earliest_deadline_alone() -> None:
    deadlines: Deadlines[str] = Deadlines()
    for deadline_ms in (30, 10, 20):
        deadlines.put("a", deadline_ms)
    assert deadlines.next_ms() == 10
    assert list(deadlines.pop_due(100)) == ["a"]


def test_deadlines_that_count_no_more_take_no_memory() -> None:
    deadlines: Deadlines[str] = Deadlines()
    deadlines.put("idle", 5)
    tracemalloc.start()
    for now_ms in range(20_000, 30_000):
        deadlines.put("a", now_ms + _WEEK_MS)
        deadlines.put("a", now_ms)
        assert "a" in deadlines.pop_due(now_ms)
    used_bytes, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert used_bytes < 500_000


def test_removal_of_unused_entries_keeps_the_deadlines() -> None:
    deadlines: Deadlines[str] = Deadlines()
    for now_ms in range(5_000):
        deadlines.put("a", now_ms + _WEEK_MS)
        deadlines.put("a", now_ms)
        assert list(deadlines.pop_due(now_ms)) == ["a"]
        deadlines.put(f"b{now_ms % 3}", _WEEK_MS - now_ms)
    assert deadlines.next_ms() == _WEEK_MS - 4_999
    assert sorted(deadlines.pop_due(2 * _WEEK_MS)) == ["b0", "b1", "b2"]
