"""The leader's end of a replication stream: what one follower gets, and what it has reported.

    Follow -> checked -> Rejected | Diverging | followed
    written, committed -> marked, in sync or catching up -> `data_frame`, `offsets_frame` -> portions
    Progress -> the partition's high watermark; the returned bytes open the window

Invariants: the bytes that were sent and not yet returned are at most WINDOW_BYTES and one batch; a frame has at most
FRAME_BYTES and one batch. Only marked partitions cost anything, and a partition with more records to send goes to the
end of the queue. Records for a replica that is not in sync wait until the in-sync replicas of the link have theirs, and
until the throttle is open; they fill a part of the window only. It knows no link, timer or thread: its owner sends
the frames and drops the end with its link.
"""

from collections.abc import Callable
from typing import Protocol

import msgspec

from conveyor.kernel.errors import ProtocolViolation, StorageFailure
from conveyor.kernel.ids import NodeId
from conveyor.kernel.ports import Bytes, FileSlice
from conveyor.log.leader_epochs import NO_EPOCH, diverging_end
from conveyor.replication.leader_term import LeaderTerm
from conveyor.replication.partition import Partition
from conveyor.replication.replica_progress import ReplicaReport
from conveyor.replication.streams.frames import (
    MAX_ENTRIES,
    WINDOW_BYTES,
    Diverging,
    Follow,
    FollowerProgress,
    FollowRefusal,
    ProgressReport,
    Rejected,
    SentEpochs,
    Unfollow,
    decode_from_follower,
    encode_diverging,
    encode_epochs,
    encode_portions,
    encode_rejected,
)
from conveyor.replication.streams.log_reading import LogPortion, read_portion

CATCH_UP_WINDOW_BYTES = 2 << 20
"""The part of the window that may be filled for replicas that are not in sync."""
FRAME_BYTES = 1 << 20
PORTION_BYTES = 256 << 10

MAX_FOLLOWED = 100_000
"""The most partitions of one link."""

Find = Callable[[NodeId, Follow], "Partition | FollowRefusal"]
"""Returns the partition that a follower asks for, if the image shows this follower as one of its replicas."""

Reported = Callable[[NodeId, Partition], None]
"""Called after each report of a follower that its partition has counted."""


class Throttle(Protocol):
    """Limits what replicas get that are not in sync."""

    @property
    def is_open(self) -> bool:
        """True if another portion may be sent now."""
        ...

    def take(self, length: int) -> None:
        """Count a portion."""
        ...


Parts = list[Bytes | FileSlice]
"""One frame, as `PeerLink.send` takes it."""


class _Outbound(msgspec.Struct, kw_only=True, eq=False):
    """A partition that the follower follows in a term. next_offset: everything below it was sent."""

    slot: int
    partition: Partition
    term: LeaderTerm
    next_offset: int
    sent_high_watermark: int = -1
    sent_log_start: int = -1
    sent_tombstones_end: int = -1

    @property
    def has_offsets(self) -> bool:
        term = self.term
        return (
            term.high_watermark > self.sent_high_watermark
            or self.partition.log.log_start_offset > self.sent_log_start
            or term.tombstones_end_offset != self.sent_tombstones_end
        )

    @property
    def is_current(self) -> bool:
        """True if this broker still leads the partition in this term."""
        return self.partition.term is self.term and self.partition.offline.reason is None

    def continue_at_start(self) -> None:
        """Skip what the leader's log does not have any more."""
        self.next_offset = max(self.next_offset, self.partition.log.log_start_offset)


class _Frame:
    """Portions that are sent together. length: of their records."""

    def __init__(self) -> None:
        self.length = 0
        self._fields: list[tuple[int, ...]] = []
        self._places: list[FileSlice] = []

    @property
    def has_room(self) -> bool:
        return self.length < FRAME_BYTES and len(self._fields) < MAX_ENTRIES

    def add(self, outbound: _Outbound, portion: LogPortion) -> int:
        """Add the partition's next portion. Returns the length of its records."""
        term, log, start = outbound.term, outbound.partition.log, outbound.next_offset
        outbound.next_offset = portion.next_offset
        outbound.sent_high_watermark = term.high_watermark
        outbound.sent_log_start = log.log_start_offset
        outbound.sent_tombstones_end = term.tombstones_end_offset
        length = 0 if portion.place is None else portion.place.length
        self._fields.append(
            (
                outbound.slot, term.epoch, log.log_start_offset, term.high_watermark, log.copying.compacted_offset,
                outbound.sent_tombstones_end, start, portion.next_offset, length,
            )
        )  # fmt: skip
        if portion.place is not None:
            self._places.append(portion.place)
        self.length += length
        return length

    def parts(self) -> Parts | None:
        return [encode_portions(self._fields), *self._places] if self._fields else None


