"""A compacted log with transactions is a dict of committed records: whatever is aborted, compacted, cut and recovered.

The model is the list of all batches and markers; compaction never changes it. Consumers of committed records skip
aborted ones as Kafka's clients do. PROPERTY_EXAMPLES in the environment says how many stories are told; 60 by default.
"""

import os
from dataclasses import dataclass, field
from random import Random
from typing import Literal

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from conveyor.kernel.errors import StorageFailure
from conveyor.log.aborted_search import aborted_between
from conveyor.log.compaction.key_compaction import compact
from conveyor.log.log import Log
from conveyor.log.producers.producer_state import ProducerState
from conveyor.records import compression
from conveyor.records.batch import TRANSACTIONAL, iterate_batches
from conveyor.records.checked_batch import own_batch
from conveyor.records.record import Record, decode_records, encode_batch
from conveyor.records.transaction_marker import TransactionMarker, encode_marker, is_marker
from conveyor.settings.tree import TopicSettings
from conveyor.testing import MemoryDisk
from tests.unit.log.logs import DIRECTORY, NOW_MS, all_below, flush, open_topic_log
from tests.unit.log.power_switch import PowerSwitch

EXAMPLES = int(os.environ.get("PROPERTY_EXAMPLES", "60"))
pytestmark = pytest.mark.timeout(max(600, EXAMPLES))
SEEDS = st.integers(0, 2**32 - 1)
PRODUCERS = st.integers(0, 3)
"""0 is a plain producer, 3 an idempotent one without transactions."""
KEYS = st.sampled_from([b"a", b"b", b"a key that is longer than a digest"])
RECORDS = st.lists(st.tuples(KEYS, st.booleans()), min_size=1, max_size=3)
HORIZON_MS = 50


@dataclass(frozen=True, slots=True)
class Event:
    """A batch with its records, or a marker."""

    producer_id: int
    epoch: int
    first: int
    next: int
    sequence: int = -1
    records: tuple[tuple[int, bytes, bytes | None], ...] = ()
    commits: bool | None = None
    """Of a marker."""


@dataclass(slots=True)
class Transaction:
    """A transaction and its batches. ended_at: the offset of its marker."""

    first: int
    batches: list[Event] = field(default_factory=list)
    ended_at: int | None = None
    commits: bool = False


@dataclass(slots=True)
class Producer:
    """The epoch and the next sequence of a producer, and its open transaction."""

    epoch: int = 0
    due: int = 0
    opened: Transaction | None = None


@dataclass(frozen=True, slots=True)
class Fold:
    """What all events add up to. records: those that are committed, with no transaction undecided."""

    producers: dict[int, Producer]
    transactions: list[Transaction]
    stable_offset: int
    records: dict[int, tuple[bytes, bytes | None]]


