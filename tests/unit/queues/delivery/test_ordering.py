"""Key order: one deliverable message per key."""

from conveyor.queues.delivery.ordering import KeyOrder


def test_next_message_of_a_key_waits_until_the_last_is_settled() -> None:
    keys = KeyOrder()
    assert keys.admit(1, b"a")
    assert not keys.admit(2, b"a")
    assert keys.settled([1]) == [2]
    assert not keys.settled([2])
    assert keys.admit(3, b"a")


def test_other_keys_go_on() -> None:
    keys = KeyOrder()
    assert keys.admit(1, b"a")
    assert keys.admit(2, b"b")


def test_messages_without_a_key_are_not_ordered() -> None:
    keys = KeyOrder()
    assert keys.admit(1, None)
    assert keys.admit(2, None)
    assert not keys.settled([1])
    assert not keys.is_behind(3, None)


def test_first_message_may_go_again() -> None:
    keys = KeyOrder()
    assert keys.admit(1, b"a")
    assert keys.admit(1, b"a")


def test_those_who_wait_go_by_offset_whenever_they_came() -> None:
    keys = KeyOrder()
    for offset in (5, 7, 9, 2):
        keys.admit(offset, b"a")
    assert [keys.settled([offset]) for offset in (5, 2, 7, 9)] == [[2], [7], [9], []]


def test_waiting_count_counts_those_behind_others() -> None:
    keys = KeyOrder()
    for offset, key in ((1, b"a"), (2, b"a"), (3, b"a"), (4, b"b")):
        keys.admit(offset, key)
    assert keys.waiting_count == 2
    assert keys.is_behind(2, b"a")
    assert not keys.is_behind(1, b"a")
    keys.settled([1])
    assert keys.waiting_count == 1


def test_settling_somebody_who_was_not_first_changes_nothing() -> None:
    keys = KeyOrder()
    keys.admit(1, b"a")
    keys.admit(2, b"a")
    assert not keys.settled([2])
    assert keys.settled([1]) == [2]
