"""A log is a list: whatever is appended, flushed, read, crashed and recovered in whatever order.

PROPERTY_EXAMPLES in the environment says how many such stories are told; 400 by default.
"""

import os
from dataclasses import dataclass, replace
from random import Random

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from conveyor.kernel.errors import ErrorKind, RequestError, StorageFailure
from conveyor.log.flush import FlushJob
from conveyor.log.log import Log
from conveyor.log.producers.producer_state import REMEMBERED_BATCHES
from conveyor.log.retention_limits import FOREVER, retained_from
from conveyor.log.segments.lookup import find_newest, find_time
from conveyor.records.checked_batch import own_batch
from conveyor.records.record import encode_batch
from conveyor.settings.tree import TopicSettings
from conveyor.testing import MemoryDisk
from tests.unit.log.logs import NOW_MS, contents, open_topic_log, records_of
from tests.unit.log.power_switch import PowerSwitch

EXAMPLES = int(os.environ.get("PROPERTY_EXAMPLES", "400"))
SEEDS = st.integers(0, 2**32 - 1)
pytestmark = pytest.mark.timeout(max(600, EXAMPLES))
DELAYS_MS = st.lists(st.integers(-30, 30), min_size=1, max_size=3)


@dataclass(frozen=True, slots=True)
class Stored:
    """A batch of the model: where it lies, when its records say they were made, and who sent it."""

    first_offset: int
    times: tuple[int, ...]
    values: tuple[bytes, ...]
    producer_id: int = -1
    epoch: int = -1
    sequence: int = -1

    @property
    def next_offset(self) -> int:
        return self.first_offset + len(self.values)