class LeaderEnd:
    def __init__(self, node: NodeId, find: Find, reported: Reported, throttle: Throttle) -> None:
        self.node = node
        self._throttle = throttle
        self._find = find
        self._reported = reported
        self._by_slot: dict[int, _Outbound] = {}
        self._by_partition: dict[Partition, _Outbound] = {}
        self._with_data: dict[_Outbound, None] = {}
        self._catching_up: dict[_Outbound, None] = {}
        self._with_offsets: dict[_Outbound, None] = {}
        self._answers: list[bytes] = []
        self._unreturned_bytes = 0
        self.sent_bytes = 0
        """All bytes of records."""

    @property
    def partitions(self) -> list[Partition]:
        """The partitions that the follower follows."""
        return list(self._by_partition)

    @property
    def is_throttled(self) -> bool:
        """True if records wait only for the throttle."""
        has_window = self._unreturned_bytes < CATCH_UP_WINDOW_BYTES
        return bool(self._catching_up) and has_window and not self._throttle.is_open

    def follows(self, partition: Partition) -> bool:
        return partition in self._by_partition

    def received(self, frame: Bytes) -> None:
        """Process one frame of the follower. Raises ProtocolViolation."""
        content = decode_from_follower(frame)
        if isinstance(content, Unfollow):
            for slot in content.slots:
                self._drop(self._by_slot.get(slot))
        elif isinstance(content, ProgressReport):
            self._return(content.returned_bytes)
            for progress in content.progress:
                self._progressed(progress)
        else:
            for follow in content:
                self._follow(follow)

    def written(self, partition: Partition) -> bool:
        """The partition has more records, or the follower is about to be in sync. Returns whether it follows it."""
        outbound = self._by_partition.get(partition)
        if outbound is None:
            return False
        self._mark(outbound)
        return True

    def has_offsets(self, partition: Partition) -> bool:
        """The high watermark, log start or tombstone bound may have changed. Returns whether one of them has."""
        outbound = self._by_partition.get(partition)
        if outbound is None or not outbound.has_offsets:
            return False
        self._with_offsets[outbound] = None
        return True

    def changed(self, partition: Partition) -> bool:
        """The partition's role may have changed, or it was closed or has failed. Returns whether there is something to
        send: the follower has to ask again, or is in sync now.
        """
        outbound = self._by_partition.get(partition)
        if outbound is None:
            return False
        if outbound.is_current:
            was_catching_up = outbound in self._catching_up
            if was_catching_up:
                self._mark(outbound)
            return was_catching_up
        self._refuse(outbound)
        return True

    def answers(self) -> list[bytes]:
        """Return the frames that answer what was received, and those that end the copying of a partition."""
        answers, self._answers = self._answers, []
        return answers

    def data_frame(self) -> Parts | None:
        """Return the next frame with records; None if there are none, or as long as the window is full."""
        frame = _Frame()
        while self._with_data and frame.has_room and self._unreturned_bytes < WINDOW_BYTES:
            self._add_next(frame, self._with_data)
        while (
            self._catching_up
            and frame.has_room
            and self._unreturned_bytes < CATCH_UP_WINDOW_BYTES
            and self._throttle.is_open
        ):
            self._throttle.take(self._add_next(frame, self._catching_up))
        return frame.parts()

    def offsets_frame(self) -> Parts | None:
        """Return the next frame for partitions of which the follower only lacks the high watermark or log start."""
        frame = _Frame()
        while self._with_offsets and frame.has_room:
            outbound = next(iter(self._with_offsets))
            del self._with_offsets[outbound]
            if outbound.has_offsets:
                outbound.continue_at_start()
                frame.add(outbound, LogPortion(None, outbound.next_offset))
        return frame.parts()

    def _add_next(self, frame: _Frame, marked: dict[_Outbound, None]) -> int:
        """Add a portion of the first marked partition. Returns the length of its records."""
        outbound = next(iter(marked))
        del marked[outbound]
        portion = self._read(outbound, min(PORTION_BYTES, FRAME_BYTES - frame.length))
        if portion is None:
            return 0
        length = frame.add(outbound, portion)
        self._unreturned_bytes += length
        self.sent_bytes += length
        if portion.next_offset < outbound.partition.log.written_offset:
            self._mark(outbound)
        return length

    def _mark(self, outbound: _Outbound) -> None:
        """Queue a partition behind the others of its class."""
        term = outbound.term
        is_in_sync = self.node in term.role.isr or self.node in term.replicas.joining
        marked, other = (self._with_data, self._catching_up) if is_in_sync else (self._catching_up, self._with_data)
        other.pop(outbound, None)
        marked[outbound] = None

    def _read(self, outbound: _Outbound, max_bytes: int) -> LogPortion | None:
        """Read the next portion. A follower that has fallen below the log's start continues there.

        The first portion is sent even if it has no records: it tells the follower the high watermark and the log start.
        """
        partition = outbound.partition
        if not outbound.is_current:
            self.changed(partition)
            return None
        outbound.continue_at_start()
        try:
            portion = read_portion(partition.log, outbound.next_offset, max_bytes)
        except StorageFailure as failure:
            partition.failed_read(failure)
            self._refuse(outbound)
            return None
        is_first = outbound.sent_log_start < 0
        return LogPortion(None, outbound.next_offset) if portion is None and is_first else portion

    def _follow(self, follow: Follow) -> None:
        if follow.slot in self._by_slot:
            raise ProtocolViolation(f"slot {follow.slot} is in use")
        if len(self._by_slot) >= MAX_FOLLOWED:
            raise ProtocolViolation(f"more than {MAX_FOLLOWED} partitions on one link")
        partition = self._find(self.node, follow)
        term = partition if isinstance(partition, FollowRefusal) else _term(partition, follow)
        if isinstance(term, FollowRefusal):
            return self._reject(follow.slot, term)
        assert isinstance(partition, Partition)
        self._drop(self._by_partition.get(partition))
        diverging = _divergence(partition, follow)
        if diverging is not None:
            return self._answers.append(encode_diverging(diverging))
        outbound = _Outbound(slot=follow.slot, partition=partition, term=term, next_offset=follow.end_offset)
        self._by_slot[follow.slot] = self._by_partition[partition] = outbound
        self._mark(outbound)
        self._send_epochs(follow, partition)
        report = ReplicaReport(follow.flushed_offset, follow.flushed_offset, follow.log_start_offset)
        self._count(outbound, report)

    def _send_epochs(self, follow: Follow, partition: Partition) -> None:
        """Send the newest epochs of a compacted log that the follower lacks. They do not change while it follows. Nor
        does the end of removed tombstones, as far as the follower has not flushed it.
        """
        log = partition.log
        if "compact" in log.topic.cleanup_policy or log.compaction.removed_end_offset:
            entries = tuple(entry for entry in log.leader_epochs.entries if entry[0] > follow.last_epoch)
            sent = SentEpochs(follow.slot, log.compaction.removed_end_offset, entries[-MAX_ENTRIES:])
            self._answers.append(encode_epochs(sent))

    def _progressed(self, progress: FollowerProgress) -> None:
        outbound = self._by_slot.get(progress.slot)
        if outbound is None:
            return
        if progress.written_offset > outbound.next_offset:
            raise ProtocolViolation(f"{outbound.partition.identity}: {progress.written_offset} was not sent")
        if progress.leader_epoch == outbound.term.epoch:
            report = ReplicaReport(progress.written_offset, progress.flushed_offset, progress.log_start_offset)
            self._count(outbound, report)

    def _count(self, outbound: _Outbound, report: ReplicaReport) -> None:
        if outbound.is_current:
            outbound.term.replicas.reported(self.node, report)
        self._reported(self.node, outbound.partition)

    def _return(self, returned_bytes: int) -> None:
        if returned_bytes > self._unreturned_bytes:
            raise ProtocolViolation(f"{returned_bytes} bytes returned, {self._unreturned_bytes} were sent")
        self._unreturned_bytes -= returned_bytes

    def _refuse(self, outbound: _Outbound) -> None:
        """Send no more of a partition that is not served now: the follower asks again later."""
        if self._by_slot.get(outbound.slot) is outbound:
            self._reject(outbound.slot, FollowRefusal.NOT_LEADER)
            self._drop(outbound)

    def _reject(self, slot: int, refusal: FollowRefusal) -> None:
        self._answers.append(encode_rejected(Rejected(slot, refusal)))

    def _drop(self, outbound: _Outbound | None) -> None:
        if outbound is not None:
            del self._by_slot[outbound.slot]
            del self._by_partition[outbound.partition]
            self._with_data.pop(outbound, None)
            self._catching_up.pop(outbound, None)
            self._with_offsets.pop(outbound, None)


