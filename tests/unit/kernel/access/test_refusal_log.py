"""Refused strangers are logged once in a minute."""

import logging

from conveyor.kernel.access.refusal_log import RefusalLog


def test_the_first_refusal_of_a_minute_is_a_warning() -> None:
    refusals = RefusalLog()
    levels = [refusals.level(now_s) for now_s in (5.0, 6.0, 64.9, 65.0, 66.0, 300.0)]
    assert [level == logging.WARNING for level in levels] == [True, False, False, True, False, True]
    assert refusals.count == 6
