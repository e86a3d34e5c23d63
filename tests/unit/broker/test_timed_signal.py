"""Pauses between attempts that fail: they double, and few of the failures are logged."""

import logging

from conveyor.broker.timed_signal import Pauses


def test_pauses_double_up_to_the_longest_and_begin_again() -> None:
    pauses = Pauses(100, 300)
    assert [pauses.next_ms() for _ in range(4)] == [100, 200, 300, 300]
    pauses.reset()
    assert pauses.next_ms() == 100


def test_first_failure_and_each_60th_after_it_are_warnings() -> None:
    pauses = Pauses()
    levels = []
    for _ in range(121):
        levels.append(pauses.log_level)
        pauses.next_ms()
    assert [number for number, level in enumerate(levels) if level == logging.WARNING] == [0, 60, 120]
    pauses.reset()
    assert pauses.log_level == logging.WARNING
