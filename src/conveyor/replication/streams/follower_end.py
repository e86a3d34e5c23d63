"""The follower's end of a replication stream: what it asks one leader for, and what it does with the records it gets.

    follow -> Follow                        and again after each Diverging, truncation or change of the epoch
    Portions -> queued -> `step` appends a bounded part -> written, flushed -> Progress
    a part that needs a change of files -> `LogTask`, run by the owner, who then follows again

Invariants: a log is only changed by portions of the present slot of its partition; the bytes of all portions are
returned to the leader exactly once, also of those that are dropped. The leader is not trusted: it must keep to the
window, and a replica that has all committed records never drops its log. The end knows no link, timer or thread.
"""

import logging
from collections import deque

import msgspec

from conveyor.kernel.errors import ProtocolViolation, StorageFailure
from conveyor.kernel.ids import TopicId
from conveyor.kernel.ports import Bytes
from conveyor.log.following.leader_batches import RefusedBatch
from conveyor.log.leader_epochs import NO_EPOCH
from conveyor.log.log import Log
from conveyor.log.segments.segment_indexes import IndexUnavailable
from conveyor.replication.follower_term import FollowerTerm
from conveyor.replication.partition import Partition
from conveyor.replication.streams.frames import (
    MAX_ENTRIES,
    WINDOW_BYTES,
    Diverging,
    Follow,
    FollowerProgress,
    Portion,
    Rejected,
    SentEpochs,
    decode_from_leader,
    encode_follows,
    encode_progress,
    encode_unfollow,
)
from conveyor.replication.streams.log_tasks import AllowGaps, LogTask, TrimStart, restart, truncate
from conveyor.replication.term_context import reported_offset

log = logging.getLogger(__name__)


class Interruption(msgspec.Struct, frozen=True, kw_only=True):
    """A partition that is no longer followed. task: to be run before it is followed again; None: it is followed again
    after a pause.
    """

    partition: Partition
    task: LogTask | None = None


class _Inbound(msgspec.Struct, kw_only=True, eq=False):
    """A partition that is followed in a term. expected_offset: where the next portion begins. leader_start_offset:
    where the leader's log starts. begins_again: the log counts as empty, and becomes so once the leader has answered.
    rest: of the first portion.
    """

    slot: int
    partition: Partition
    term: FollowerTerm
    expected_offset: int
    leader_start_offset: int
    portions: deque[Portion]
    begins_again: bool = False
    rest: memoryview | None = None

    @property
    def is_current(self) -> bool:
        """True if the partition still follows in this term."""
        return self.partition.term is self.term and self.partition.offline.reason is None