class LogIsAList(RuleBasedStateMachine):
    """The log under test, and the list of batches that it must be."""

    def __init__(self) -> None:
        super().__init__()
        self.disk = MemoryDisk()
        self.stored: list[Stored] = []
        self.start = self.written = self.flushed = 0
        self.now_ms = NOW_MS
        self.named = 0
        self.job: FlushJob | None = None

    @initialize(
        segment_bytes=st.sampled_from([150, 400, 1 << 20]),
        segment_ms=st.sampled_from([40, 1 << 40]),
        index_interval_bytes=st.sampled_from([0, 100, 4096]),
    )
    def begin(self, segment_bytes: int, segment_ms: int, index_interval_bytes: int) -> None:
        self.topic = TopicSettings(
            segment_bytes=segment_bytes, segment_ms=segment_ms, index_interval_bytes=index_interval_bytes
        )
        self.log: Log = open_topic_log(self.disk, self.topic)

    # What producers and readers do.

    @rule(batches=st.lists(DELAYS_MS, min_size=1, max_size=4), wait_ms=st.integers(0, 30))
    def append(self, batches: list[list[int]], wait_ms: int) -> None:
        self.now_ms += wait_ms
        for delays_ms in batches:
            self.append_new(self.new_batch(delays_ms))

    @rule(
        delays_ms=DELAYS_MS,
        producer_id=st.integers(1, 2),
        epoch=st.sampled_from([0, 0, 0, 0, 1, -1]),
        gap=st.sampled_from([0, 0, 0, 0, 1, -1]),
    )
    def append_idempotent(self, delays_ms: list[int], producer_id: int, epoch: int, gap: int) -> None:
        """epoch, gap: how far from what the log expects."""
        known = self.batches_of(producer_id)
        newest_epoch = known[-1].epoch if known else 0
        expected = known[-1].sequence + len(known[-1].values) if known and epoch == 0 else 0
        batch = self.new_batch(delays_ms, producer_id, max(0, newest_epoch + epoch), max(0, expected + gap))
        answer = self.expected_answer(batch)
        if answer is None:
            self.append_new(batch)
        elif isinstance(answer, Stored):
            self.append_duplicate(answer)
        else:
            with pytest.raises(RequestError) as refused:
                self.log.append(own_batch(encoded(batch)), 0, self.now_ms)
            assert refused.value.kind is answer

    @rule(producer_id=st.integers(1, 2), back=st.integers(1, REMEMBERED_BATCHES))
    def append_again(self, producer_id: int, back: int) -> None:
        known = self.batches_of(producer_id)
        if back <= len(known):
            self.append_duplicate(known[-back])

    @rule(place=st.floats(0, 1), max_bytes=st.sampled_from([0, 1, 100, 200, 1000]), at_least_one=st.booleans())
    def read(self, place: float, max_bytes: int, at_least_one: bool) -> None:
        offset = self.start + round(place * (self.written - self.start))
        found = self.log.read(offset, max_bytes, self.written, at_least_one=at_least_one)
        content = b"" if found is None else found.file.read(found.position, found.length)
        batches = [each for each in self.stored if offset < each.next_offset <= self.written]
        read = records_of(content)
        assert read == flat(batches)[: len(read)]
        assert len(content) <= max_bytes or (at_least_one and len(read) == len(batches[0].values))
        if batches and at_least_one:
            assert read

    @rule(delay_ms=st.integers(-40, 1000))
    def find_by_time(self, delay_ms: int) -> None:
        wanted = [
            (first, at_ms) for first, at_ms in self.readable_times() if at_ms >= NOW_MS + delay_ms
        ]  # fmt: skip
        found = find_time(self.log.segments.all, NOW_MS + delay_ms, self.written)
        assert (None if found is None else (found.offset, found.timestamp_ms)) == (wanted[0] if wanted else None)

    @rule()
    def find_the_newest(self) -> None:
        self.write()
        times = self.readable_times()
        found = find_newest(self.log.segments.all, self.written)
        newest = max(times, key=lambda each: each[1]) if times else None
        assert (None if found is None else (found.offset, found.timestamp_ms)) == newest

    # What the broker does.

    @rule()
    def write(self) -> None:
        self.log.write()
        self.written = self.log.log_end_offset

    @rule()
    def begin_or_complete_flush(self) -> None:
        if self.job is None:
            self.job = self.log.flushes.begin()
            self.job.run()
        else:
            self.complete_flush()

    @rule(place=st.floats(0, 1), interrupted_by=st.none() | st.tuples(st.integers(0, 8), SEEDS))
    def trim(self, place: float, interrupted_by: tuple[int, int] | None) -> None:
        """DeleteRecords, up to what is flushed."""
        self.complete_flush()
        self.let_go(round(place * self.flushed), interrupted_by)

    @rule(kept_bytes=st.sampled_from([0, 300, 1000]), interrupted_by=st.none() | st.tuples(st.integers(0, 8), SEEDS))
    def retain(self, kept_bytes: int, interrupted_by: tuple[int, int] | None) -> None:
        """Retention by size: as many of the oldest segments go as leave that much."""
        self.complete_flush()
        topic = replace(self.topic, retention_bytes=kept_bytes, retention_ms=FOREVER)
        expected, left = self.start, self.log.segments.size_bytes
        for each in self.log.segments.all[:-1]:
            left -= each.size
            if each.sealed and self.start < each.next_offset <= self.flushed and left >= kept_bytes:
                expected = each.next_offset
        offset = retained_from(self.log.segments.all, self.start, topic, self.flushed, self.now_ms)
        assert offset == expected
        self.let_go(offset, interrupted_by)

    @rule()
    def stop_and_start(self) -> None:
        self.complete_flush()
        self.log.close()
        self.written = self.flushed = self.log.log_end_offset
        self.reopen()

    # What goes wrong.

    @rule()
    def kill(self) -> None:
        self.job = None
        self.reopen()

    @rule(seed=SEEDS)
    def cut_power(self, seed: int) -> None:
        self.job = None
        self.disk = self.disk.power_cut(Random(seed))
        self.reopen(self.flushed)

    @rule(operations=st.integers(0, 12), closing=st.booleans(), seed=st.none() | SEEDS)
    def fail_while_flushing(self, operations: int, closing: bool, seed: int | None) -> None:
        """A disk that fails in the middle of a flush or a stop; then a new start, or a power cut as well."""
        self.complete_flush()
        try:
            with PowerSwitch(self.disk, operations):
                self.log.close() if closing else self.flush()
        except StorageFailure:
            self.written = self.log.written_offset
            self.log.abandon()
        else:
            self.written = self.flushed = self.log.written_offset
        if seed is not None:
            self.disk = self.disk.power_cut(Random(seed))
        self.reopen(self.written if seed is None else self.flushed)

    @rule(operations=st.integers(0, 20), seeds=st.tuples(st.none() | SEEDS, st.none() | SEEDS))
    def fail_while_recovering(self, operations: int, seeds: tuple[int | None, int | None]) -> None:
        """A start that does not come to its end, with or without power cuts before and after it."""
        self.job = None
        lowest = self.written
        for number, seed in enumerate(seeds):
            if seed is not None:
                self.disk, lowest = self.disk.power_cut(Random(seed)), self.flushed
            if number == 0:
                self.try_to_open(operations)
        self.reopen(lowest)

    # What must hold.

    @invariant()
    def offsets_are_in_order(self) -> None:
        log = self.log
        assert (log.log_start_offset, log.written_offset) == (self.start, self.written)
        assert 0 <= log.flushes.flushed_offset <= log.written_offset <= log.log_end_offset
        assert log.log_end_offset == (self.stored[-1].next_offset if self.stored else 0)
        assert [segment.base_offset for segment in log.segments.all[1:]] == [
            segment.next_offset for segment in log.segments.all[:-1]
        ]

    @invariant()
    def what_is_written_is_read(self) -> None:
        assert contents(self.log) == flat(
            [each for each in self.stored if self.start < each.next_offset <= self.written]
        )

    # The model.

    def new_batch(
        self, delays_ms: list[int], producer_id: int = -1, epoch: int = -1, sequence: int = -1
    ) -> Stored:  # fmt: skip
        self.named += 1
        return Stored(
            first_offset=self.log.log_end_offset,
            times=tuple(self.now_ms + delay_ms for delay_ms in delays_ms),
            values=tuple(b"%d.%d" % (self.named, number) for number in range(len(delays_ms))),
            producer_id=producer_id, epoch=epoch, sequence=sequence,
        )  # fmt: skip

    def append_new(self, batch: Stored) -> None:
        info = self.log.append(own_batch(encoded(batch)), 0, self.now_ms)
        assert (info.first_offset, info.last_offset + 1) == (batch.first_offset, batch.next_offset)
        assert not info.duplicate
        self.stored.append(batch)
        self.written = self.log.written_offset

    def append_duplicate(self, earlier: Stored) -> None:
        info = self.log.append(own_batch(encoded(earlier)), 0, self.now_ms)
        assert (info.first_offset, info.last_offset + 1) == (earlier.first_offset, earlier.next_offset)
        assert info.duplicate

    def batches_of(self, producer_id: int) -> list[Stored]:
        """The batches of a producer's newest epoch that the log must remember."""
        every = [each for each in self.stored if each.producer_id == producer_id]
        return [each for each in every if each.epoch == every[-1].epoch][-REMEMBERED_BATCHES:]

    def expected_answer(self, batch: Stored) -> Stored | ErrorKind | None:
        """The earlier batch that this one repeats, or why it is refused; None if it is taken."""
        known = self.batches_of(batch.producer_id)
        if not known:
            return None
        if batch.epoch < known[-1].epoch:
            return ErrorKind.INVALID_PRODUCER_EPOCH
        if batch.epoch == known[-1].epoch:
            for each in known:
                if (each.sequence, len(each.values)) == (batch.sequence, len(batch.values)):
                    return each
        expected = 0 if batch.epoch > known[-1].epoch else known[-1].sequence + len(known[-1].values)
        return None if batch.sequence == expected else ErrorKind.OUT_OF_ORDER_SEQUENCE

    def readable_times(self) -> list[tuple[int, int]]:
        """(offset, timestamp) of every record that is written, and in a segment that is there."""
        return [
            (batch.first_offset + number, at_ms)
            for batch in self.stored
            if self.log.segments.all[0].base_offset <= batch.first_offset and batch.next_offset <= self.written
            for number, at_ms in enumerate(batch.times)
        ]

    def flush(self) -> None:
        self.log.write()
        job = self.log.flushes.begin()
        job.run()
        self.log.flushes.complete(job)

    def complete_flush(self) -> None:
        if self.job is not None:
            self.log.flushes.complete(self.job)
            self.flushed, self.job = self.job.offset, None

    def let_go(self, offset: int, interrupted_by: tuple[int, int] | None) -> None:
        """Of everything below an offset; interrupted_by: the disk fails after so many operations, then a power cut."""
        before, after = self.start, max(self.start, offset)
        job = self.log.start.trim(offset)
        self.start = after
        if interrupted_by is None:
            return job.run()
        try:
            with PowerSwitch(self.disk, interrupted_by[0]):
                job.run()
        except StorageFailure:
            self.log.abandon()
            self.disk = self.disk.power_cut(Random(interrupted_by[1]))
            self.reopen(self.flushed)
            assert self.log.log_start_offset in (before, after)
            self.start = self.log.log_start_offset

    def try_to_open(self, operations: int) -> None:
        try:
            with PowerSwitch(self.disk, operations):
                open_topic_log(self.disk, self.topic, now_ms=self.now_ms).abandon()
        except StorageFailure as failure:
            if "was interrupted" not in str(failure):
                raise

    def reopen(self, lowest: int | None = None) -> None:
        """Start anew. Nothing below `lowest` may be lost; without it, nothing that was written."""
        self.log = open_topic_log(self.disk, self.topic, now_ms=self.now_ms)
        end = self.log.log_end_offset
        assert (self.written if lowest is None else lowest) <= end <= self.written
        self.stored = [each for each in self.stored if each.next_offset <= end]
        assert end == (self.stored[-1].next_offset if self.stored else 0), "the log ends with a batch"
        self.written = self.flushed = end


def flat(batches: list[Stored]) -> list[tuple[int, bytes | None]]:
    """(offset, value) of every record."""
    return [(each.first_offset + number, value) for each in batches for number, value in enumerate(each.values)]


def encoded(batch: Stored) -> bytes:
    """The batch as its producer sends it."""
    return encode_batch(
        [(at_ms, None, value, ()) for at_ms, value in zip(batch.times, batch.values, strict=True)],
        producer_id=batch.producer_id, producer_epoch=batch.epoch, base_sequence=batch.sequence,
    )  # fmt: skip


TestLogIsAList = LogIsAList.TestCase
TestLogIsAList.settings = settings(
    max_examples=EXAMPLES,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
