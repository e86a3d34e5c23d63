"""Messages that were acquired together share a lease until one of them is settled or extended."""

from random import Random

import pytest
from msgspec.structs import replace

from conveyor.queues.delivery import held_leases
from conveyor.queues.delivery.held_leases import HeldLeases, Lease

LEASE = Lease(1, 1_000, 1, 4, "")


def held(start: int = 0, end: int = 5) -> HeldLeases:
    leases = HeldLeases()
    leases.grant(start, end, LEASE)
    return leases


def test_all_messages_of_a_range_end_together() -> None:
    leases = held()
    assert (leases.next_end_ms(), leases.pop_ended(999, 10)) == (1_000, [])
    assert leases.pop_ended(1_000, 10) == [(offset, LEASE) for offset in range(5)]
    assert (len(leases), leases.next_end_ms()) == (0, None)


def test_settled_messages_of_a_range_do_not_end() -> None:
    leases = held()
    for offset in (0, 1, 3):
        del leases[offset]
    assert leases.next_end_ms() == 1_000
    assert [offset for offset, _ in leases.pop_ended(1_000, 10)] == [2, 4]


def test_extended_message_ends_later_than_the_others() -> None:
    leases = held()
    leases.grant(2, 3, replace(LEASE, ends_ms=2_000))
    assert [offset for offset, _ in leases.pop_ended(1_500, 10)] == [0, 1, 3, 4]
    assert leases.next_end_ms() == 2_000


def test_message_that_is_granted_two_leases_with_one_end_ends_once() -> None:
    leases = held()
    again = replace(LEASE, number=2)
    leases.grant(2, 4, again)
    assert leases.pop_ended(1_000, 10) == [(0, LEASE), (1, LEASE), (2, again), (3, again), (4, LEASE)]
    assert (len(leases), leases.next_end_ms()) == (0, None)


def test_rest_of_a_range_ends_in_the_next_call() -> None:
    leases = held()
    assert [offset for offset, _ in leases.pop_ended(1_000, 2)] == [0, 1]
    assert [offset for offset, _ in leases.pop_ended(1_000, 10)] == [2, 3, 4]


def test_all_leases_move_with_the_clock() -> None:
    leases = held()
    leases.clock_set(500)
    assert (leases.pop_ended(1_499, 10), len(leases.pop_ended(1_500, 10))) == ([], 5)


class CountingLeases(HeldLeases):
    """Counts the messages that are looked at."""

    looked_at = 0

    def get(self, key: int, default: object = None) -> Lease | None:  # type: ignore[override]
        self.looked_at += 1
        return super().get(key)


@pytest.mark.parametrize("batches", [10, 1_000])
def test_long_lease_costs_the_same_however_many_messages_are_settled_meanwhile(batches: int) -> None:
    size, leases = 100, CountingLeases()
    leases.grant(0, 1, replace(LEASE, ends_ms=0))
    longest = 0
    for number in range(batches):
        start = 1 + number * size
        leases.grant(start, start + size, replace(LEASE, ends_ms=1_000 + number))
        for offset in range(start, start + size):
            del leases[offset]
        before = leases.looked_at
        assert leases.next_end_ms() == 0
        longest = max(longest, leases.looked_at - before)
    assert longest == 1
    del leases[0]
    before = leases.looked_at
    assert leases.next_end_ms() is None
    assert leases.looked_at - before <= held_leases._MAX_STALE_OFFSETS + 2


def test_messages_that_are_looked_at_for_ended_leases_are_limited_and_counted() -> None:
    leases = held(0, 100)
    for offset in range(99):
        if offset % 10:
            del leases[offset]
    counts = []
    while leases:
        counts.append((len(leases.pop_ended(1_000, 25)), leases.work_count))
    assert counts == [(3, 25), (3, 50), (3, 75), (2, 85)]


@pytest.mark.parametrize("seed", range(30))
def test_leases_end_in_order_whenever_their_ends_are_indexed_anew(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(held_leases, "_MAX_STALE_OFFSETS", seed % 7)
    random, leases, model, now_ms = Random(seed), HeldLeases(), dict[int, Lease](), 0
    for number in range(300):
        action = random.choice(("grant", "grant", "settle", "settle", "time", "clock"))
        if action == "grant":
            start, lease = random.randrange(50), replace(LEASE, number=number, ends_ms=now_ms + random.randrange(1, 30))
            offsets = range(start, start + random.randrange(1, 20))
            leases.grant(offsets.start, offsets.stop, lease)
            model.update(dict.fromkeys(offsets, lease))
            assert leases._offsets_count <= 2 * len(leases) + held_leases._MAX_STALE_OFFSETS
        elif action == "settle":
            for offset in random.sample(sorted(model), min(len(model), 8)):
                del leases[offset], model[offset]
        elif action == "time":
            now_ms += random.randrange(10)
            ended = [(offset, lease) for offset, lease in model.items() if lease.ends_ms <= now_ms]
            found: list[tuple[int, Lease]] = []
            while (end_ms := leases.next_end_ms()) is not None and end_ms <= now_ms:
                found += leases.pop_ended(now_ms, random.randrange(1, 9))
            assert sorted(found) == sorted(ended)
            assert [lease.ends_ms for _, lease in found] == sorted(lease.ends_ms for _, lease in ended)
            for offset, _ in ended:
                del model[offset]
        else:
            by_ms = random.randrange(-5, 6)
            leases.clock_set(by_ms)
            model = {offset: replace(lease, ends_ms=lease.ends_ms + by_ms) for offset, lease in model.items()}
        assert leases == model
        assert leases.next_end_ms() == min((lease.ends_ms for lease in model.values()), default=None)
        assert leases._offsets_count == sum(end - start for _, start, end in leases._ends)
