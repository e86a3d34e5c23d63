"""Finds anomalies in the history of transactional clients. A pure function; the cost is proportional to the history.

    LOST_WRITE             a record of a committed transaction is missing in the end
    DUPLICATE              a value is there twice, or a source record has two results of one topic
    INCONSISTENT_OFFSET    an offset holds different values for different readers, or not the one acknowledged there
    ABORTED_READ           a record is read whose transaction was aborted, or was never to be committed
    TORN_READ              only a part of a transaction whose outcome is unknown is there in the end
    INTERMEDIATE_READ      a record is read before its producer asked for the commit
    NON_MONOTONIC_POLL     a reader gets an offset that is not above the previous one
    SKIPPING_POLL          a reader does not get a record that is there in the end, between two that it gets
    ZOMBIE_WRITE           a record is read that was sent after a successor had the transactional id
    REDELIVERY             a record is delivered again, to a process that asked after its settlement was committed
    UNKNOWN_VALUE          a record is read that no client has sent

Each wrong record is reported once, with the first of its anomalies. Two transactions may write to two partitions in
different orders: such write cycles (G0) are legal in Kafka's protocol. Source: Jepsen's analyses of Redpanda 21.10.1
and Bufstream 0.1.
"""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from enum import Enum, auto
from typing import NamedTuple

from simulation.histories.history import (
    ClientTransaction,
    History,
    HistoryPlace,
    Initialization,
    KnownOutcome,
    SentRecord,
    SourceRecord,
)


class AnomalyKind(Enum):
    LOST_WRITE = auto()
    DUPLICATE = auto()
    INCONSISTENT_OFFSET = auto()
    ABORTED_READ = auto()
    TORN_READ = auto()
    INTERMEDIATE_READ = auto()
    NON_MONOTONIC_POLL = auto()
    SKIPPING_POLL = auto()
    ZOMBIE_WRITE = auto()
    REDELIVERY = auto()
    UNKNOWN_VALUE = auto()


class Anomaly(NamedTuple):
    """One anomaly, and the records that show it."""

    kind: AnomalyKind
    detail: str


class _Sender(NamedTuple):
    transaction: ClientTransaction
    record: SentRecord


_Records = dict[HistoryPlace, dict[int, str]]
"""The values by partition and offset."""


def check_history(history: History) -> list[Anomaly]:
    """Return all anomalies of a history."""
    senders = {
        record.value: _Sender(transaction, record)
        for transaction in history.transactions
        for record in transaction.sends
    }
    seen = _seen(history)
    return [
        *_inconsistent_offsets(history, seen),
        *_wrong_values(history, senders, seen),
        *_wrong_ends(history),
        *_duplicates(history, senders),
        *_wrong_polls(history),
        *_redeliveries(history),
    ]


def _seen(history: History) -> _Records:
    """Return what readers have read. Where they disagree, the full read counts, then the first poll."""
    seen: _Records = {place: dict(records) for place, records in history.contents.items()}
    for poll in history.polls:
        values = seen.setdefault(poll.place, {})
        for offset, value in poll.records:
            values.setdefault(offset, value)
    return seen


def _inconsistent_offsets(history: History, seen: _Records) -> Iterator[Anomaly]:
    for poll in history.polls:
        for offset, value in poll.records:
            if seen[poll.place][offset] != value:
                yield Anomaly(
                    AnomalyKind.INCONSISTENT_OFFSET,
                    f"{poll.place} offset {offset} was {value} for {poll.reader}, and is {seen[poll.place][offset]}",
                )
    for transaction in history.transactions:
        for record in transaction.sends:
            found = seen.get(record.place, {}).get(record.offset) if record.offset is not None else None
            if found not in (None, record.value):
                yield Anomaly(
                    AnomalyKind.INCONSISTENT_OFFSET,
                    f"{record.value} was acknowledged at {record.place} offset {record.offset}, which holds {found}",
                )


def _wrong_values(history: History, senders: Mapping[str, _Sender], seen: _Records) -> Iterator[Anomaly]:
    """Yield the anomalies of values that should not have been read, or not that early."""
    first_read_at: dict[str, float] = {}
    for poll in history.polls:
        for _, value in poll.records:
            first_read_at[value] = min(poll.at, first_read_at.get(value, poll.at))
    successors = _Successors(history.initializations)
    for place, values in seen.items():
        for offset, value in values.items():
            sender = senders.get(value)
            kind = AnomalyKind.UNKNOWN_VALUE if sender is None else _wrong(sender, first_read_at.get(value), successors)
            if kind is not None:
                yield Anomaly(kind, f"{value} at {place} offset {offset}: {sender}")


