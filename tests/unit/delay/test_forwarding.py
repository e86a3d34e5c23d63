"""The forwarding of a delayed topic's records, decided without a log, a disk or a clock."""

from collections.abc import Sequence

import pytest

from conveyor.delay.forwarding import CancelForwarding, Forwarding, NextIntent
from conveyor.delay.forwarding_records import Cancelled, Intent, Range, Snapshot, decode, divided, encode
from conveyor.delay.forwarding_scan import DueRun
from conveyor.delay.waiting_offsets import WaitingOffsets
from conveyor.kernel.errors import ErrorKind, RequestError
from conveyor.kernel.state_machine import LogRecord, Outcome, Reply, Token

TAKER, CANCELLER = Token(1), Token(2)
PRODUCER, SEQUENCE, END = 7, 40, 100
SETTLE_MS = 1_000


class Target:
    """The target: its end and the next sequence do not change."""

    def __init__(self, *, is_ready: bool = True) -> None:
        self.is_ready = is_ready
        self.sequence: int | None = SEQUENCE

    @property
    def log_end_offset(self) -> int:
        return END

    def next_sequence(self, producer_id: int) -> int | None:
        assert producer_id == PRODUCER
        return self.sequence

    def may_append(self) -> bool:
        return self.is_ready


def intent(*ranges: Range, carried_out: int = 0) -> Intent:
    return Intent(producer_id=PRODUCER, sequence=SEQUENCE, target_offset=END, carried_out=carried_out, ranges=ranges)


def machine(
    *records: Intent | Cancelled | Snapshot,
    carried_out: int = 0,
    at_once: int = 1000,
    is_ready: bool = True,
    log_start_offset: int = 0,
) -> Forwarding:
    forwarding = Forwarding(Target(is_ready=is_ready), at_once)
    for record in records:
        forwarding.apply(encode(record))
    forwarding.begin(PRODUCER, carried_out, log_start_offset)
    return forwarding


def take(forwarding: Forwarding, *runs: tuple[int, int, int], now_ms: int = 0) -> None:
    start = forwarding.scanned_offset
    forwarding.take([DueRun(*run) for run in runs], start, runs[-1][1], now_ms)


def applied(forwarding: Forwarding, records: Sequence[LogRecord]) -> None:
    for record in records:
        forwarding.apply(record)


def next_intent(
    forwarding: Forwarding, now_ms: int, carried_out: int | None = None, log_start_offset: int = 0
) -> Intent | None:
    """Ask for the next intent. carried_out: of the last one; None for all of it."""
    last = forwarding.last_intent
    if carried_out is None and last is not None:
        carried_out = last.count
    command = NextIntent(carried_out=carried_out, log_start_offset=log_start_offset)
    return replied(forwarding, forwarding.handle(command, TAKER, now_ms))


def replied(forwarding: Forwarding, outcome: Outcome) -> Intent | None:
    applied(forwarding, outcome.records)
    if not outcome.replies:
        return None
    [record], [reply] = outcome.records, outcome.replies
    assert reply == Reply(TAKER, decode(record))
    assert isinstance(reply.value, Intent)
    return reply.value


def first_intent(forwarding: Forwarding, now_ms: int) -> Intent | None:
    """Ask for the first intent after a load."""
    return replied(forwarding, forwarding.handle(NextIntent(carried_out=None, log_start_offset=0), TAKER, now_ms))


def ranges(forwarding: Forwarding, now_ms: int, carried_out: int | None = None) -> tuple[Range, ...]:
    found = next_intent(forwarding, now_ms, carried_out)
    return () if found is None else found.ranges


def cancel(forwarding: Forwarding, offset: int, now_ms: int) -> None:
    """Cancel a withheld record. Raises RequestError."""
    outcome = forwarding.handle(CancelForwarding(offset=offset), CANCELLER, now_ms)
    applied(forwarding, outcome.records)
    [reply] = outcome.replies
    if isinstance(reply.value, RequestError):
        assert not outcome.records
        raise reply.value
    assert [decode(record) for record in outcome.records] == [Cancelled(offset)]


