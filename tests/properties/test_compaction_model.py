"""A compacted log is a dict: whatever is written, compacted, trimmed, crashed and recovered, in whatever order.

PROPERTY_EXAMPLES in the environment says how many such stories are told; 200 by default.
"""

import os
from dataclasses import dataclass
from random import Random

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from conveyor.kernel.errors import StorageFailure
from conveyor.log.compaction.key_compaction import compact
from conveyor.log.log import Log
from conveyor.records import compression
from conveyor.records.batch import iterate_batches
from conveyor.records.checked_batch import own_batch
from conveyor.records.record import Record, decode_records, encode_batch
from conveyor.settings.tree import TopicSettings
from conveyor.testing import MemoryDisk
from tests.unit.log.logs import NOW_MS, all_below, open_topic_log
from tests.unit.log.power_switch import PowerSwitch

EXAMPLES = int(os.environ.get("PROPERTY_EXAMPLES", "200"))
SEEDS = st.integers(0, 2**32 - 1)
KEYS = st.sampled_from([b"a", b"b", b"c", b"a key that is longer than a digest"])
RECORDS = st.lists(st.tuples(KEYS, st.booleans()), min_size=1, max_size=4)
TOMBSTONES_STAY_MS = 50
pytestmark = pytest.mark.timeout(max(600, EXAMPLES))


@dataclass(frozen=True, slots=True)
class Written:
    """One record of the model."""

    offset: int
    key: bytes
    value: bytes | None
    at_ms: int


@dataclass(frozen=True, slots=True)
class Sent:
    """The last batch of an idempotent producer, and what comes after it."""

    batch: bytes
    first_offset: int
    next_sequence: int


