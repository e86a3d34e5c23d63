"""Machines and the runner exchange plain, immutable data."""

import pytest

from conveyor.kernel.state_machine import LogRecord, Outcome, Reply, Token


def test_outcome_decides_nothing_by_default() -> None:
    assert Outcome() == Outcome(records=(), replies=())


def test_log_record_without_a_place_has_no_time() -> None:
    assert LogRecord(b"k", None) == LogRecord(b"k", None, timestamp_ms=0)


def test_machine_data_cannot_be_changed() -> None:
    with pytest.raises(AttributeError):
        Reply(Token(1), "value").value = "other"  # type: ignore[misc]