def refused(forwarding: Forwarding, offset: int, now_ms: int) -> bool:
    with pytest.raises(RequestError) as refusal:
        cancel(forwarding, offset, now_ms)
    return refusal.value.kind is ErrorKind.MESSAGE_NOT_DELAYED


def test_records_without_a_delay_go_at_once_and_the_others_in_the_order_of_their_times() -> None:
    forwarding = machine()
    take(forwarding, (0, 1, 50), (1, 4, 0), (4, 5, 30), (5, 6, 50))
    assert first_intent(forwarding, 10) == intent((1, 4))
    assert next_intent(forwarding, 29) is None
    assert forwarding.next_deadline_ms() == 30
    assert replied(forwarding, forwarding.expire(50)) == intent((4, 5), (0, 1), (5, 6), carried_out=3)
    assert next_intent(forwarding, 50) is None


def test_one_intent_is_in_progress_at_a_time() -> None:
    forwarding = machine()
    take(forwarding, (0, 1, 0), (1, 2, 50))
    assert (forwarding.expire(10), forwarding.next_deadline_ms()) == (Outcome(), None)
    assert first_intent(forwarding, 10) == intent((0, 1))
    assert (forwarding.expire(60), forwarding.next_deadline_ms()) == (Outcome(), None)
    assert next_intent(forwarding, 60) == intent((1, 2), carried_out=1)


def test_last_intent_is_settled_after_a_while() -> None:
    forwarding = machine()
    take(forwarding, (0, 2, 0))
    assert first_intent(forwarding, 10) == intent((0, 2))
    assert next_intent(forwarding, 20) is None
    assert forwarding.next_deadline_ms() == 20 + SETTLE_MS
    forwarding.clock_set(5)
    assert forwarding.next_deadline_ms() == 25 + SETTLE_MS
    assert forwarding.retain_from_offset() == 0
    assert replied(forwarding, forwarding.expire(25 + SETTLE_MS)) == intent(carried_out=2)
    assert forwarding.retain_from_offset() == 2
    assert (next_intent(forwarding, 3_000), forwarding.next_deadline_ms()) == (None, None)


def test_nothing_goes_on_while_it_may_not() -> None:
    forwarding = machine(is_ready=False)
    take(forwarding, (0, 1, 0), (1, 2, 50))
    assert first_intent(forwarding, 60) is None
    assert (forwarding.expire(60), forwarding.next_deadline_ms()) == (Outcome(), None)


def test_an_intent_has_a_limit_and_the_next_goes_on() -> None:
    forwarding = machine(at_once=2)
    take(forwarding, (0, 1, 0), (1, 9, 0), (9, 10, 0))
    assert first_intent(forwarding, 1) == intent((0, 1), (1, 9))
    assert ranges(forwarding, 1) == ((9, 10),)


def test_part_of_an_intent_that_is_not_carried_out_comes_next() -> None:
    forwarding = machine()
    take(forwarding, (0, 3, 0), (3, 4, 5), (4, 6, 0))
    assert first_intent(forwarding, 0) == intent((0, 3), (4, 6))
    assert next_intent(forwarding, 9, carried_out=2) == intent((2, 3), (4, 6), (3, 4), carried_out=2)
    assert forwarding.retain_from_offset() == 2


def test_a_clock_that_goes_back_takes_nothing_back() -> None:
    forwarding = machine()
    take(forwarding, (0, 1, 50), (1, 2, 60))
    assert first_intent(forwarding, 50) == intent((0, 1))
    assert refused(forwarding, 0, 41), "its intent is in progress"
    assert ranges(forwarding, 41) == ()
    assert refused(forwarding, 0, 41)


def test_a_record_is_not_forwarded_before_its_time_by_a_clock_that_was_set_back() -> None:
    forwarding = machine()
    take(forwarding, (0, 1, 50), (1, 2, 60))
    assert first_intent(forwarding, 50) == intent((0, 1))
    take(forwarding, (2, 3, 45), (3, 4, 46), now_ms=40)
    assert ranges(forwarding, 41) == ()
    assert forwarding.next_deadline_ms() == 45
    cancel(forwarding, 3, 41)
    assert replied(forwarding, forwarding.expire(46)) == intent((2, 3), carried_out=1)


