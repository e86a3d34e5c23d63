"""The checker of histories finds each anomaly that is planted, and nothing else; clean histories have none."""

from collections.abc import Callable

import pytest
from msgspec.structs import replace

from simulation.histories.history import (
    ClientTransaction,
    Delivery,
    History,
    HistoryPlace,
    KnownOutcome,
    PollResult,
    SentRecord,
)
from simulation.histories.history_checker import AnomalyKind, check_history
from tests.unit.simulation.histories.generated import clean_history

CLEAN = 1_000
PLANTED_EACH = 20
PLACE = HistoryPlace("results", 0)


def committed(history: History) -> ClientTransaction:
    """Return the last transaction whose commit was confirmed. Other readers than those of the history have read it."""
    return [item for item in history.transactions if item.outcome is KnownOutcome.COMMITTED][-1]


def with_transaction(history: History, before: ClientTransaction, **changes: object) -> History:
    changed = replace(before, **changes)
    return replace(history, transactions=[changed if item is before else item for item in history.transactions])


def without_values(history: History, *values: str) -> History:
    """Return a history in which nobody reads these values."""
    return replace(
        history,
        polls=[
            replace(poll, records=[item for item in poll.records if item[1] not in values]) for poll in history.polls
        ],
        contents={
            place: [item for item in records if item[1] not in values] for place, records in history.contents.items()
        },
    )


def with_record(history: History, record: SentRecord) -> History:
    """Return a history in which one more record is there in the end."""
    end = max((offset for offset, _ in history.contents[record.place]), default=-1) + 100
    contents = {**history.contents, record.place: [*history.contents[record.place], (end, record.value)]}
    return replace(history, contents=contents)


def new_record(**changes: object) -> SentRecord:
    return replace(SentRecord(place=PLACE, value="planted", sent_at=100_000), **changes)


def last_time(history: History) -> float:
    return max(item.at for item in history.initializations) + 100_000


def lose_a_write(history: History) -> History:
    return without_values(history, committed(history).sends[0].value)


def lose_what_was_read(history: History) -> History:
    """A record of a transaction without an answer was read, and is gone in the end."""
    transaction = committed(history)
    unknown = with_transaction(history, transaction, outcome=KnownOutcome.UNKNOWN, ended_at=None)
    gone = without_values(unknown, *(record.value for record in transaction.sends))
    record = transaction.sends[0]
    poll = PollResult(
        reader="another", place=record.place, records=[(record.offset or 0, record.value)], at=last_time(history)
    )
    return replace(gone, polls=[*gone.polls, poll])


def repeat_a_value(history: History) -> History:
    return with_record(history, committed(history).sends[0])


def process_a_record_twice(history: History) -> History:
    first = committed(history)
    again = replace(first, sends=[replace(first.sends[0], value="again", offset=None)], settled=())
    return with_record(replace(history, transactions=[*history.transactions, again]), again.sends[0])


def show_two_values_at_an_offset(history: History) -> History:
    record = committed(history).sends[0]
    poll = PollResult(
        reader="another", place=record.place, records=[(record.offset or 0, "other")], at=last_time(history)
    )
    return replace(history, polls=[*history.polls, poll])


def acknowledge_another_offset(history: History) -> History:
    """A record is acknowledged where another one is."""
    transaction = committed(history)
    (place, records) = max(history.contents.items(), key=lambda item: len(item[1]))
    moved = replace(transaction.sends[0], place=place, offset=records[0][0])
    if moved.value == records[0][1]:
        moved = replace(moved, offset=records[1][0])
    return with_transaction(history, transaction, sends=[moved, *transaction.sends[1:]])


def show_an_aborted_record(history: History) -> History:
    return with_uncommitted_record(history, KnownOutcome.ABORTED)


def show_a_record_without_a_commit(history: History) -> History:
    return with_uncommitted_record(history, KnownOutcome.NOT_ASKED)


def with_uncommitted_record(history: History, outcome: KnownOutcome) -> History:
    transaction = committed(history)
    record = new_record(sent_at=transaction.sends[0].sent_at)
    uncommitted = replace(transaction, outcome=outcome, asked_at=None, sends=[record], settled=())
    return with_record(replace(history, transactions=[*history.transactions, uncommitted]), record)


def tear_a_transaction(history: History) -> History:
    transaction = committed(history)
    unknown = with_transaction(history, transaction, outcome=KnownOutcome.UNKNOWN, ended_at=None)
    return without_values(unknown, transaction.sends[0].value)


def read_before_the_commit(history: History) -> History:
    return with_transaction(history, read_transaction(history), asked_at=10**9, ended_at=10**9 + 1, settled=())


