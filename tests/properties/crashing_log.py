"""One log, the work of its broker, the broker's checkpoint of it, and crashes that interrupt any operation.

A log follows or leads for its whole story. Between two starts the operations are chosen at random: appends (of a
follower also with missing offsets, and with a first batch that begins below the log start), flushes that begin and end
at different times, trims, truncations, restarts at another offset, compactions, leader epochs and clean stops. The
checkpoint is written now and then, by the rules of `ReplicaCheckpoint`; it tells the next start what it must find.

Any operation may be interrupted: the disk fails from some operation on, mostly just before a sync, or it is full, or
(`flush.policy=ack`) its syncs fail, and what they were to write is lost although everybody can still read it. Then
- the broker opens the log again in the same process, or
- the process is killed: everything written is there, but is no more durable than before, or
- the power is cut: any subset of what was not synced is lost: the ends of files (torn anywhere, also with a lost page
  in the middle), the names of new files and of the directory, and removals and cuts of files.
The starts that follow may be interrupted in the same ways.

Left out:
- Atomic writes and renames are durable at once. The real disk syncs the directory in each atomic write, but not in a
  rename.
- With `flush.policy=os`, a power cut does not take the directory itself. A log that was never flushed can be trimmed
  there, and only a flush makes the directory's own name durable; the log start would be lost with it.
- Leader epochs and look-ups are not checked: test_log_model and test_follower_log_model do that. Only the stories of
  `damaged_log` have producers.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from random import Random
from typing import NamedTuple

from conveyor.kernel.errors import DiskFull, LogIncomplete, StorageFailure
from conveyor.log.compaction.key_compaction import compact
from conveyor.log.flush import FlushJob
from conveyor.log.log_parts import NOTHING_EXPECTED, ExpectedLog
from conveyor.records.batch import MAGIC_END, iterate_batches, placed_prefix, read_header
from conveyor.records.checked_batch import own_batch
from conveyor.records.record import encode_batch
from conveyor.settings.tree import TopicSettings
from tests.unit.log.forgetful_disk import ForgetfulDisk
from tests.unit.log.logs import NOW_MS, all_below, open_topic_log, read_bytes
from tests.unit.log.power_switch import SYNCS, PowerSwitch


class Batch(NamedTuple):
    """A stored batch."""

    base_offset: int
    next_offset: int
    content: bytes


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """What the file `replica-checkpoint` says of the log."""

    high_watermark: int = 0
    flushed_offset: int = 0
    log_start_offset: int = 0


@dataclass(frozen=True, slots=True)
class Before:
    """The log before an operation that is interrupted. changes_end: a truncation was in progress, or the operation is a
    step of one. changes_all: records may also be replaced by others.
    """

    batches: list[Batch]
    flushed_offset: int
    recoverable_offset: int
    changes_end: bool
    changes_all: bool


class CrashingLog:
    """See the module. history: the operations and their endings."""

    has_producers = False
    """Whether each batch has an idempotent producer of its own. Its snapshots make names and removals durable."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.history: list[str] = []
        self.disk = ForgetfulDisk()
        self.follows = random.random() < 0.6
        self.topic = TopicSettings(
            segment_bytes=random.choice([150, 300, 700]),
            index_interval_bytes=random.choice([0, 100, 4096]),
            cleanup_policy=random.choice(["delete", "delete", "compact,delete"]),
            min_cleanable_dirty_ratio=0,
            delete_retention_ms=1 << 40,
            flush_policy=random.choice(["ack", "ack", "os"]),
        )
        self.weights = {operation: weight * random.choice([0.2, 1, 1, 4]) for operation, weight in WEIGHTS.items()}
        self.interrupted_share = random.choice([0.06, 0.12, 0.3, 0.5])
        self.now_ms = NOW_MS
        self.epoch = self.named = 0
        self.high_watermark = 0
        self.checkpoint: Checkpoint | None = None
        self.has_lost_cache = self.was_cut = self.was_stopped = self.is_restarting = False
        """The first: a power cut is not settled yet, see `ReplicaCheckpoint.settle`. The next two: in this step. A sync
        that has failed counts as a power cut.
        """
        self.flush_job: FlushJob | None = None
        self.open()
        if self.topic.flush_policy == "os":
            self.disk.sync_directory("logs")  # See the module's docstring.
        self.checkpoint = Checkpoint()

    def step(self) -> None:
        """One operation. If it is interrupted, the log must then open with all that it may not have lost."""
        self.now_ms += self.random.randint(0, 3)
        self.was_cut = self.was_stopped = False
        operation = self.random.choices(list(self.weights), list(self.weights.values()))[0]
        is_interrupted = self.random.random() < self.interrupted_share
        self.history.append(operation.__name__)
        if not is_interrupted and operation is not CrashingLog.stop:
            return operation(self)
        before = Before(
            batches=self.batches(),
            flushed_offset=self.log.flushes.flushed_offset,
            recoverable_offset=self.log.flushes.recoverable_offset,
            changes_end=self.log.truncation.is_pending or operation in CHANGES_OF_THE_END,
            changes_all=self.is_restarting or operation in CHANGES_OF_ALL,
        )
        if is_interrupted:
            with self.interruption():
                operation(self)
            self.crash(may_reopen=operation is not CrashingLog.stop)
        else:
            operation(self)
            self.kill()
        self.start()
        self.check(before)

    # Starts and their endings.

    def open(self) -> None:
        """Open the log, and check it against the checkpoint as the broker does it."""
        self.flush_job, self.is_restarting = None, False
        self.now_ms += 1
        expected = self.expected()
        self.log = open_topic_log(self.disk, self.topic, now_ms=self.now_ms, expected=expected)
        start, end = self.log.log_start_offset, self.log.log_end_offset
        if end < expected.end_offset:
            raise LogIncomplete(f"the log ends at {end}, {expected}")
        assert start >= expected.start_offset, f"the log starts at {start}, {expected}"
        self.high_watermark = max(start, min(expected.high_watermark, end))

    def start(self) -> None:
        """Open the log, after starts that were interrupted. Soon afterwards the broker may settle a lost page cache."""
        for _ in range(self.random.choice([0, 1, 1, 2])):
            self.history.append("start")
            with self.interruption():
                self.open()
            self.crash(may_reopen=False)
        self.open()
        if self.random.random() < 0.7 and self.has_lost_cache:
            self.has_lost_cache = False
            assert self.checkpoint is not None
            self.checkpoint = replace(self.checkpoint, high_watermark=self.checkpoint.flushed_offset)

    def expected(self) -> ExpectedLog:
        """As `ReplicaCheckpoint.expected`."""
        known = self.checkpoint
        if known is None:
            return NOTHING_EXPECTED
        end_offset = known.flushed_offset if self.has_lost_cache else known.high_watermark
        return ExpectedLog(
            False, end_offset, known.high_watermark, known.log_start_offset, not self.has_lost_cache, self.epoch
        )

    @contextmanager
    def interruption(self) -> Iterator[None]:
        """The disk is full, or fails from some operation on, unless the block is complete before that."""
        disk, random = self.disk, self.random
        try:
            share = random.random()
            if share < 0.25:
                disk.faults.free_bytes = random.randint(0, 250)
                yield
            elif share < 0.4 and self.topic.flush_policy == "ack":
                disk.faults.fail("sync")
                yield
            else:
                with self.power_switch():
                    yield
        except StorageFailure as failure:
            is_lost = str(failure).endswith("sync failed")
            if not is_lost and "was interrupted" not in str(failure) and not isinstance(failure, DiskFull):
                raise
            self.was_cut |= is_lost
            self.history.append("fails")
        finally:
            disk.faults.heal()

    def power_switch(self) -> PowerSwitch:
        """Stop after some operations, or just before a sync, when most is at stake."""
        random = self.random
        if random.random() < 0.5:
            return PowerSwitch(self.disk, random.randint(0, random.choice([3, 12, 40])))
        return PowerSwitch(self.disk, random.randint(0, random.choice([0, 2, 6])), SYNCS)

    def crash(self, *, may_reopen: bool) -> None:
        endings = [self.kill, self.cut_power, self.cut_power]
        self.random.choice([*endings, self.abandon] if may_reopen else endings)()

    def abandon(self) -> None:
        """The broker closes a failed log, and opens it again in the same process."""
        self.history.append("abandon")
        self.log.abandon()
        self.write_checkpoint()

    def kill(self) -> None:
        self.history.append("kill")
        self.disk = self.disk.process_crash()

    def cut_power(self) -> None:
        self.history.append("cut power")
        self.disk = self.disk.power_cut(self.random)
        self.has_lost_cache = self.was_cut = True

    def check(self, before: Before) -> None:
        """Nothing flushed is lost, after a kill nothing recoverable, after a clean stop nothing at all, and there is no
        hole below the end of the log.

        A truncation removes records; those that remain have no hole. Not checked here: the records after a compaction
        (see test_compaction_model) and after a restart, which removes all of them.
        """
        if before.changes_all:
            return
        kept_offset = before.flushed_offset if self.was_cut else before.recoverable_offset
        if self.was_stopped and before.batches:
            kept_offset = before.batches[-1].next_offset
        start, end = self.log.log_start_offset, self.log.log_end_offset
        checked_offset = end if before.changes_end else max(end, kept_offset)
        found = set(self.batches())
        lost = [each for each in before.batches if start < each.next_offset <= checked_offset and each not in found]
        not_found = [each[:2] for each in lost if not self.may_lack(each)]
        assert not not_found, (
            f"lost {not_found} of a log from {start} to {end}; it was flushed up to {before.flushed_offset}"
        )

    def may_lack(self, batch: Batch) -> bool:
        return False

    def batches(self) -> list[Batch]:
        """All readable batches from the log start on, up to a base offset that damage has changed."""
        found: list[Batch] = []
        offset, next_offset = -1, int(self.log.log_start_offset)
        while offset < next_offset <= self.log.written_offset and (content := read_bytes(self.log, next_offset)):
            for position, header in iterate_batches(content):
                batch = content[position : position + header.size]
                found.append(Batch(header.base_offset, header.next_offset, batch))
            offset, next_offset = next_offset, found[-1].next_offset
        return found

    # The operations of a broker.

    def append(self) -> None:
        if self.log.truncation.is_pending:
            return
        for _ in range(self.random.randint(1, 4)):
            if self.follows:
                self.append_as_follower()
            else:
                self.log.append(own_batch(self.new_batch()), self.epoch, self.now_ms)
        self.log.write()

    def append_as_follower(self) -> None:
        log, random = self.log, self.random
        end, base = int(log.log_end_offset), int(log.log_end_offset)
        log.write()
        if len(log.segments.all) == 1 and not log.segments.all[0].size and base and random.random() < 0.5:
            base -= 1
        elif base < log.copying.gap_offset and random.random() < 0.5:
            base = min(log.copying.gap_offset, base + random.randint(1, 4))
        content = self.new_batch()
        header = read_header(content)
        if base + header.last_offset_delta >= end:
            placed = bytes(placed_prefix(base, header, self.epoch)) + content[MAGIC_END:]
            log.copying.append(placed, self.epoch, self.now_ms)

    def new_batch(self) -> bytes:
        self.named += 1
        random, value = self.random, b"%d" % self.named
        count = random.randint(1, 3)
        records = [
            (self.now_ms + random.randint(-5, 5), random.choice([b"a", b"b", b"c"]), value, ()) for _ in range(count)
        ]
        if not self.has_producers:
            return encode_batch(records)
        return encode_batch(records, producer_id=self.named, producer_epoch=0, base_sequence=0)

    def begin_epoch(self) -> None:
        if not self.log.truncation.is_pending:
            self.epoch += 1
            if not self.follows or self.random.random() < 0.5:
                self.log.copying.begin_epoch(self.epoch)

    def flush(self) -> None:
        """Begin a flush, or complete the one that has begun."""
        if self.flush_job is not None:
            self.complete_flush()
        elif self.log.flushes.is_due:
            self.log.write()
            self.flush_job = self.log.flushes.begin()
            if self.random.random() < 0.5:
                self.complete_flush()

    def complete_flush(self) -> None:
        if self.flush_job is not None:
            job, self.flush_job = self.flush_job, None
            job.run()
            self.log.flushes.complete(job)

    def raise_high_watermark(self) -> None:
        if self.committed_offset > self.high_watermark:
            self.high_watermark = self.random.randint(self.high_watermark, self.committed_offset)

    @property
    def committed_offset(self) -> int:
        """The highest possible high watermark."""
        is_soft = self.topic.flush_policy == "os"
        return int(self.log.written_offset if is_soft else self.log.flushes.flushed_offset)

    def write_checkpoint(self) -> None:
        """As `ReplicaCheckpoint._seen`."""
        log = self.log
        high_watermark = min(self.high_watermark, log.flushes.recoverable_offset)
        if log.truncation.is_pending and self.checkpoint is not None:
            high_watermark = min(high_watermark, self.checkpoint.high_watermark)
        self.checkpoint = Checkpoint(
            high_watermark,
            min(high_watermark, log.flushes.flushed_offset),
            min(log.log_start_offset, log.start.flushed_offset),
        )

    def trim(self) -> None:
        """Mostly all that may be deleted."""
        if self.log.truncation.is_pending:
            return
        start = int(self.log.log_start_offset)
        if self.random.random() < 0.7:
            self.high_watermark = max(self.high_watermark, self.committed_offset)
        if self.high_watermark > start:
            offset = self.random.choice([self.high_watermark] * 2 + [self.random.randint(start, self.high_watermark)])
            self.log.start.trim(offset).run()
            self.log.start.complete_trim()

    def allow_gaps(self) -> None:
        if self.follows and not self.log.truncation.is_pending:
            job = self.log.copying.allow_gaps(self.log.log_end_offset + self.random.randint(0, 40))
            if job is not None:
                job.run()
                self.log.copying.complete_gaps(job)

    def skip(self) -> None:
        offset = self.log.log_end_offset + self.random.randint(1, 6)
        if self.follows and not self.log.truncation.is_pending and offset <= self.log.copying.gap_offset:
            self.log.copying.skip_to(offset, self.now_ms)

    def truncate(self) -> None:
        """Mostly not below the high watermark, and to the offset of a batch, as a follower does it."""
        log, random = self.log, self.random
        if not self.follows or log.truncation.is_pending:
            return
        start, end = int(log.log_start_offset), int(log.log_end_offset)
        lowest = start if random.random() < 0.1 else max(start, min(self.high_watermark, end))
        firsts = [each.base_offset for each in self.batches() if each.base_offset >= lowest]
        log.truncation.truncate_to(random.choice([*firsts, random.randint(lowest, end)]))
        self.high_watermark = min(self.high_watermark, log.log_end_offset)
        if random.random() < 0.9:
            self.complete_truncation()

    def restart(self) -> None:
        if not self.follows or self.log.truncation.is_pending:
            return
        self.high_watermark = self.random.randint(0, self.log.log_end_offset + 10)
        self.log.truncation.restart_at(self.high_watermark)
        self.is_restarting = True
        if self.random.random() < 0.9:
            self.complete_truncation()

    def complete_truncation(self) -> None:
        """Before the files are cut, the checkpoint must not say too much: see `ReplicaCheckpoint.lower`."""
        if not self.log.truncation.is_pending:
            return
        self.complete_flush()
        known, log = self.checkpoint, self.log
        if known is not None and (
            known.high_watermark > log.log_end_offset or known.log_start_offset > log.log_start_offset
        ):
            self.write_checkpoint()
        job = log.truncation.begin(self.now_ms)
        if job is not None:
            log.truncation.complete(job, job.run())
            self.is_restarting = False

    def compact(self) -> None:
        limit = min(self.high_watermark, self.log.flushes.flushed_offset)
        plan = self.log.compaction.plan(all_below(limit), self.now_ms, 100)
        if plan is not None:
            result = compact(self.disk, plan)
            job = self.log.compaction.begin_swap(result)
            assert job is not None, "nothing has changed the log meanwhile"
            self.log.compaction.complete_swap(result, job.run())

    def stop(self) -> None:
        """A clean stop: all is flushed, and the checkpoint says so."""
        self.complete_flush()
        self.log.close()
        if not self.log.truncation.is_pending:
            self.write_checkpoint()
            assert self.checkpoint is not None
            self.checkpoint = replace(self.checkpoint, flushed_offset=self.checkpoint.high_watermark)
            self.was_stopped = True


WEIGHTS: dict[Callable[[CrashingLog], None], float] = {
    CrashingLog.append: 8,
    CrashingLog.flush: 6,
    CrashingLog.raise_high_watermark: 4,
    CrashingLog.write_checkpoint: 2,
    CrashingLog.trim: 2,
    CrashingLog.complete_truncation: 1.5,
    CrashingLog.truncate: 2,
    CrashingLog.compact: 1.5,
    CrashingLog.allow_gaps: 1,
    CrashingLog.skip: 1,
    CrashingLog.begin_epoch: 1,
    CrashingLog.stop: 0.7,
    CrashingLog.restart: 0.5,
}
"""How often a story has each operation, on average; each story has some of them more often, and some less."""

CHANGES_OF_THE_END = (CrashingLog.truncate, CrashingLog.complete_truncation, CrashingLog.restart)
CHANGES_OF_ALL = (CrashingLog.compact, CrashingLog.restart)
