"""Key order in batches: which messages of a key one call may take, and what later calls wait for."""

from conveyor.queues.delivery.ordering import KeyOrder


def order_with(*offsets: int, limit: int = 3) -> KeyOrder:
    """Return an order in which one call has offered these messages of one key."""
    keys = KeyOrder()
    keys.begin_call(limit)
    for offset in offsets:
        keys.admit(offset, b"a")
    return keys


def test_one_call_takes_messages_of_a_key_up_to_the_limit() -> None:
    keys = order_with(limit=3)
    assert [keys.admit(offset, b"a") for offset in (1, 2, 3, 4)] == [True, True, True, False]
    assert keys.waiting_count == 1


def test_next_call_takes_none_while_one_is_in_flight() -> None:
    keys = order_with(1, 2)
    keys.begin_call(3)
    assert not keys.admit(3, b"a")
    assert not keys.settled([1])
    assert keys.settled([2]) == [3]


def test_earlier_message_that_has_returned_comes_before_later_ones() -> None:
    keys = order_with(1, 2, 3)
    assert not keys.returned([1])
    keys.begin_call(3)
    assert not keys.admit(1, b"a")
    assert not keys.admit(4, b"a")
    assert not keys.settled([2])
    assert keys.settled([3]) == [1]
    assert keys.admit(1, b"a")
    assert keys.following() == 4


def test_message_behind_one_that_is_not_due_does_not_join() -> None:
    """1 to 3 have returned; 2 waits for its backoff."""
    keys = order_with(1, 2, 3)
    assert not keys.returned([1, 2, 3])
    keys.begin_call(3)
    assert keys.admit(1, b"a")
    assert not keys.admit(3, b"a")
    assert keys.following() is None


def test_call_goes_on_with_those_that_wait() -> None:
    keys = order_with(1, 2, 3, 4, 5, limit=1)
    assert keys.settled([1]) == [2]
    keys.begin_call(3)
    assert keys.admit(2, b"a")
    for offset in (3, 4):
        assert keys.following() == offset
        assert keys.admit(offset, b"a")
    assert keys.following() is None
    assert keys.waiting_count == 1


def test_message_that_returns_behind_a_waiting_one_lets_it_go_first() -> None:
    keys = order_with(1, 2, 3)
    assert not keys.returned([1])
    keys.begin_call(3)
    assert not keys.admit(1, b"a")
    assert not keys.settled([2])
    assert keys.returned([3]) == [1]
    assert keys.is_behind(3, b"a")
    assert not keys.is_behind(1, b"a")


def test_limit_of_another_call_holds_for_that_call() -> None:
    keys = order_with(1, 2, limit=2)
    assert not keys.settled([1, 2])
    keys.begin_call(1)
    assert keys.admit(3, b"a")
    assert not keys.admit(4, b"a")


def test_pending_messages_are_in_flight() -> None:
    keys = KeyOrder()
    keys.hold(2, b"a")
    keys.hold(3, b"a")
    keys.begin_call(3)
    assert not keys.admit(1, b"a")
    assert keys.admit(2, b"a")
    assert not keys.admit(4, b"a")
    assert not keys.settled([2])
    assert keys.settled([3]) == [1]