def test_a_record_is_cancelled_until_it_is_due() -> None:
    forwarding = machine()
    take(forwarding, (0, 1, 50), (1, 2, 60))
    cancel(forwarding, 0, 49)
    cancel(forwarding, 0, 49)
    assert first_intent(forwarding, 60) == intent((1, 2))
    assert refused(forwarding, 1, 60)
    assert ranges(forwarding, 60) == ()


def test_a_record_is_cancelled_once_it_is_scanned() -> None:
    forwarding = machine()
    with pytest.raises(RequestError) as refusal:
        cancel(forwarding, 1, 10)
    assert refusal.value.kind is ErrorKind.COORDINATOR_LOADING
    take(forwarding, (0, 1, 50), (1, 2, 60), now_ms=10)
    cancel(forwarding, 1, 10)
    assert first_intent(forwarding, 60) == intent((0, 1))


def test_cancelled_records_stay_cancelled_after_a_restart() -> None:
    forwarding = machine(Cancelled(1))
    take(forwarding, (0, 1, 50), (1, 2, 60))
    assert first_intent(forwarding, 60) == intent((0, 1))
    assert forwarding.next_deadline_ms() is None


def test_records_in_the_target_are_not_taken_again_after_a_restart() -> None:
    forwarding = machine(intent((0, 2), (3, 4)), carried_out=3)
    assert not forwarding.waits(0, 2)
    assert forwarding.scanned_offset == 2
    take(forwarding, (0, 5, 0))
    assert first_intent(forwarding, 20) == intent((2, 3), (4, 5), carried_out=3)


@pytest.mark.parametrize("carried_out", [0, 1, 3])
def test_records_that_are_not_in_the_target_are_taken_again(carried_out: int) -> None:
    last = intent((0, 2), (3, 5))
    forwarding = machine(last, carried_out=carried_out)
    take(forwarding, (0, 5, 0))
    first = first_intent(forwarding, 20)
    assert first is not None
    done, _ = divided(last.ranges, carried_out)
    again = machine(last, first, carried_out=first.count)
    assert {*expanded(done), *expanded(first.ranges)} == set(range(5))
    assert again.retain_from_offset() == 0 if not again.scanned_offset else 5
    assert not again.waits(0, 5)


def expanded(given: Sequence[Range]) -> list[int]:
    return [offset for start, end in given for offset in range(start, end)]


def test_the_first_intent_after_a_restart_settles_the_last_one_also_without_records() -> None:
    forwarding = machine(intent((0, 2)), carried_out=2)
    assert first_intent(forwarding, 5) == intent(carried_out=2)
    assert next_intent(forwarding, 5) is None


def test_deleted_records_are_not_forwarded() -> None:
    forwarding = machine()
    take(forwarding, (0, 4, 0), (4, 5, 50))
    assert first_intent(forwarding, 0) == intent((0, 4))
    assert next_intent(forwarding, 60, carried_out=1, log_start_offset=3) == intent((3, 4), (4, 5), carried_out=1)
    assert machine(intent((0, 2)), log_start_offset=9).scanned_offset == 9


def test_offsets_without_records_do_not_wait() -> None:
    """Markers of transactions, and records of aborted ones."""
    forwarding = machine()
    forwarding.take([DueRun(2, 3, 0), DueRun(5, 6, 50)], 0, 8, 0)
    assert first_intent(forwarding, 0) == intent((2, 3))
    assert ranges(forwarding, 0) == ()
    assert replied(forwarding, forwarding.expire(SETTLE_MS)) == intent((5, 6), carried_out=1)
    assert forwarding.retain_from_offset() == 5


def test_no_sequence_is_used_twice_although_the_target_forgets_the_producer() -> None:
    target = Target()
    target.sequence = None
    forwarding = Forwarding(target)
    forwarding.begin(PRODUCER, 0, 0)
    take(forwarding, (0, 3, 0), (3, 4, 50))
    assert sequence_of(first_intent(forwarding, 10)) == 0
    assert sequence_of(next_intent(forwarding, 50)) == 3
    again = Forwarding(target)
    applied(again, forwarding.snapshot())
    again.begin(PRODUCER, 1, 0)
    take(again, (4, 5, 0))
    assert sequence_of(first_intent(again, 60)) == 4