def read_transaction(history: History) -> ClientTransaction:
    """Return a committed transaction that a reader has seen before the full read."""
    read = {value for poll in history.polls for _, value in poll.records}
    return next(
        item for item in history.transactions
        if item.outcome is KnownOutcome.COMMITTED and any(record.value in read for record in item.sends)
    )  # fmt: skip


def go_back(history: History) -> History:
    poll = next(poll for poll in history.polls if poll.records)
    return replace(history, polls=[*history.polls, replace(poll, at=last_time(history))])


def skip_a_record(history: History) -> History:
    """A reader of its own, which gets all records of the fullest partition but the second one."""
    place, records = max(history.contents.items(), key=lambda item: len(item[1]))
    polls = [
        PollResult(reader="skipping", place=place, records=records[:1], at=last_time(history)),
        PollResult(reader="skipping", place=place, records=records[2:], at=last_time(history)),
    ]
    return replace(history, polls=[*history.polls, *polls])


def show_a_zombies_record(history: History) -> History:
    successor = next(item for item in history.initializations if not item.process.endswith("start 0"))
    zombie = next(
        item for item in history.initializations
        if item.transactional_id == successor.transactional_id and item.process != successor.process
    )  # fmt: skip
    record = new_record(sent_at=successor.at + 0.5)
    transaction = ClientTransaction(
        process=zombie.process, transactional_id=zombie.transactional_id, sends=[record],
        outcome=KnownOutcome.COMMITTED, asked_at=record.sent_at, ended_at=record.sent_at,
    )  # fmt: skip
    return with_record(replace(history, transactions=[*history.transactions, transaction]), record)


def deliver_again(history: History) -> History:
    settled = committed(history)
    assert settled.ended_at is not None
    again = Delivery(process="late", source=settled.settled[0], asked_at=settled.ended_at + 0.5)
    return replace(history, deliveries=[*history.deliveries, again])


def show_an_unknown_value(history: History) -> History:
    return with_record(history, new_record())


Mutator = Callable[[History], History]
PLANTED: dict[Mutator, AnomalyKind] = {
    lose_a_write: AnomalyKind.LOST_WRITE,
    lose_what_was_read: AnomalyKind.LOST_WRITE,
    repeat_a_value: AnomalyKind.DUPLICATE,
    process_a_record_twice: AnomalyKind.DUPLICATE,
    show_two_values_at_an_offset: AnomalyKind.INCONSISTENT_OFFSET,
    acknowledge_another_offset: AnomalyKind.INCONSISTENT_OFFSET,
    show_an_aborted_record: AnomalyKind.ABORTED_READ,
    show_a_record_without_a_commit: AnomalyKind.ABORTED_READ,
    tear_a_transaction: AnomalyKind.TORN_READ,
    read_before_the_commit: AnomalyKind.INTERMEDIATE_READ,
    go_back: AnomalyKind.NON_MONOTONIC_POLL,
    skip_a_record: AnomalyKind.SKIPPING_POLL,
    show_a_zombies_record: AnomalyKind.ZOMBIE_WRITE,
    deliver_again: AnomalyKind.REDELIVERY,
    show_an_unknown_value: AnomalyKind.UNKNOWN_VALUE,
}


def test_clean_histories_have_no_anomalies() -> None:
    for seed in range(CLEAN):
        assert check_history(clean_history(seed)) == [], f"seed {seed}"


@pytest.mark.parametrize("mutate", PLANTED, ids=lambda mutate: mutate.__name__)
def test_a_planted_anomaly_is_found_and_nothing_else(mutate: Mutator) -> None:
    planted_count = 0
    for seed in range(10 * PLANTED_EACH):
        history = clean_history(seed)
        if planted_count < PLANTED_EACH and _suits(history):
            planted_count += 1
            found = {anomaly.kind for anomaly in check_history(mutate(history))}
            assert found == {PLANTED[mutate]}, f"seed {seed}: {found}"
    assert planted_count == PLANTED_EACH


def test_every_kind_of_anomaly_is_planted() -> None:
    assert set(PLANTED.values()) == set(AnomalyKind)


def _suits(history: History) -> bool:
    """Return whether the history has what the mutators change."""
    read = {value for poll in history.polls for _, value in poll.records}
    has_successor = any(not item.process.endswith("start 0") for item in history.initializations)
    longest = max(len(records) for records in history.contents.values())
    is_read = any(
        item.outcome is KnownOutcome.COMMITTED and any(record.value in read for record in item.sends)
        for item in history.transactions
    )
    return has_successor and longest >= 3 and is_read
