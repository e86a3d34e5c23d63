"""Transactions in a log are what a fold over its batches says: whatever is rolled, truncated, damaged and recovered.

The model is the list of all batches and markers. PROPERTY_EXAMPLES in the environment says how many stories are told;
60 by default.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Literal

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from conveyor.kernel.errors import ErrorKind, RequestError, StorageFailure
from conveyor.log.aborted_search import aborted_between
from conveyor.log.log import Log
from conveyor.log.producers.producer_state import REMEMBERED_BATCHES
from conveyor.records.batch import TRANSACTIONAL
from conveyor.records.checked_batch import own_batch
from conveyor.records.record import encode_batch
from conveyor.records.transaction_marker import TransactionMarker, encode_marker
from conveyor.settings.tree import ProducerSettings, TopicSettings
from conveyor.testing import MemoryDisk
from tests.unit.log.logs import DIRECTORY, NOW_MS, flush, open_topic_log
from tests.unit.log.power_switch import PowerSwitch

EXAMPLES = int(os.environ.get("PROPERTY_EXAMPLES", "60"))
pytestmark = pytest.mark.timeout(max(600, EXAMPLES))
SEEDS = st.integers(0, 2**32 - 1)
PRODUCERS = st.integers(1, 3)
EXPIRATION_MS = ProducerSettings().producer_id_expiration_ms


@dataclass(frozen=True, slots=True)
class Event:
    """A batch or a marker of the model."""

    producer_id: int
    epoch: int
    first: int
    next: int
    at_ms: int
    sequence: int = -1
    transactional: bool = False
    commits: bool | None = None
    """Of a marker."""
    coordinator_epoch: int = -1


@dataclass(slots=True)
class Producer:
    """What the batches of a producer add up to."""

    epoch: int = -1
    batches: list[Event] = field(default_factory=list)
    coordinator_epoch: int = -1
    opened: int | None = None

    @property
    def due(self) -> int:
        last = self.batches[-1] if self.batches else None
        return 0 if last is None else last.sequence + last.next - last.first


@dataclass(frozen=True, slots=True)
class Ended:
    """A transaction with records, and its marker."""

    producer_id: int
    first: int
    last: int
    commits: bool


class TransactionsAreAFold(RuleBasedStateMachine):
    """The log under test, and the list of its batches."""

    def __init__(self) -> None:
        super().__init__()
        self.disk = MemoryDisk()
        self.events: list[Event] = []
        self.flushed = self.high_watermark = 0
        self.now_ms = NOW_MS
        self.expired_at: int | None = None
        self.trimmed = False

    @initialize(segment_bytes=st.sampled_from([160, 400, 1 << 20]), index_interval_bytes=st.sampled_from([0, 4096]))
    def begin(self, segment_bytes: int, index_interval_bytes: int) -> None:
        self.topic = TopicSettings(segment_bytes=segment_bytes, index_interval_bytes=index_interval_bytes)
        self.log: Log = open_topic_log(self.disk, self.topic)

    @rule(
        producer_id=PRODUCERS,
        count=st.integers(1, 3),
        transactional=st.sampled_from([True, True, True, False]),
        epoch=st.sampled_from([0, 0, 0, 0, 1, -1]),
        gap=st.sampled_from([0, 0, 0, 0, 1]),
    )
    def append(self, producer_id: int, count: int, transactional: bool, epoch: int, gap: int) -> None:
        producer = self.fold()[0].get(producer_id, Producer(epoch=0))
        if self.is_unsure(producer_id):
            epoch, gap = 1, 0
        new_epoch = max(0, producer.epoch + epoch)
        batch = Event(
            producer_id, new_epoch, self.log.log_end_offset, self.log.log_end_offset + count, self.now_ms,
            (producer.due if new_epoch == producer.epoch else 0) + gap, transactional,
        )  # fmt: skip
        answer = self.expected_answer(batch)
        if answer is None:
            info = self.log.append(own_batch(encoded(batch)), 0, self.now_ms)
            assert (info.first_offset, info.duplicate) == (batch.first, False)
            self.events.append(batch)
        else:
            with pytest.raises(RequestError) as refused:
                self.log.append(own_batch(encoded(batch)), 0, self.now_ms)
            assert refused.value.kind is answer

    @rule(
        steps=st.lists(
            st.tuples(PRODUCERS, st.sampled_from(["batch", "batch", "abort", "commit"]), st.sampled_from([1, 2])),
            min_size=3, max_size=10,
        )
    )  # fmt: skip
    def run_transactions(self, steps: list[tuple[int, str, int]]) -> None:
        """What well-behaved producers and coordinators do."""
        for producer_id, what, version in steps:
            if what == "batch":
                self.append(producer_id, 1, True, 0, 0)
            else:
                self.end(producer_id, version, version - 1, 0, what == "commit")

    @rule(producer_id=PRODUCERS, back=st.integers(1, REMEMBERED_BATCHES))
    def append_again(self, producer_id: int, back: int) -> None:
        producer = self.fold()[0].get(producer_id, Producer())
        if back <= len(producer.batches) and not self.is_unsure(producer_id):
            earlier = producer.batches[-back]
            info = self.log.append(own_batch(encoded(earlier)), 0, self.now_ms)
            assert (info.first_offset, info.duplicate) == (earlier.first, True)

    @rule(count=st.integers(1, 3))
    def append_plain(self, count: int) -> None:
        end = self.log.log_end_offset
        self.log.append(own_batch(encode_batch([(self.now_ms, None, b"v", ())] * count)), 0, self.now_ms)
        self.events.append(Event(-1, -1, end, end + count, self.now_ms))

    @rule(
        producer_id=PRODUCERS,
        version=st.sampled_from([1, 2, 2]),
        epoch=st.sampled_from([0, 0, 1, 1, 1, -1]),
        coordinator=st.sampled_from([0, 0, 0, 1, -1]),
        commits=st.booleans(),
    )
    def end(self, producer_id: int, version: int, epoch: int, coordinator: int, commits: bool) -> None:
        producer = self.fold()[0].get(producer_id)
        known = producer or Producer(epoch=0)
        if self.is_unsure(producer_id):
            epoch = 1
        if self.expired_at is not None:
            coordinator = max(0, coordinator)
        marker = TransactionMarker(
            producer_id=producer_id, producer_epoch=max(0, known.epoch + epoch),
            coordinator_epoch=max(0, known.coordinator_epoch + coordinator), commits=commits,
        )  # fmt: skip
        answer = expected_answer_to_marker(marker, producer, version)
        if isinstance(answer, ErrorKind):
            with pytest.raises(RequestError) as refused:
                self.log.producers.check_marker(marker, version)
            assert refused.value.kind is answer
            return
        assert self.log.producers.check_marker(marker, version) == answer
        if answer:
            info = self.log.append(own_batch(encode_marker(marker, self.now_ms)), 0, self.now_ms)
            self.events.append(Event(
                producer_id, marker.producer_epoch, info.first_offset, info.last_offset + 1, self.now_ms,
                commits=commits, coordinator_epoch=marker.coordinator_epoch,
            ))  # fmt: skip
            assert not self.log.producers.check_marker(marker, version), "a repeated marker is not appended"

    @rule(place=st.floats(0, 1))
    def commit(self, place: float) -> None:
        flush(self.log)
        self.flushed = self.log.flushes.flushed_offset
        self.high_watermark += round(place * (self.flushed - self.high_watermark))
        self.log.producers.transactions.forget_decided(self.high_watermark)

    @rule()
    def flush(self) -> None:
        flush(self.log)
        self.flushed = self.log.flushes.flushed_offset

    @precondition(lambda self: not self.trimmed)
    @rule(place=st.floats(0, 1))
    def truncate(self, place: float) -> None:
        self.log.truncation.truncate_to(round(place * self.log.log_end_offset))
        job = self.log.truncation.begin(self.now_ms)
        if job is not None:
            self.log.truncation.complete(job, job.run())
        self.cut(self.log.log_end_offset)

    @rule(place=st.floats(0, 1))
    def trim(self, place: float) -> None:
        """DeleteRecords, up to the high watermark: beyond the last stable offset, too."""
        self.log.start.trim(round(place * self.high_watermark)).run()
        self.trimmed = True

    @rule()
    def expire(self) -> None:
        self.now_ms += EXPIRATION_MS + 1
        self.log.producers.expire(self.now_ms)
        self.expired_at = self.now_ms

    @rule(seed=SEEDS, damages=st.sampled_from(["", "", "txnindex", "producers"]))
    def stop_and_start(self, seed: int, damages: str) -> None:
        self.log.close()
        self.flushed = self.log.log_end_offset
        self.damage(damages, Random(seed))
        self.reopen()

    @rule(
        seed=SEEDS, how=st.sampled_from(["kill", "power cut"]), damages=st.sampled_from(["", "txnindex", "producers"])
    )
    def crash(self, seed: int, how: Literal["kill", "power cut"], damages: str) -> None:
        if how == "power cut":
            self.disk = self.disk.power_cut(Random(seed))
        self.damage(damages, Random(seed))
        flushed = self.flushed
        self.reopen()
        assert self.log.log_end_offset >= flushed

    @precondition(lambda self: not self.trimmed)
    @rule(place=st.floats(0, 1), operations=st.integers(0, 25), seed=st.none() | SEEDS)
    def fail_while_truncating(self, place: float, operations: int, seed: int | None) -> None:
        """A disk that fails in the middle of a truncation; then a new start, or a power cut as well."""
        end = round(place * self.log.log_end_offset)
        self.log.truncation.truncate_to(end)
        job = self.log.truncation.begin(self.now_ms)
        if job is None:
            return self.cut(self.log.log_end_offset)
        self.flushed = min(self.flushed, self.log.log_end_offset)
        self.fail(operations, seed, lambda: self.log.truncation.complete(job, job.run()))

    @rule(operations=st.integers(0, 15), seed=st.none() | SEEDS)
    def fail_while_closing(self, operations: int, seed: int | None) -> None:
        self.fail(operations, seed, self.log.close)

    @rule(operations=st.integers(0, 25), seed=st.none() | SEEDS)
    def fail_while_recovering(self, operations: int, seed: int | None) -> None:
        self.log.abandon()
        if seed is not None:
            self.disk = self.disk.power_cut(Random(seed))
        self.fail(operations, seed, lambda: open_topic_log(self.disk, self.topic, now_ms=self.now_ms).abandon())

    def fail(self, operations: int, seed: int | None, action: Callable[[], None]) -> None:
        """Do something until the disk fails, and start again."""
        try:
            with PowerSwitch(self.disk, operations):
                action()
        except StorageFailure as failure:
            if "was interrupted" not in str(failure):
                raise
        self.log.abandon()
        if seed is not None:
            self.disk = self.disk.power_cut(Random(seed))
        flushed = self.flushed
        self.reopen()
        assert self.log.log_end_offset >= flushed

    @invariant()
    def first_unstable_offset_is_that_of_the_model(self) -> None:
        producers, ended = self.fold()
        firsts = [producer.opened for producer in producers.values() if producer.opened is not None]
        firsts += [each.first for each in ended if each.last >= self.high_watermark]
        found = self.log.producers.transactions.first_unstable_offset(self.high_watermark)
        assert found == min(firsts, default=None)

    @invariant()
    def aborted_transactions_are_those_of_the_model(self) -> None:
        aborted = [each for each in self.fold()[1] if not each.commits]
        start, end = self.log.log_start_offset, self.log.log_end_offset
        middle = (start + end) // 2
        for offset, limit in ((start, end), (start, middle), (middle, end), (middle, middle + 1)):
            found = [each[:3] for each in aborted_between(self.log.segments.all, offset, limit)]
            wanted = [(each.producer_id, each.first, each.last) for each in aborted]
            if not self.trimmed:
                assert found == [each for each in wanted if each[2] >= offset and each[1] < limit]
            for event in self.events:
                if event.transactional and offset <= event.first and event.next <= limit:
                    assert skips(found, event) == skips(wanted, event)

    def fold(self) -> tuple[dict[int, Producer], list[Ended]]:
        """The producers, and the transactions that have ended, in the order of their markers."""
        producers: dict[int, Producer] = {}
        ended: list[Ended] = []
        for event in self.events:
            if event.producer_id < 0:
                continue
            producer = producers.setdefault(event.producer_id, Producer(epoch=event.epoch))
            if event.epoch > producer.epoch:
                producer.batches = []
            producer.epoch = event.epoch
            if event.commits is None:
                producer.batches = [*producer.batches, event][-REMEMBERED_BATCHES:]
                if event.transactional and producer.opened is None:
                    producer.opened = event.first
                continue
            producer.coordinator_epoch = event.coordinator_epoch
            if producer.opened is not None:
                ended.append(Ended(event.producer_id, producer.opened, event.first, event.commits))
            producer.opened = None
        return producers, ended

    def is_unsure(self, producer_id: int) -> bool:
        """Whether the log may have forgotten a producer, or have found it again when it read old batches."""
        producer = self.fold()[0].get(producer_id)
        if self.expired_at is None or producer is None or producer.opened is not None:
            return False
        return max(each.at_ms for each in self.events if each.producer_id == producer_id) < self.expired_at

    def expected_answer(self, batch: Event) -> ErrorKind | None:
        """Why a batch, which repeats no other, is refused; None if it is appended."""
        producer = self.fold()[0].get(batch.producer_id)
        if producer is None:
            return None
        if batch.epoch < producer.epoch:
            return ErrorKind.INVALID_PRODUCER_EPOCH
        if batch.sequence != (producer.due if batch.epoch == producer.epoch else 0):
            return ErrorKind.OUT_OF_ORDER_SEQUENCE
        if producer.opened is None:
            return None
        if not batch.transactional:
            return ErrorKind.INVALID_TXN_STATE
        return None if batch.epoch == producer.epoch else ErrorKind.CONCURRENT_TRANSACTIONS

    def damage(self, suffix: str, random: Random) -> None:
        """Remove, cut or change one file. After deletions, snapshots are the only source of what was deleted."""
        names = [name for name in self.disk.list(DIRECTORY) if suffix and name.endswith(f".{suffix}")]
        if not names or (suffix == "producers" and self.trimmed):
            return
        path = f"{DIRECTORY}/{random.choice(names)}"
        content = bytearray(self.disk.read(path))
        if not content:
            return
        content[random.randrange(len(content))] ^= 1
        how = random.randrange(3)
        if how == 0:
            self.disk.remove(path)
        else:
            self.disk.write_atomic(path, bytes(content if how == 1 else content[: random.randrange(len(content))]))

    def reopen(self) -> None:
        self.log = open_topic_log(self.disk, self.topic, now_ms=self.now_ms)
        self.cut(self.log.log_end_offset)
        self.flushed = self.log.log_end_offset

    def cut(self, end: int) -> None:
        self.events = [each for each in self.events if each.next <= end]
        assert end == (self.events[-1].next if self.events else 0)
        self.high_watermark = min(self.high_watermark, end)
        self.flushed = min(self.flushed, end)


def expected_answer_to_marker(
    marker: TransactionMarker, producer: Producer | None, version: int
) -> ErrorKind | bool:  # fmt: skip
    """Why a marker is refused, or whether it is appended."""
    if producer is None:
        return True
    if marker.coordinator_epoch < producer.coordinator_epoch:
        return ErrorKind.TRANSACTION_COORDINATOR_FENCED
    if marker.producer_epoch < producer.epoch:
        return ErrorKind.INVALID_PRODUCER_EPOCH
    if marker.producer_epoch > producer.epoch:
        return True
    if producer.opened is None:
        return False
    return ErrorKind.INVALID_PRODUCER_EPOCH if version == 2 else True


def skips(aborted: list[tuple[int, int, int]], batch: Event) -> bool:
    """Whether a reader of committed records skips a batch."""
    return any(producer_id == batch.producer_id and first <= batch.first < last for producer_id, first, last in aborted)


def encoded(batch: Event) -> bytes:
    return encode_batch(
        [(NOW_MS, None, b"v", ())] * (batch.next - batch.first),
        attributes=TRANSACTIONAL if batch.transactional else 0,
        producer_id=batch.producer_id, producer_epoch=batch.epoch, base_sequence=batch.sequence,
    )  # fmt: skip


TestTransactionsAreAFold = TransactionsAreAFold.TestCase
TestTransactionsAreAFold.settings = settings(
    max_examples=EXAMPLES,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