class CompactedTransactions(RuleBasedStateMachine):
    """The log under test, and the list of its batches."""

    def __init__(self) -> None:
        super().__init__()
        self.disk = MemoryDisk()
        self.events: list[Event] = []
        self.high_watermark = 0
        self.now_ms = NOW_MS
        self.first_cleaned_ms: dict[int, int] = {}
        self.trimmed = False

    @initialize(segment_bytes=st.sampled_from([160, 400, 1500]))
    def begin(self, segment_bytes: int) -> None:
        self.topic = TopicSettings(
            segment_bytes=segment_bytes, cleanup_policy="compact,delete", delete_retention_ms=HORIZON_MS,
            min_cleanable_dirty_ratio=0, index_interval_bytes=0,
        )  # fmt: skip
        self.log: Log = open_topic_log(self.disk, self.topic)

    @rule(records=RECORDS, producer_id=PRODUCERS, codec=st.sampled_from([compression.NONE, compression.ZSTD]))
    def append(self, records: list[tuple[bytes, bool]], producer_id: int, codec: int = compression.NONE) -> None:
        producer = self.fold().producers.get(producer_id, Producer())
        first = self.log.log_end_offset
        made = tuple(
            (first + number, key, None if is_tombstone else b"%d" % (first + number))
            for number, (key, is_tombstone) in enumerate(records)
        )
        batch = Event(producer_id, producer.epoch, first, first + len(made), producer.due, made)
        info = self.log.append(own_batch(encoded(batch, codec)), 0, self.now_ms)
        assert (info.first_offset, info.duplicate) == (first, False)
        self.events.append(batch)

    @rule(producer_id=st.integers(1, 2), version=st.integers(1, 2), commits=st.booleans())
    def end(self, producer_id: int, version: int, commits: bool) -> None:
        epoch = self.fold().producers.get(producer_id, Producer()).epoch + version - 1
        marker = TransactionMarker(producer_id=producer_id, producer_epoch=epoch, coordinator_epoch=0, commits=commits)
        if self.log.producers.check_marker(marker, version):
            info = self.log.append(own_batch(encode_marker(marker, self.now_ms)), 0, self.now_ms)
            self.events.append(Event(producer_id, epoch, info.first_offset, info.last_offset + 1, commits=commits))

    @rule(steps=st.lists(st.tuples(st.integers(1, 2), KEYS, st.integers(0, 4)), min_size=4, max_size=12))
    def run_transactions(self, steps: list[tuple[int, bytes, int]]) -> None:
        for producer_id, key, what in steps:
            if what < 3:
                self.append([(key, what == 0)], producer_id)
            else:
                self.end(producer_id, what - 2, len(key) == 1)
        self.commit(1)

    @rule(max_keys=st.sampled_from([1, 2, 100, 100]), commits=st.booleans())
    def end_all_and_compact(self, max_keys: int, commits: bool) -> None:
        """Compact everything twice, so that markers may go. The last record is in an active segment."""
        for producer_id in (1, 2):
            self.end(producer_id, 1 + commits, commits)
        for _ in range(2):
            self.append([(b"b", False)] * 3, 0)
            self.commit(1)
            self.compact_log(max_keys, False)
            self.committed_records_are_those_of_the_model()
            self.now_ms += HORIZON_MS + 1

    @rule(place=st.floats(0, 1))
    def commit(self, place: float) -> None:
        flush(self.log)
        reached = self.high_watermark + round(place * (self.log.flushes.flushed_offset - self.high_watermark))
        self.high_watermark = max((event.next for event in self.events if event.next <= reached), default=0)
        self.log.producers.transactions.forget_decided(self.high_watermark)

    @rule(
        max_keys=st.sampled_from([1, 2, 100, 100]),
        interrupted_by=st.none() | st.tuples(st.integers(0, 40), SEEDS),
        truncates=st.sampled_from([False, False, True]),
    )  # fmt: skip
    def compact(self, max_keys: int, interrupted_by: tuple[int, int] | None, truncates: bool) -> None:
        """interrupted_by: the disk fails after so many operations, and then the power is cut."""
        if interrupted_by is None:
            return self.compact_log(max_keys, truncates)
        try:
            with PowerSwitch(self.disk, interrupted_by[0]):
                self.compact_log(max_keys, truncates)
        except StorageFailure as failure:
            if "was interrupted" not in str(failure):
                raise
            self.log.abandon()
            self.disk = self.disk.power_cut(Random(interrupted_by[1]))
            self.reopen()

    @rule(place=st.floats(0, 1))
    def truncate(self, place: float) -> None:
        """What a follower does when another leader is elected: it keeps what is below the high watermark."""
        end = self.high_watermark + round(place * (self.log.log_end_offset - self.high_watermark))
        self.log.truncation.truncate_to(end)
        job = self.log.truncation.begin(self.now_ms)
        if job is not None:
            self.log.truncation.complete(job, job.run())
        self.cut()

    @precondition(lambda self: self.log.compaction.cleaned_offset > 0)
    @rule(place=st.floats(0, 1))
    def trim(self, place: float) -> None:
        """DeleteRecords, up to the high watermark: beyond the last stable offset, too."""
        self.log.start.trim(round(place * self.high_watermark)).run()
        self.log.start.complete_trim()
        self.trimmed |= self.log.log_start_offset > 0

    @rule(ms=st.sampled_from([1, HORIZON_MS + 1]))
    def wait(self, ms: int) -> None:
        self.now_ms += ms

    @rule(
        how=st.sampled_from(["stop", "kill", "power cut"]), damages=st.sampled_from(["", "txnindex", "producers"]),
        seed=SEEDS,
    )  # fmt: skip
    def restart(self, how: Literal["stop", "kill", "power cut"], damages: str, seed: int) -> None:
        if how == "stop":
            self.log.close()
        elif how == "power cut":
            self.disk = self.disk.power_cut(Random(seed))
        self.damage(damages)
        self.reopen()

    @invariant()
    def first_unstable_offset_is_that_of_the_model(self) -> None:
        found = self.log.producers.transactions.first_unstable_offset(self.high_watermark)
        assert min([self.high_watermark, *([] if found is None else [found])]) == self.fold().stable_offset

    @invariant()
    def committed_records_are_those_of_the_model(self) -> None:
        self.check_committed(self.log)

    @invariant()
    def uncompacted_records_are_all_there(self) -> None:
        """Those of open and undecided transactions among them."""
        written = {record[0]: record[1:] for event in self.events for record in event.records}
        found = {record.offset: (record.key, record.value) for record in stored(self.log)}
        assert found.items() <= written.items()
        start = max(self.log.compaction.cleaned_offset, self.log.log_start_offset)
        assert [offset for offset in written if offset >= start] == [offset for offset in found if offset >= start]

    @precondition(lambda self: not self.trimmed)
    @invariant()
    def new_replica_learns_all_of_it(self) -> None:
        """It copies the log byte for byte."""
        replica = open_topic_log(MemoryDisk(), self.topic)
        job = replica.copying.allow_gaps(self.log.compaction.cleaned_offset)
        if job is not None:
            job.run()
            replica.copying.complete_gaps(job)
        self.log.write()
        for segment in self.log.segments.all:
            content = segment.file.read(0, segment.size)
            while content:
                content = content[replica.copying.append(content, 0, self.now_ms).taken_bytes :]
        replica.write()
        replica.producers.transactions.forget_decided(self.high_watermark)
        unstable = replica.producers.transactions.first_unstable_offset(self.high_watermark)
        assert unstable == self.log.producers.transactions.first_unstable_offset(self.high_watermark)
        assert dues(replica.producers) == dues(self.log.producers)
        self.check_committed(replica)

    def check_committed(self, log: Log) -> None:
        fold = self.fold()
        read = {record.offset: (record.key, record.value) for record in committed(log, fold.stable_offset)}
        assert read.items() <= fold.records.items()
        last = {key: offset for offset, (key, _) in fold.records.items() if offset >= log.log_start_offset}
        for offset in last.values():
            assert offset in read or (fold.records[offset][1] is None and self.may_be_gone(offset))

    def may_be_gone(self, tombstone: int) -> bool:
        """Only if a compaction that came late enough after a first one has seen it."""
        seen_ms = self.first_cleaned_ms.get(tombstone)
        return seen_ms is not None and self.now_ms >= seen_ms + HORIZON_MS

    def compact_log(self, max_keys: int, truncates: bool) -> None:
        plan = self.log.compaction.plan(all_below(self.high_watermark), self.now_ms, max_keys)
        if plan is None:
            return
        assert plan.segments[-1].next_offset <= self.fold().stable_offset
        result = compact(self.disk, plan)
        for offset in range(plan.segments[-1].next_offset):
            self.first_cleaned_ms.setdefault(offset, self.now_ms)
        if truncates:
            self.truncate(0)
        job = self.log.compaction.begin_swap(result)
        if job is None:
            return self.log.compaction.discard([cleaned.base_offset for cleaned in result.cleaned])
        self.log.compaction.complete_swap(result, job.run())
        assert result.cleaned_offset > plan.first_dirty_offset, "each compaction gets on"
        keys = [record.key for record in stored(self.log) if record.offset < result.cleaned_offset]
        assert len(keys) == len(set(keys)), "of each key one record is left, and no aborted one"

    def fold(self) -> Fold:
        producers: dict[int, Producer] = {}
        transactions: list[Transaction] = []
        for event in self.events:
            producer = producers.setdefault(event.producer_id, Producer(epoch=event.epoch))
            if event.commits is None:
                producer.due = event.sequence + event.next - event.first
                if event.producer_id in (1, 2):
                    if producer.opened is None:
                        producer.opened = Transaction(event.first)
                        transactions.append(producer.opened)
                    producer.opened.batches.append(event)
                continue
            if event.epoch > producer.epoch:
                producer.epoch, producer.due = event.epoch, 0
            if producer.opened is not None:
                producer.opened.ended_at, producer.opened.commits = event.first, event.commits
                producer.opened = None
        unstable = [
            each.first for each in transactions if each.ended_at is None or each.ended_at >= self.high_watermark
        ]
        stable_offset = min([self.high_watermark, *unstable])
        hidden = {batch.first for each in transactions if not each.commits for batch in each.batches}
        records = {
            offset: (key, value)
            for event in self.events
            if event.first not in hidden
            for offset, key, value in event.records
            if offset < stable_offset
        }
        return Fold(producers, transactions, stable_offset, records)

    def damage(self, suffix: str) -> None:
        """Change every such file. After deletions, snapshots are the only source of what was deleted."""
        if not suffix or (suffix == "producers" and self.trimmed):
            return
        for name in self.disk.list(DIRECTORY):
            if name.endswith(f".{suffix}"):
                content = bytearray(self.disk.read(f"{DIRECTORY}/{name}"))
                content[-1:] = b"!" if content[-1:] != b"!" else b"?"
                self.disk.write_atomic(f"{DIRECTORY}/{name}", bytes(content))

    def reopen(self) -> None:
        self.log = open_topic_log(self.disk, self.topic, now_ms=self.now_ms)
        self.cut()

    def cut(self) -> None:
        end = self.log.log_end_offset
        self.events = [event for event in self.events if event.next <= end]
        assert end == (self.events[-1].next if self.events else 0)
        assert end >= self.high_watermark