def _term(partition: Partition, follow: Follow) -> LeaderTerm | FollowRefusal:
    """Return the term that the follower asks for, or why it cannot follow now.

    A follower waits while tombstones that it lacks are being removed: it might copy older records of their keys, but
    no longer the tombstones.
    """
    term, epoch = partition.leader_term, partition.term.epoch
    if follow.leader_epoch != epoch:
        is_old = follow.leader_epoch < epoch
        return FollowRefusal.FENCED_EPOCH if is_old else FollowRefusal.UNKNOWN_EPOCH
    if follow.last_epoch > partition.log.leader_epochs.latest:
        return FollowRefusal.UNKNOWN_EPOCH
    is_removing = (
        partition.log.compaction.is_swapping and partition.log.compaction.removed_end_offset > follow.end_offset
    )
    return FollowRefusal.NOT_LEADER if is_removing or term is None or partition.offline.reason is not None else term


def _divergence(partition: Partition, follow: Follow) -> Diverging | None:
    """An empty log above the end of this one diverges, too: it began at the start of another leader's log."""
    log = partition.log
    if follow.last_epoch == NO_EPOCH and follow.end_offset > log.log_end_offset:
        return Diverging(follow.slot, NO_EPOCH, log.log_end_offset)
    end = diverging_end(log.leader_epochs, log.log_end_offset, follow.last_epoch, follow.end_offset)
    return None if end is None else Diverging(follow.slot, *end)
