"""Round trips of the records in the state topic."""

from uuid import UUID

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from conveyor.kernel.state_machine import LogRecord
from conveyor.queues.subscription import queue_records
from conveyor.queues.subscription.queue_records import PARTITION_KEY, Attempt, Kind

MINE = UUID(int=7 << 96)
NUMBERS = st.integers(0, 2**62)
RANGES = st.lists(st.tuples(NUMBERS, NUMBERS), min_size=1, max_size=5)
ATTEMPTS = st.builds(Attempt, st.integers(0, 2**31 - 1), NUMBERS, NUMBERS, NUMBERS)
ATTEMPTS_OF_BOTH_KINDS = st.builds(msgspec.structs.replace, ATTEMPTS, dead_letter_reason=st.none() | st.text())


def value_of(record: LogRecord, kind: Kind) -> bytes:
    assert record.value is not None
    assert record.value[0] == kind
    return record.value


@given(NUMBERS)
def test_started_holds_an_offset(offset: int) -> None:
    record = queue_records.started(MINE, offset)
    assert record.key == MINE.bytes
    assert queue_records.read_offset(value_of(record, Kind.STARTED)) == offset


@given(RANGES)
def test_ranges_are_read_again(ranges: list[tuple[int, int]]) -> None:
    record = queue_records.ranges_record(MINE.bytes, Kind.SETTLED, ranges)
    assert queue_records.read_ranges(value_of(record, Kind.SETTLED)) == ranges


@given(st.lists(st.tuples(NUMBERS, ATTEMPTS), min_size=1, max_size=5))
def test_attempts_are_read_again(attempts: list[tuple[int, Attempt]]) -> None:
    assert queue_records.read_attempts(value_of(queue_records.failed(MINE, attempts), Kind.FAILED)) == attempts


@given(NUMBERS, st.text(max_size=20))
def test_dead_lettering_keeps_its_reason(offset: int, reason: str) -> None:
    attempt = Attempt(3, 10, 20, 30, reason)
    value = value_of(queue_records.dead_lettering(MINE, offset, attempt), Kind.DEAD_LETTERING)
    assert queue_records.read_attempts(value) == [(offset, attempt)]


@given(st.dictionaries(NUMBERS, ATTEMPTS_OF_BOTH_KINDS, max_size=5))
def test_attempts_of_both_kinds_are_read_again(attempts: dict[int, Attempt]) -> None:
    written = queue_records.attempts_records(MINE, attempts)
    read = [queue_records.read_attempts(record.value or b"") for record in written]
    assert {offset: attempt for entries in read for offset, attempt in entries} == attempts
    kinds = {attempt.dead_letter_reason is None for attempt in attempts.values()}
    assert len(written) == len(kinds)


@pytest.mark.parametrize("reason", [None, "rejected"])
def test_many_attempts_take_few_records(reason: str | None) -> None:
    attempts = {offset: Attempt(1, 2, 3, 4, reason) for offset in range(20_001)}
    written = queue_records.attempts_records(MINE, attempts)
    assert [len(queue_records.read_attempts(record.value or b"")) for record in written] == [10_000, 10_000, 1]


def test_many_ranges_take_several_records() -> None:
    ranges = [(offset, offset + 1) for offset in range(0, 240_000, 2)]
    written = queue_records.ranges_records(PARTITION_KEY, Kind.CANCELLED, ranges)
    assert len(written) == 3
    assert [offsets for record in written for offsets in queue_records.read_ranges(record.value or b"")] == ranges


def test_no_ranges_take_no_record() -> None:
    assert queue_records.ranges_records(PARTITION_KEY, Kind.CANCELLED, []) == []


def test_marks_hold_nothing() -> None:
    assert queue_records.reset().value == bytes((Kind.RESET,))
    assert queue_records.forgotten(MINE).value == bytes((Kind.FORGOTTEN,))
