"""Signals tell listeners in order, also while listeners come and go."""

from conveyor.kernel.signal import Signal


def test_listeners_are_told_in_the_order_of_their_arrival() -> None:
    signal: Signal[int] = Signal()
    told: list[tuple[str, int]] = []
    leave_first = signal.listen(lambda event: told.append(("first", event)))
    signal.listen(lambda event: told.append(("second", event)))
    signal.emit(1)
    leave_first()
    leave_first()
    signal.emit(2)
    assert told == [("first", 1), ("second", 1), ("second", 2)]


def test_next_event_is_told_once() -> None:
    signal: Signal[int] = Signal()
    told: list[int] = []
    signal.next(told.append)
    leave = signal.next(told.append)
    leave()
    signal.emit(1)
    signal.emit(2)
    assert told == [1]


def test_listener_that_leaves_while_others_are_told_is_not_told_any_more() -> None:
    signal: Signal[int] = Signal()
    told: list[str] = []

    def first(_: int) -> None:
        told.append("first")
        leave_second()
        signal.listen(lambda _: told.append("late"))

    signal.listen(first)
    leave_second = signal.listen(lambda _: told.append("second"))
    signal.emit(1)
    assert told == ["first"]
    signal.emit(2)
    assert told == ["first", "first", "late"]
