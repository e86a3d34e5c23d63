"""A follower's log is a prefix of its leader's: whatever is copied, truncated, compacted, crashed and recovered.

The leader's log is real too. The model is the list of batches that the follower must hold, byte for byte. The follower
sometimes leads for a while, so that the logs diverge. PROPERTY_EXAMPLES in the environment says how many such stories
are told; 300 by default.
"""

import os
from dataclasses import dataclass
from random import Random

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from conveyor.kernel.errors import StorageFailure
from conveyor.log.compaction.key_compaction import CompactionResult, compact
from conveyor.log.compaction.swap import SwapJob
from conveyor.log.flush import FlushJob
from conveyor.log.leader_epochs import diverging_end, truncation_point
from conveyor.log.log import Log
from conveyor.log.segments.lookup import find_newest, find_time
from conveyor.records.batch import CONTROL, BatchHeader, iterate_batches, read_header
from conveyor.records.checked_batch import own_batch
from conveyor.records.record import encode_batch, seal_batch
from conveyor.settings.tree import TopicSettings
from conveyor.testing import MemoryDisk
from tests.unit.log.forgetful_disk import ForgetfulDisk
from tests.unit.log.logs import NOW_MS, all_below, open_topic_log

EXAMPLES = int(os.environ.get("PROPERTY_EXAMPLES", "300"))
SEEDS = st.integers(0, 2**32 - 1)
KEYS = st.sampled_from([b"a", b"b", b"c"])
SENT = st.lists(
    st.tuples(st.lists(st.tuples(KEYS, st.integers(-30, 30)), min_size=1, max_size=3), st.integers(-1, 2)), max_size=4
)
"""Batches: the key and delay of each record, and the producer's id."""
pytestmark = pytest.mark.timeout(max(600, EXAMPLES))


@dataclass(frozen=True, slots=True)
class Held:
    """A batch that the follower must hold."""

    header: BatchHeader
    content: bytes


