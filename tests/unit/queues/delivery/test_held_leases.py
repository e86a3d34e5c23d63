"""Messages that were acquired together share a lease until one of them is settled or extended."""

from msgspec.structs import replace

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