class FollowerEnd:
    def __init__(self) -> None:
        self._next_slot = 0
        self._by_slot: dict[int, _Inbound] = {}
        self._by_partition: dict[Partition, _Inbound] = {}
        self._with_portions: deque[_Inbound] = deque()
        self._progressed: dict[_Inbound, None] = {}
        self._follows: dict[int, Follow] = {}
        self._unfollows: list[int] = []
        self._returned_bytes = self._unreturned_bytes = 0
        self.received_bytes = 0
        """All bytes of records."""
        self.interruptions: list[Interruption] = []
        """To be taken by the owner."""
        self.trims: list[tuple[Partition, LogTask]] = []
        """To be run by the owner, unless another task of the partition is in progress: `log_task_ended` asks again."""

    @property
    def partitions(self) -> list[Partition]:
        """The partitions that are followed over this link."""
        return list(self._by_partition)

    def follows(self, partition: Partition) -> bool:
        """Return whether the partition is followed in the epoch of its present role."""
        inbound = self._by_partition.get(partition)
        return inbound is not None and inbound.term is partition.term

    def follow(self, partition: Partition, topic_id: TopicId) -> None:
        """Ask the leader for the records of a partition, in the epoch of its role."""
        term = partition.term
        assert isinstance(term, FollowerTerm)
        assert not partition.log.truncation.is_pending
        self.unfollow(partition)
        if partition.log.written_offset < partition.log.log_end_offset:
            partition.write()
        if partition.offline.reason is not None:
            return
        slot, log = self._next_slot, partition.log
        log.leader_epochs.copy_from(())
        self._next_slot += 1
        follow = Follow(
            slot, topic_id, partition.identity.partition, term.epoch,
            log.log_end_offset, log.leader_epochs.latest, log.flushes.flushed_offset, log.start.flushed_offset,
        )  # fmt: skip
        begins_again = _lacks_superseded(term, log)
        if begins_again:
            follow = follow._replace(end_offset=0, last_epoch=NO_EPOCH, flushed_offset=0, log_start_offset=0)
        else:
            log.copying.checked_epoch = term.epoch
        inbound = _Inbound(
            slot=slot, partition=partition, term=term, expected_offset=follow.end_offset,
            leader_start_offset=log.log_start_offset, portions=deque(), begins_again=begins_again,
        )  # fmt: skip
        self._by_slot[slot] = self._by_partition[partition] = inbound
        self._progressed[inbound] = None
        self._follows[slot] = follow

    def unfollow(self, partition: Partition) -> None:
        """Stop copying a partition."""
        inbound = self._by_partition.get(partition)
        if inbound is not None:
            self._drop(inbound)
            if self._follows.pop(inbound.slot, None) is None:
                self._unfollows.append(inbound.slot)

    def close(self) -> None:
        """The link has ended: the leader may give other replicas records that this one would not hear of."""
        for inbound in list(self._by_slot.values()):
            self._drop(inbound)

    def progressed(self, partition: Partition) -> bool:
        """The partition's log was written or flushed. Returns whether there is something to report."""
        inbound = self._by_partition.get(partition)
        if inbound is None:
            return False
        self._progressed[inbound] = None
        return True

    def log_task_ended(self, partition: Partition) -> bool:
        """A task of a partition has ended: the start of its log is on the disk, and may have to rise further. Returns
        whether there is something to report.
        """
        inbound = self._by_partition.get(partition)
        if inbound is None or not inbound.is_current:
            return False
        self._progressed[inbound] = None
        self._trim(inbound)
        return True

    def received(self, frame: Bytes) -> None:
        """Queue the records of one frame of the leader, or process its answer. Raises ProtocolViolation."""
        content = decode_from_leader(frame)
        if isinstance(content, Diverging):
            self._diverged(content)
        elif isinstance(content, Rejected):
            self._rejected(content)
        elif isinstance(content, SentEpochs):
            inbound = self._by_slot.get(content.slot)
            if inbound is not None and inbound.is_current:
                self._learn(inbound, content)
        else:
            for portion in content:
                self._queue(portion)

    def step(self, now_ms: int) -> bool:
        """Process a bounded part of the received records. Returns whether there are more."""
        if self._with_portions:
            inbound = self._with_portions.popleft()
            if inbound.portions:
                self._take(inbound, now_ms)
            if inbound.portions:
                self._with_portions.append(inbound)
        return bool(self._with_portions)

    def frames(self) -> list[bytes]:
        """Return the frames to send now."""
        frames: list[bytes] = []
        unfollows, self._unfollows = self._unfollows, []
        follows, self._follows = list(self._follows.values()), {}
        reports = [self._report(inbound) for inbound in self._progressed]
        self._progressed.clear()
        frames += [encode_unfollow(unfollows[at : at + MAX_ENTRIES]) for at in range(0, len(unfollows), MAX_ENTRIES)]
        frames += [encode_follows(follows[at : at + MAX_ENTRIES]) for at in range(0, len(follows), MAX_ENTRIES)]
        if reports or self._returned_bytes:
            frames.append(encode_progress(self._returned_bytes, reports[:MAX_ENTRIES]))
            self._unreturned_bytes -= self._returned_bytes
            self._returned_bytes = 0
        frames += [
            encode_progress(0, reports[at : at + MAX_ENTRIES]) for at in range(MAX_ENTRIES, len(reports), MAX_ENTRIES)
        ]
        return frames

    def _report(self, inbound: _Inbound) -> FollowerProgress:
        log = inbound.partition.log
        if inbound.begins_again:
            return FollowerProgress(inbound.slot, inbound.term.epoch, 0, 0, 0)
        return FollowerProgress(
            inbound.slot, inbound.term.epoch, reported_offset(log), log.flushes.flushed_offset, log.start.flushed_offset
        )

    def _queue(self, portion: Portion) -> None:
        if portion.content and self._unreturned_bytes >= WINDOW_BYTES:
            raise ProtocolViolation(f"more records than the window of {WINDOW_BYTES} bytes")
        self.received_bytes += len(portion.content)
        self._unreturned_bytes += len(portion.content)
        inbound = self._by_slot.get(portion.slot)
        if inbound is None or inbound.term.epoch != portion.leader_epoch:
            self._returned_bytes += len(portion.content)
            return
        if portion.from_offset != max(inbound.expected_offset, portion.log_start_offset):
            raise ProtocolViolation(
                f"{inbound.partition.identity}: records from {portion.from_offset} on, not {inbound.expected_offset}"
            )
        inbound.expected_offset = portion.next_offset
        if not inbound.portions:
            self._with_portions.append(inbound)
        inbound.portions.append(portion)

    def _diverged(self, diverging: Diverging) -> None:
        inbound = self._by_slot.get(diverging.slot)
        if inbound is None:
            return
        self._drop(inbound)
        partition = inbound.partition
        if not inbound.is_current:
            return
        try:
            task = truncate(partition, inbound.term, diverging)
        except IndexUnavailable as failure:
            partition.failed_read(failure)
            return self.interruptions.append(Interruption(partition=partition))
        except StorageFailure as failure:
            return partition.go_offline(failure)
        self.interruptions.append(Interruption(partition=partition, task=task))

    def _learn(self, inbound: _Inbound, sent: SentEpochs) -> None:
        """Process what the leader says of its compacted log before it sends a portion."""
        partition, log, end_offset = inbound.partition, inbound.partition.log, sent.removed_end_offset
        if inbound.begins_again:
            return self._interrupt(inbound, restart(partition, inbound.term, 0))
        if log.log_end_offset == log.log_start_offset:
            log.copying.origin = inbound.term.epoch, end_offset
        if end_offset > log.log_end_offset:
            if _may_keep_deleted_keys(inbound, end_offset):
                return self._interrupt(inbound, restart(partition, inbound.term, log.log_start_offset))
            if end_offset > log.compaction.removed_end_offset:
                return self._interrupt(inbound, AllowGaps(partition, end_offset, end_offset))
        log.leader_epochs.copy_from(sent.entries)

    def _rejected(self, rejected: Rejected) -> None:
        inbound = self._by_slot.get(rejected.slot)
        if inbound is not None:
            self._drop(inbound)
            self.interruptions.append(Interruption(partition=inbound.partition))

    def _take(self, inbound: _Inbound, now_ms: int) -> None:
        portion, partition = inbound.portions[0], inbound.partition
        if not inbound.is_current:
            return self.unfollow(partition)
        if inbound.begins_again:
            return self._interrupt(inbound, restart(partition, inbound.term, 0))
        if portion.log_start_offset > partition.log.log_end_offset or _may_have_diverged(inbound, portion):
            return self._restart(inbound, portion.log_start_offset)
        if portion.gap_offset > max(partition.log.log_end_offset, partition.log.copying.gap_offset):
            return self._interrupt(inbound, AllowGaps(partition, portion.gap_offset))
        try:
            if not self._append(inbound, portion, now_ms):
                return
            if portion.next_offset > partition.log.log_end_offset:
                self._skip(inbound, portion, now_ms)
        except StorageFailure as failure:
            partition.go_offline(failure)
            return self.unfollow(partition)
        inbound.portions.popleft()
        self._returned_bytes += len(portion.content)
        inbound.term.follow(portion.high_watermark, portion.tombstones_end_offset)
        inbound.leader_start_offset = portion.log_start_offset
        self._trim(inbound)

    def _append(self, inbound: _Inbound, portion: Portion, now_ms: int) -> bool:
        """Append a part of the portion. Returns whether all of it is appended."""
        partition = inbound.partition
        rest = portion.content if inbound.rest is None else inbound.rest
        if not rest:
            inbound.rest = None
            return True
        try:
            taken = partition.append_as_follower(rest, now_ms)
        except RefusedBatch as refusal:
            self._refuse(partition, str(refusal))
            return False
        inbound.rest = rest[taken:] if taken < len(rest) else None
        return inbound.rest is None

    def _skip(self, inbound: _Inbound, portion: Portion, now_ms: int) -> None:
        """Continue where the leader does: compaction has left no record up to there. Raises StorageFailure."""
        partition = inbound.partition
        if portion.next_offset > partition.log.copying.gap_offset:
            raise StorageFailure(f"{partition.identity}: the leader sent no records up to {portion.next_offset}")
        partition.log.copying.skip_to(portion.next_offset, now_ms)
        partition.want_flush()
        self._progressed[inbound] = None

    def _trim(self, inbound: _Inbound) -> None:
        partition, start_offset = inbound.partition, inbound.leader_start_offset
        is_due = min(start_offset, inbound.term.high_watermark) > partition.log.log_start_offset
        if is_due and partition.offline.reason is None:
            self.trims.append((partition, TrimStart(partition, start_offset)))

    def _restart(self, inbound: _Inbound, offset: int) -> None:
        """Begin again where the leader's log starts, unless this log has all committed records: no leader may remove
        records above them (KAFKA-5634).
        """
        partition = inbound.partition
        if inbound.term.role.has_all_committed:
            return self._refuse(partition, f"the leader's log starts at {offset}, above the end of an in-sync replica")
        self._interrupt(inbound, restart(partition, inbound.term, offset))

    def _refuse(self, partition: Partition, reason: str) -> None:
        log.error("records of the leader refused partition=%s reason=%s", partition.identity, reason)
        self.unfollow(partition)
        self.interruptions.append(Interruption(partition=partition))

    def _interrupt(self, inbound: _Inbound, task: LogTask) -> None:
        self.unfollow(inbound.partition)
        self.interruptions.append(Interruption(partition=inbound.partition, task=task))

    def _drop(self, inbound: _Inbound) -> None:
        inbound.term.disconnected()
        del self._by_slot[inbound.slot]
        del self._by_partition[inbound.partition]
        self._progressed.pop(inbound, None)
        self._returned_bytes += sum(len(portion.content) for portion in inbound.portions)
        inbound.portions.clear()


