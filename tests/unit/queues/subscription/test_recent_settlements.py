"""The last settlements of a subscription: found by offset, in a limited size."""

import pytest

from conveyor.queues.subscription.queue_records import Attempt, Kind
from conveyor.queues.subscription.recent_settlements import KEPT_ENTRIES, RecentSettlement, RecentSettlements


def test_settlement_is_found_by_every_offset_of_its_range() -> None:
    recent = RecentSettlements()
    recent.add([(3, 5), (9, 10)], Kind.SETTLED, 100, ())
    found = [recent.of(offset) for offset in (2, 3, 4, 5, 9)]
    settled = RecentSettlement(Kind.SETTLED, 100, 0)
    assert found == [None, settled, settled, None, settled]


def test_message_that_was_delivered_before_has_its_own_count() -> None:
    recent = RecentSettlements()
    recent.add([(0, 3)], Kind.EXPIRED, 100, [(1, Attempt(2, 10, 20, 30))])
    assert [recent.of(offset) for offset in (0, 1)] == [
        RecentSettlement(Kind.EXPIRED, 100, 0),
        RecentSettlement(Kind.EXPIRED, 100, 2),
    ]


def test_last_settlement_of_a_message_counts() -> None:
    recent = RecentSettlements()
    recent.add([(0, 3)], Kind.DEAD, 100, ())
    recent.add([(1, 2)], Kind.SETTLED, 200, ())
    recent.add([(2, 3)], Kind.DROPPED, 300, ())
    assert [recent.of(offset) for offset in (0, 1, 2)] == [
        RecentSettlement(Kind.DEAD, 100, 0),
        RecentSettlement(Kind.SETTLED, 200, 0),
        RecentSettlement(Kind.DROPPED, 300, None),
    ]


@pytest.mark.parametrize("at_once", [1, 7])
def test_oldest_settlements_are_dropped(at_once: int) -> None:
    recent, count = RecentSettlements(), 6 * KEPT_ENTRIES
    for start in range(0, count, at_once):
        ranges = [(2 * number, 2 * number + 1) for number in range(start, min(count, start + at_once))]
        recent.add(ranges, Kind.SETTLED, 1 + start, ())
    known = [number for number in range(count) if recent.of(2 * number) is not None]
    assert known == list(range(count - len(known), count))
    assert KEPT_ENTRIES <= len(known) <= 2 * KEPT_ENTRIES


def test_last_ranges_of_a_large_record_are_kept() -> None:
    recent = RecentSettlements()
    recent.add([(2 * number, 2 * number + 1) for number in range(10_000)], Kind.SETTLED, 100, ())
    known = [number for number in range(10_000) if recent.of(2 * number) is not None]
    assert known == list(range(10_000 - KEPT_ENTRIES, 10_000))


def test_nothing_is_known_after_all_was_cleared() -> None:
    recent = RecentSettlements()
    recent.add([(0, 1)], Kind.SETTLED, 100, ())
    recent.clear()
    assert recent.of(0) is None