class FollowerIsAPrefix(RuleBasedStateMachine):
    """A leader's log, the follower's log under test, and what the latter must hold."""

    def __init__(self) -> None:
        super().__init__()
        self.leader_disk, self.disk = MemoryDisk(), ForgetfulDisk()
        self.held: list[Held] = []
        self.flushed = self.epoch = self.named = 0
        self.now_ms = NOW_MS
        self.flush_job: FlushJob | None = None
        self.swap_job: SwapJob | None = None
        self.compacted: CompactionResult | None = None
        self.forgets_producers = False

    @initialize(
        sizes=st.tuples(st.sampled_from([200, 500, 1 << 20]), st.sampled_from([150, 400, 1 << 20])),
        index_interval_bytes=st.sampled_from([0, 100, 4096]),
        compacts=st.booleans(),
    )
    def begin(self, sizes: tuple[int, int], index_interval_bytes: int, compacts: bool) -> None:
        policy = "compact,delete" if compacts else "delete"
        leaders, self.topic = [
            TopicSettings(
                segment_bytes=size, index_interval_bytes=index_interval_bytes, cleanup_policy=policy,
                min_cleanable_dirty_ratio=0, delete_retention_ms=1 << 40,
            )
            for size in sizes
        ]  # fmt: skip
        self.compacts = compacts
        self.leader: Log = open_topic_log(self.leader_disk, leaders)
        self.leader.copying.begin_epoch(0)
        self.log: Log = open_topic_log(self.disk, self.topic)

    # What the leader does, and a follower that leads for a while.

    @rule(sent=SENT, has_control=st.booleans())
    def lead(self, sent: list[tuple[list[tuple[bytes, int]], int]], has_control: bool) -> None:
        for records, producer_id in sent:
            self.append(self.leader, records, producer_id)
        if has_control:
            self.append_control(self.leader)
        self.leader.write()

    @rule()
    def elect(self) -> None:
        self.epoch += 1
        self.leader.copying.begin_epoch(self.epoch)

    @precondition(lambda self: not self.log.truncation.is_pending)
    @rule(sent=SENT)
    def usurp(self, sent: list[tuple[list[tuple[bytes, int]], int]]) -> None:
        self.epoch += 1
        self.log.copying.begin_epoch(self.epoch)
        before = self.log.log_end_offset
        for records, producer_id in sent:
            self.append(self.log, records, producer_id)
        self.log.write()
        self.held += held_from(self.log, before)

    @rule(keys_count=st.sampled_from([2, 100]))
    def compact_leader(self, keys_count: int) -> None:
        flush(self.leader)
        plan = self.leader.compaction.plan(all_below(self.leader.flushes.flushed_offset), self.now_ms, keys_count)
        if plan is not None:
            result = compact(self.leader_disk, plan)
            job = self.leader.compaction.begin_swap(result)
            assert job is not None
            self.leader.compaction.complete_swap(result, job.run())

    # What the follower does.

    @precondition(lambda self: not self.log.truncation.is_pending)
    @rule(max_bytes=st.sampled_from([1, 300, 2000]), repeats=st.integers(1, 3))
    def copy(self, max_bytes: int, repeats: int) -> None:
        self.now_ms += 1
        self.converge()
        if self.log.truncation.is_pending:
            return
        for _ in range(repeats):
            self.copy_once(max_bytes)

    @precondition(lambda self: not self.log.truncation.is_pending)
    @rule(place=st.floats(0, 1), crash=st.none() | st.tuples(st.integers(0, 40), SEEDS))
    def truncate(self, place: float, crash: tuple[int, int] | None) -> None:
        start, end = self.log.log_start_offset, self.log.log_end_offset
        self.truncate_to(start + round(place * (end - start)), crash)

    @precondition(lambda self: not self.log.truncation.is_pending)
    @rule(place=st.floats(0, 1), crash=st.none() | st.tuples(st.integers(0, 40), SEEDS))
    def restart_at(self, place: float, crash: tuple[int, int] | None) -> None:
        """As a follower does whose log ends below the start of its leader's log."""
        offset = round(place * self.leader.log_end_offset)
        self.log.truncation.restart_at(offset)
        self.forgets_producers = True
        if crash is None or self.flush_job is not None or self.swap_job is not None:
            self.held, self.flushed = [], offset
            return self.cut_files()
        old_flushed = self.flushed
        self.disk.faults.call_after(crash[0], lambda: None)
        try:
            self.cut_files()
        except StorageFailure:
            self.log.abandon()
            self.disk = self.disk.power_cut(Random(crash[1]))
            self.reopen_after_restart(offset, old_flushed)
        else:
            self.disk = self.disk.power_cut(Random(crash[1]))
            self.held = []
            self.reopen(offset)
            assert self.log.log_start_offset == self.log.log_end_offset == offset

    @rule()
    def begin_or_complete_flush(self) -> None:
        if self.flush_job is not None:
            self.complete_flush()
        elif self.log.flushes.is_due:
            self.log.write()
            self.flush_job = self.log.flushes.begin()

    @rule(keys_count=st.sampled_from([2, 100]))
    def compact(self, keys_count: int) -> None:
        """One step: the plan and its execution, the beginning of the swap, or its end."""
        if self.swap_job is not None:
            return self.complete_swap()
        if self.compacted is None:
            plan = self.log.compaction.plan(all_below(self.flushed), self.now_ms, keys_count)
            self.compacted = None if plan is None else compact(self.disk, plan)
            return
        self.swap_job = self.log.compaction.begin_swap(self.compacted)
        if self.swap_job is None:
            self.log.compaction.discard([each.base_offset for each in self.compacted.cleaned])
            self.compacted = None

    @precondition(lambda self: not self.log.truncation.is_pending)
    @rule(place=st.floats(0, 1))
    def trim(self, place: float) -> None:
        """To a log start offset of the leader, which is below what its followers have in common."""
        self.converge()
        if not self.log.truncation.is_pending:
            self.log.start.trim(round(place * self.flushed)).run()
            self.log.start.complete_trim()
            self.forgets_producers = True
            self.resync()

    @rule(ending=st.sampled_from(["closed", "killed", "cut"]), seed=SEEDS)
    def restart(self, ending: str, seed: int) -> None:
        is_truncating = self.log.truncation.is_pending
        lowest = None
        if ending == "closed" and self.swap_job is None and self.flush_job is None:
            self.log.close()
        if ending == "cut":
            self.disk, lowest = self.disk.power_cut(Random(seed)), self.flushed
        if is_truncating:  # The files were not cut: the removed records are there again.
            self.reopen(0, everything=True)
        else:
            self.reopen(lowest)

    @rule()
    def complete_jobs(self) -> None:
        """Whatever is in progress ends, and a truncation that waits for it is executed."""
        if self.flush_job is not None:
            self.complete_flush()
        if self.swap_job is not None:
            self.complete_swap()
        self.cut_files()

    # What must hold.

    @invariant()
    def the_log_holds_these_batches(self) -> None:
        log = self.log
        assert 0 <= log.flushes.flushed_offset <= log.written_offset <= log.log_end_offset
        assert log.log_start_offset <= log.log_end_offset
        assert max(self.log.compaction.cleaned_offset, 0) <= log.log_end_offset or log.truncation.is_pending
        assert [each.content for each in held_from(log, log.log_start_offset)] == [each.content for each in self.held]

    @invariant()
    def epochs_are_as_the_batches_say(self) -> None:
        epochs = self.log.leader_epochs
        for each in self.held:
            epoch, end = epochs.end_of(each.header.leader_epoch, self.log.log_end_offset)
            assert (epoch, end >= each.header.next_offset) == (each.header.leader_epoch, True)

    @precondition(lambda self: not self.log.truncation.is_pending)
    @rule()
    def compare_with_a_log_made_from_scratch(self) -> None:
        if self.held and self.held[0].header.base_offset < self.log.log_start_offset:
            return  # Its first batch is in part below the start.
        fresh = open_topic_log(MemoryDisk(), self.topic)
        fresh.copying.gap_offset = 1 << 40
        for each in self.held:
            fresh.copying.append(each.content, each.header.leader_epoch, self.now_ms)
        fresh.write()
        self.compare_look_ups(fresh)
        if not self.forgets_producers:
            assert producers_of(self.log) == producers_of(fresh)

    def teardown(self) -> None:
        if hasattr(self, "log"):
            self.complete_jobs()
            self.compare_with_a_log_made_from_scratch()
            self.copy(1 << 20, 3)
            self.the_log_holds_these_batches()

    # The parts of the rules.

    def append(self, log: Log, records: list[tuple[bytes, int]], producer_id: int) -> None:
        self.named += 1
        made = [(self.now_ms + delay_ms, key, b"%d" % self.named, ()) for key, delay_ms in records]
        sequence = next_sequence(log, producer_id)
        epoch = -1 if producer_id < 0 else 0
        batch = encode_batch(made, producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence)
        log.append(own_batch(batch), log.leader_epochs.latest, self.now_ms)

    def append_control(self, log: Log) -> None:
        content = encode_batch([(self.now_ms, b"\0\0\0\0", b"\0\0\0\0", ())])
        header = read_header(content)
        control = seal_batch(header._replace(attributes=header.attributes | CONTROL), content[61:])
        log.append(own_batch(control), log.leader_epochs.latest, self.now_ms)

    def converge(self) -> None:
        """As replication will do it: ask the leader where the logs diverge, truncate, ask again."""
        if self.log.leader_epochs.latest > self.leader.leader_epochs.latest:
            self.elect()
        for _ in range(len(self.log.leader_epochs.entries) + 1):
            latest, end = self.log.leader_epochs.latest, self.log.log_end_offset
            theirs = diverging_end(self.leader.leader_epochs, self.leader.log_end_offset, latest, end)
            if theirs is None:
                return
            point = truncation_point(self.log.leader_epochs, end, theirs)
            if point < self.log.log_start_offset:
                point = self.log.log_start_offset
            self.truncate_to(point)
            if self.log.truncation.is_pending:
                return
        raise AssertionError("the logs do not converge")

    def copy_once(self, max_bytes: int) -> None:
        job = self.log.copying.allow_gaps(self.leader.compaction.cleaned_offset)
        if job is not None:
            job.run()
            self.log.copying.complete_gaps(job)
        end = self.log.log_end_offset
        if end > self.leader.log_end_offset:
            return
        piece = self.leader.read(end, max_bytes, self.leader.written_offset, at_least_one=True)
        if piece is None:
            return self.log.copying.skip_to(self.leader.log_end_offset, self.now_ms)
        content = piece.file.read(piece.position, piece.length)
        info = self.log.copying.append(content, self.leader.leader_epochs.latest, self.now_ms)
        self.log.write()
        assert info.taken_bytes == len(content)
        self.held += batches_of(content)

    def truncate_to(self, offset: int, crash: tuple[int, int] | None = None) -> None:
        expected = [each for each in self.held if each.header.next_offset <= offset]
        old_flushed = self.flushed
        self.log.truncation.truncate_to(offset)
        end = self.log.log_end_offset
        assert (expected[-1].header.next_offset if expected else self.log.log_start_offset) <= end <= offset
        if crash is None or self.flush_job is not None or self.swap_job is not None:
            self.held, self.flushed = expected, min(self.flushed, end)
            return self.cut_files()
        self.disk.faults.call_after(crash[0], lambda: None)
        try:
            self.cut_files()
        except StorageFailure:
            self.log.abandon()
            self.disk = self.disk.power_cut(Random(crash[1]))
            self.reopen(min(self.flushed, end))
            assert self.log.log_end_offset <= end or self.log.log_end_offset >= old_flushed
        else:
            self.disk = self.disk.power_cut(Random(crash[1]))
            self.held, self.flushed = expected, min(self.flushed, end)
            self.reopen(self.flushed)

    def reopen_after_restart(self, offset: int, old_flushed: int) -> None:
        """The log is as long as before, or it has restarted."""
        held = self.held
        self.held = []
        self.reopen(0)
        if self.log.log_start_offset == self.log.log_end_offset == offset:
            return
        self.held = held_from(self.log, self.log.log_start_offset)
        assert self.log.log_end_offset >= old_flushed
        assert [each.content for each in self.held] == [each.content for each in held[: len(self.held)]]

    def cut_files(self) -> None:
        job = self.log.truncation.begin(self.now_ms)
        is_blocked = self.flush_job is not None or self.swap_job is not None
        assert (job is not None) == (self.log.truncation.is_pending and not is_blocked)
        if job is not None:
            self.log.truncation.complete(job, job.run())
            assert not self.log.truncation.is_pending

    def complete_flush(self) -> None:
        assert self.flush_job is not None
        job, self.flush_job = self.flush_job, None
        job.run()
        self.log.flushes.complete(job)
        self.flushed = self.log.flushes.flushed_offset
        assert self.flushed == min(max(self.flushed, job.offset), self.log.log_end_offset)
        self.cut_files()

    def complete_swap(self) -> None:
        assert self.swap_job is not None
        assert self.compacted is not None
        self.log.compaction.complete_swap(self.compacted, self.swap_job.run())
        self.swap_job = self.compacted = None
        self.forgets_producers = True
        self.resync()
        self.cut_files()

    def resync(self) -> None:
        """Compaction has made other batches of some, and trimming has removed some: none may be new."""
        ranges = {(each.header.base_offset, each.header.next_offset) for each in self.held}
        self.held = held_from(self.log, self.log.log_start_offset)
        assert {(each.header.base_offset, each.header.next_offset) for each in self.held} <= ranges

    def reopen(self, lowest: int | None = None, *, everything: bool = False) -> None:
        """Start anew. Nothing below `lowest` may be lost; without it, nothing at all."""
        self.flush_job = self.swap_job = self.compacted = None
        highest = self.held[-1].header.next_offset if self.held else 0
        self.log = open_topic_log(self.disk, self.topic, now_ms=self.now_ms)
        end = self.log.log_end_offset
        found = held_from(self.log, self.log.log_start_offset)
        kept = [each for each in self.held if each.header.next_offset <= end]
        if everything:
            assert [each.content for each in found[: len(kept)]] == [each.content for each in kept]
            self.held = found
        else:
            assert (highest if lowest is None else min(lowest, highest)) <= end
            self.held = kept
        self.flushed = end

    def compare_look_ups(self, fresh: Log) -> None:
        log, end = self.log, self.log.written_offset
        for offset in range(log.log_start_offset, min(end, fresh.written_offset)):
            piece, other = (each.read(offset, 1, each.written_offset, at_least_one=True) for each in (log, fresh))
            assert piece is not None or other is None
            if piece is not None and other is not None:
                assert piece.file.read(piece.position, piece.length) == other.file.read(other.position, other.length)
        start = log.log_start_offset
        for delay_ms in range(-30, 60, 7):
            at_ms = NOW_MS + delay_ms
            assert find_time(log.segments.all, at_ms, end, start) == find_time(fresh.segments.all, at_ms, end, start)
        found, expected = find_newest(log.segments.all, end, start), find_newest(fresh.segments.all, end, start)
        assert (found is None) == (expected is None) or start > 0