class CompactedLogIsADict(RuleBasedStateMachine):
    """The log under test, and every record that was ever flushed to it."""

    def __init__(self) -> None:
        super().__init__()
        self.disk = MemoryDisk()
        self.topic = TopicSettings(
            segment_bytes=300, cleanup_policy="compact,delete", delete_retention_ms=TOMBSTONES_STAY_MS,
            min_cleanable_dirty_ratio=0, index_interval_bytes=0,
        )  # fmt: skip
        self.log: Log = open_topic_log(self.disk, self.topic)
        self.written: list[Written] = []
        self.sent: dict[int, Sent] = {}
        self.now_ms = NOW_MS
        self.first_cleaned_ms: dict[int, int] = {}

    @rule(records=RECORDS, codec=st.sampled_from([compression.NONE, compression.ZSTD]))
    def append(self, records: list[tuple[bytes, bool]], codec: int) -> None:
        self.now_ms += 1
        made = self.made(records)
        batch = encode_batch([(each.at_ms, each.key, each.value, ()) for each in made], codec=codec)
        self.log.append(own_batch(batch), 0, self.now_ms)
        self.flush()
        self.written += made

    @rule(records=RECORDS, producer_id=st.integers(1, 2))
    def append_idempotent(self, records: list[tuple[bytes, bool]], producer_id: int) -> None:
        self.now_ms += 1
        sent = self.sent.get(producer_id)
        made = self.made(records)
        batch = encode_batch(
            [(each.at_ms, each.key, each.value, ()) for each in made],
            producer_id=producer_id, producer_epoch=0, base_sequence=sent.next_sequence if sent else 0,
        )  # fmt: skip
        info = self.log.append(own_batch(batch), 0, self.now_ms)
        assert (info.first_offset, info.duplicate) == (len(self.written), False)
        self.flush()
        self.written += made
        sequence = (sent.next_sequence if sent else 0) + len(made)
        self.sent[producer_id] = Sent(batch, made[0].offset, sequence)

    @rule(producer_id=st.integers(1, 2))
    def append_again(self, producer_id: int) -> None:
        """Even where nothing of the batch is left, its producer gets the answer that it got before."""
        if (sent := self.sent.get(producer_id)) is not None:
            info = self.log.append(own_batch(sent.batch), 0, self.now_ms)
            assert (info.first_offset, info.duplicate) == (sent.first_offset, True)

    @rule(max_keys=st.sampled_from([1, 2, 100]), interrupted_by=st.none() | st.tuples(st.integers(0, 25), SEEDS))
    def compact(self, max_keys: int, interrupted_by: tuple[int, int] | None) -> None:
        """interrupted_by: the disk fails after so many operations, and then the power is cut."""
        if interrupted_by is None:
            return self.compact_log(max_keys)
        try:
            with PowerSwitch(self.disk, interrupted_by[0]):
                self.compact_log(max_keys)
        except StorageFailure:
            self.log.abandon()
            self.disk = self.disk.power_cut(Random(interrupted_by[1]))
            self.log = open_topic_log(self.disk, self.topic, now_ms=self.now_ms)

    @rule(offset=st.floats(0, 1))
    def trim(self, offset: float) -> None:
        self.log.start.trim(round(offset * self.log.flushes.flushed_offset)).run()

    @rule(ms=st.sampled_from([1, TOMBSTONES_STAY_MS + 1]))
    def wait(self, ms: int) -> None:
        self.now_ms += ms

    @rule(closing=st.booleans())
    def restart(self, closing: bool) -> None:
        if closing:
            self.log.close()
        self.log = open_topic_log(self.disk, self.topic, now_ms=self.now_ms)

    @invariant()
    def what_is_read_was_written(self) -> None:
        known = {each.offset: each for each in self.written}
        for record in self.readable():
            expected = known[record.offset]
            assert (record.key, record.value, record.timestamp_ms) == (expected.key, expected.value, expected.at_ms)

    @invariant()
    def offsets_rise_and_the_end_stays(self) -> None:
        offsets = [record.offset for record in self.readable()]
        assert offsets == sorted(set(offsets))
        assert self.log.log_end_offset == len(self.written)

    @invariant()
    def the_last_record_of_each_key_is_there(self) -> None:
        start = self.log.log_start_offset
        last = {each.key: each for each in self.written if each.offset >= start}
        read = {record.offset for record in self.readable()}
        for each in last.values():
            if each.value is not None or not self.may_be_gone(each):
                assert each.offset in read

    def made(self, records: list[tuple[bytes, bool]]) -> list[Written]:
        """The next records of the log."""
        first = self.log.log_end_offset
        return [
            Written(first + number, key, None if is_tombstone else b"%d" % (first + number), self.now_ms)
            for number, (key, is_tombstone) in enumerate(records)
        ]

    def may_be_gone(self, tombstone: Written) -> bool:
        """Only if a compaction that came late enough after a first one has seen it."""
        seen_ms = self.first_cleaned_ms.get(tombstone.offset)
        return seen_ms is not None and self.now_ms >= seen_ms + TOMBSTONES_STAY_MS

    def compact_log(self, max_keys: int) -> None:
        plan = self.log.compaction.plan(all_below(self.log.flushes.flushed_offset), self.now_ms, max_keys)
        if plan is None:
            return
        result = compact(self.disk, plan)
        for each in self.written:
            if each.offset < plan.segments[-1].next_offset:
                self.first_cleaned_ms.setdefault(each.offset, self.now_ms)
        job = self.log.compaction.begin_swap(result)
        if job is None:
            return self.log.compaction.discard([each.base_offset for each in result.cleaned])
        new = job.run()
        self.log.compaction.complete_swap(result, new)
        assert result.cleaned_offset > plan.first_dirty_offset, "each compaction gets on"
        keys = [record.key for record in self.readable() if record.offset < result.cleaned_offset]
        assert len(keys) == len(set(keys)), "of each key one record is left"

    def readable(self) -> list[Record]:
        """Everything a consumer sees that starts at the beginning."""
        log, records = self.log, []
        offset: int = log.log_start_offset
        while (found := log.read(offset, 200, log.flushes.flushed_offset, at_least_one=True)) is not None:
            content = found.file.read(found.position, found.length)
            for position, header in iterate_batches(content):
                batch = decode_records(content[position : position + header.size])
                records += [each for each in batch if each.offset >= log.log_start_offset]
                offset = header.next_offset
        return records

    def flush(self) -> None:
        self.log.write()
        job = self.log.flushes.begin()
        job.run()
        self.log.flushes.complete(job)


TestCompactedLogIsADict = CompactedLogIsADict.TestCase
TestCompactedLogIsADict.settings = settings(
    max_examples=EXAMPLES, stateful_step_count=30, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