def sequence_of(decided: Intent | None) -> int:
    assert decided is not None
    return decided.sequence


def test_snapshot_rebuilds_the_state() -> None:
    forwarding = machine()
    take(forwarding, (0, 3, 0), (3, 4, 50), (4, 5, 60), (5, 6, 70), (6, 7, 80))
    cancel(forwarding, 4, 10)
    assert first_intent(forwarding, 10) == intent((0, 3))
    assert next_intent(forwarding, 50) == intent((3, 4), carried_out=3)
    again = Forwarding(Target())
    applied(again, [encode(Cancelled(99)), encode(intent((90, 95))), *forwarding.snapshot()])
    again.begin(PRODUCER, 0, 0)
    assert (again.last_intent, again.producer_id) == (intent((3, 4)), PRODUCER)
    assert again.scanned_offset == 3
    take(again, (3, 4, 50), (4, 5, 60), (5, 6, 70), (6, 7, 80), (7, 9, 0))
    assert first_intent(again, 70) == intent((7, 9), (3, 4), (5, 6))


def test_cut_forgets_what_is_about_records_that_are_gone() -> None:
    """The intent was carried out for two of its records, of which one is gone; what was cancelled is another record."""
    known = (encode(intent((0, 3), (4, 8))), encode(Cancelled(3)), encode(Cancelled(9)))
    forwarding = Forwarding(Target())
    applied(forwarding, known)
    assert [forwarding.reaches_beyond(offset) for offset in (1, 9, 10)] == [True, True, False]
    forwarding.begin(PRODUCER, 2, 0, 1)
    assert (forwarding.scanned_offset, forwarding.retain_from_offset()) == (1, 1)
    again = Forwarding(Target())
    applied(again, [*known, *forwarding.snapshot()])
    again.begin(PRODUCER, 0, 0)
    for state in (forwarding, again):
        assert not state.reaches_beyond(1)
        take(state, (1, 3, 0), (3, 4, 50), (4, 9, 0), (9, 10, 50))
        assert first_intent(state, 50) == intent((1, 3), (4, 9), (3, 4), (9, 10))


def test_cut_keeps_what_is_about_earlier_records() -> None:
    forwarding = Forwarding(Target())
    applied(forwarding, [encode(intent((0, 3), (5, 8))), encode(Cancelled(4))])
    forwarding.begin(PRODUCER, 4, 0, 6)
    take(forwarding, (3, 4, 0), (4, 5, 50), (6, 9, 0))
    assert first_intent(forwarding, 50) == intent((3, 4), (6, 9))


def test_no_sequence_is_used_twice_after_a_cut() -> None:
    target = Target()
    target.sequence = None
    forwarding = Forwarding(target)
    applied(forwarding, [encode(intent((0, 3)))])
    forwarding.begin(PRODUCER, 0, 0, 0)
    take(forwarding, (0, 1, 0))
    assert sequence_of(first_intent(forwarding, 0)) == SEQUENCE + 3


def test_state_that_says_nothing_reaches_nowhere() -> None:
    assert not Forwarding(Target()).reaches_beyond(0)


def test_snapshot_without_an_intent() -> None:
    forwarding = machine()
    take(forwarding, (0, 1, 50))
    assert [type(decode(record)) for record in forwarding.snapshot()] == [Snapshot]


@pytest.mark.parametrize(
    ("record", "key", "value"),
    [
        (Cancelled(7), "0000 0002", "0000000000000007"),
        (
            intent((1, 4), carried_out=2),
            "0000 0001",
            "0000000000000007 00000028 0000000000000064 00000002 0000000000000001 00000003",
        ),
        (
            Snapshot(producer_id=7, waiting=WaitingOffsets.decoded(b"", 9), cancelled=[8]),
            "0000 0003",
            "0000000000000007 0000000000000009 00000001 0000000000000008",
        ),
    ],
)
def test_form_of_stored_records(record: Intent | Cancelled | Snapshot, key: str, value: str) -> None:
    stored = encode(record)
    assert stored == LogRecord(bytes.fromhex(key), bytes.fromhex(value))
    assert encode(decode(stored)) == stored