def held_from(log: Log, offset: int) -> list[Held]:
    """Every batch from the one that holds an offset on."""
    held: list[Held] = []
    while (piece := log.read(offset, 300, log.written_offset, at_least_one=True)) is not None:
        held += batches_of(piece.file.read(piece.position, piece.length))
        offset = held[-1].header.next_offset
    return held


def batches_of(content: bytes) -> list[Held]:
    return [Held(header, content[position : position + header.size]) for position, header in iterate_batches(content)]


def next_sequence(log: Log, producer_id: int) -> int:
    """The sequence that the log expects of a producer."""
    if producer_id < 0:
        return -1
    known = dict(zip(*log.producers.entries()[:2], strict=True)).get(producer_id)
    return 0 if known is None else known.batches[-1].last_sequence + 1


def producers_of(log: Log) -> list[tuple[int, int, list[tuple[int, ...]]]]:
    """Every producer in its order, without times: recovery knows those of its own start only."""
    return [
        (producer_id, producer.epoch, [tuple(batch[:4]) for batch in producer.batches])
        for producer_id, producer in zip(*log.producers.entries()[:2], strict=True)
    ]


def flush(log: Log) -> None:
    log.write()
    if log.flushes.is_due:
        job = log.flushes.begin()
        job.run()
        log.flushes.complete(job)


TestFollowerIsAPrefix = FollowerIsAPrefix.TestCase
TestFollowerIsAPrefix.settings = settings(
    max_examples=EXAMPLES, stateful_step_count=40, deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)  # fmt: skip