def _wrong(sender: _Sender, read_at: float | None, successors: "_Successors") -> AnomalyKind | None:
    transaction = sender.transaction
    if successors.had_id_before(transaction, sender.record.sent_at):
        return AnomalyKind.ZOMBIE_WRITE
    if transaction.outcome in (KnownOutcome.ABORTED, KnownOutcome.NOT_ASKED):
        return AnomalyKind.ABORTED_READ
    if read_at is not None and (transaction.asked_at is None or read_at < transaction.asked_at):
        return AnomalyKind.INTERMEDIATE_READ
    return None


class _Successors:
    """The processes that had each transactional id, in the order in which they got it."""

    def __init__(self, initializations: Sequence[Initialization]) -> None:
        self._of: dict[str, list[Initialization]] = defaultdict(list)
        for initialization in initializations:
            self._of[initialization.transactional_id].append(initialization)

    def had_id_before(self, transaction: ClientTransaction, time: float) -> bool:
        """Return whether another process received the id before a time, and had asked for it after the transaction's
        process received it.
        """
        all_of_id = self._of[transaction.transactional_id]
        own = [item.at for item in all_of_id if item.process == transaction.process and item.at <= time]
        since = max(own, default=None)
        return since is not None and any(
            item.process != transaction.process and item.asked_at > since and item.at < time for item in all_of_id
        )


def _wrong_ends(history: History) -> Iterator[Anomaly]:
    """Yield the anomalies of values that should be there in the end."""
    present = {value for records in history.contents.values() for _, value in records}
    for transaction in history.transactions:
        missing = [record.value for record in transaction.sends if record.value not in present]
        if missing and transaction.outcome is KnownOutcome.COMMITTED:
            yield Anomaly(AnomalyKind.LOST_WRITE, f"{missing} of {transaction}")
        elif transaction.outcome is KnownOutcome.UNKNOWN and 0 < len(missing) < len(transaction.sends):
            yield Anomaly(AnomalyKind.TORN_READ, f"{missing} of {transaction}")
    gone = {
        record.value
        for transaction in history.transactions
        if transaction.outcome is KnownOutcome.UNKNOWN
        and not any(record.value in present for record in transaction.sends)
        for record in transaction.sends
    }
    for poll in history.polls:
        for offset, value in poll.records:
            if value in gone:
                yield Anomaly(AnomalyKind.LOST_WRITE, f"{value} was read at {poll.place} offset {offset}, and is gone")


def _duplicates(history: History, senders: Mapping[str, _Sender]) -> Iterator[Anomaly]:
    places: dict[str, tuple[HistoryPlace, int]] = {}
    results: dict[tuple[str, SourceRecord], str] = {}
    for place, records in history.contents.items():
        for offset, value in records:
            before = places.setdefault(value, (place, offset))
            if before != (place, offset):
                yield Anomaly(AnomalyKind.DUPLICATE, f"{value} is at {before} and {(place, offset)}")
                continue
            sender = senders.get(value)
            if sender is not None and sender.record.source is not None:
                other = results.setdefault((place.topic, sender.record.source), value)
                if other != value:
                    yield Anomaly(AnomalyKind.DUPLICATE, f"{other} and {value} result from {sender.record.source}")


def _wrong_polls(history: History) -> Iterator[Anomaly]:
    final = {place: sorted(offset for offset, _ in records) for place, records in history.contents.items()}
    positions: dict[tuple[str, HistoryPlace], int] = {}
    for poll in history.polls:
        if poll.is_new_position:
            positions.pop((poll.reader, poll.place), None)
        for offset, value in poll.records:
            before = positions.get((poll.reader, poll.place))
            positions[poll.reader, poll.place] = offset
            if before is None:
                continue
            detail = f"{poll.reader} got {value} at {poll.place} offset {offset} after {before}"
            offsets = final.get(poll.place, [])
            following = bisect_right(offsets, before)
            if offset <= before:
                yield Anomaly(AnomalyKind.NON_MONOTONIC_POLL, detail)
            elif following < len(offsets) and offsets[following] < offset:
                yield Anomaly(AnomalyKind.SKIPPING_POLL, f"{detail}, without {offsets[following]}")


def _redeliveries(history: History) -> Iterator[Anomaly]:
    settled_at: dict[SourceRecord, float] = {}
    for transaction in history.transactions:
        if transaction.outcome is KnownOutcome.COMMITTED and transaction.ended_at is not None:
            for source in transaction.settled:
                settled_at[source] = min(transaction.ended_at, settled_at.get(source, transaction.ended_at))
    for delivery in history.deliveries:
        if delivery.source in settled_at and delivery.asked_at > settled_at[delivery.source]:
            yield Anomaly(AnomalyKind.REDELIVERY, f"{delivery} after its settlement was committed")