def encoded(batch: Event, codec: int) -> bytes:
    return encode_batch(
        [(NOW_MS, key, value, ()) for _, key, value in batch.records],
        codec=codec,
        attributes=TRANSACTIONAL if batch.producer_id in (1, 2) else 0,
        producer_id=batch.producer_id or -1, producer_epoch=batch.epoch if batch.producer_id else -1,
        base_sequence=batch.sequence if batch.producer_id else -1,
    )  # fmt: skip


def stored(log: Log) -> list[Record]:
    """All records, also those that are not written to the file yet."""
    log.write()
    records: list[Record] = []
    for segment in log.segments.all:
        content = segment.file.read(0, segment.size)
        for position, header in iterate_batches(content):
            batch = content[position : position + header.size]
            if not is_marker(header):
                records += [each for each in decode_records(batch) if each.offset >= log.log_start_offset]
    return records


def committed(log: Log, stable_offset: int) -> list[Record]:
    """What a consumer of committed records sees that starts at the beginning."""
    records: list[Record] = []
    offset: int = log.log_start_offset
    log.write()
    while offset < stable_offset:
        found = log.read(offset, 200, stable_offset, at_least_one=True)
        if found is None:
            break
        content = found.file.read(found.position, found.length)
        headers = list(iterate_batches(content))
        waiting = sorted(
            aborted_between(log.segments.all, offset, headers[-1][1].next_offset),
            key=lambda each: each.first_offset,
        )
        aborting: set[int] = set()
        for position, header in headers:
            while waiting and waiting[0].first_offset < header.next_offset:
                aborting.add(waiting.pop(0).producer_id)
            if is_marker(header):
                aborting.discard(header.producer_id)
            elif not (header.attributes & TRANSACTIONAL and header.producer_id in aborting):
                batch = decode_records(content[position : position + header.size])
                records += [each for each in batch if each.offset >= offset]
            offset = header.next_offset
    return records


def dues(producers: ProducerState) -> dict[int, tuple[int, int]]:
    """The epoch and the last sequence of each producer, -1 if its epoch has no batch yet."""
    entries = producers.entries()
    return {
        producer_id: (producer.epoch, producer.batches[-1].last_sequence if producer.batches else -1)
        for producer_id, producer in zip(entries.producer_ids, entries.producers, strict=True)
    }


TestCompactedTransactions = CompactedTransactions.TestCase
TestCompactedTransactions.settings = settings(
    max_examples=EXAMPLES, stateful_step_count=30, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