def _lacks_superseded(term: FollowerTerm, log: Log) -> bool:
    """Return whether a log may lack records which an unclean election has brought back.

    They were compacted, here or where this log was copied from, because of records above the end of this log. What a
    leader has compacted since the election, and the log lacks for that, it will also get the later records of. Or the
    log is empty, and begins above the records: no epoch tells that it has diverged.
    """
    is_unchecked = log.copying.checked_epoch < term.role.unclean_epoch
    is_empty = 0 < log.log_start_offset == log.log_end_offset
    return (
        is_unchecked and term.may_give_up_committed and (is_empty or log.log_end_offset < log.copying.compacted_offset)
    )


def _may_have_diverged(inbound: _Inbound, portion: Portion) -> bool:
    """Return whether a log that ends where its leader's starts may have other records below than its leader has had.

    The leader does not know any more where an earlier epoch ended, and gives its log start for it.
    """
    log = inbound.partition.log
    ends_there = log.log_start_offset < log.log_end_offset == portion.log_start_offset
    return ends_there and not inbound.term.role.has_all_committed


def _may_keep_deleted_keys(inbound: _Inbound, removed_end_offset: int) -> bool:
    """Return whether a log that ends below tombstones which its leader has removed may have older records of the keys.

    A replica that has all committed records has had them. A copy that was begun in this epoch, after they were removed,
    has none: what the leader removes later waits for this replica.
    """
    role, (epoch, end_offset) = inbound.term.role, inbound.partition.log.copying.origin
    return not role.has_all_committed and (epoch != role.epoch or end_offset < removed_end_offset)
