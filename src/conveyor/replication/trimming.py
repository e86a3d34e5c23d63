"""Trimming a partition's log: deleting its oldest records, on request or by the topic's retention.

Only the leader trims, because only the leader knows which messages its queue has settled. The caller runs the
`TrimJob`.
"""

from typing import NamedTuple, Protocol

from conveyor.kernel.errors import ErrorKind, RequestError, StorageFailure
from conveyor.log.log_start import TrimJob
from conveyor.log.retention_limits import retained_from
from conveyor.replication.partition import Partition


class RetentionLimits(NamedTuple):
    """What retention may delete of a partition that has a queue or a forwarder.

    kept_offset: the first message that is not due yet, which is kept with all later records; None if all are due.
    settled_offset: every subscription has settled all messages below it.
    """

    kept_offset: int | None
    settled_offset: int


class RetainingReader(Protocol):
    """The queue or the forwarder of a partition."""

    def retention_limits(self) -> RetentionLimits: ...


class CommittedLimits:
    """The limits by what a machine has decided and its state log has committed: the next leader may not know the rest,
    and deliver messages that must not be deleted then.

    Limits count once the high watermark has reached the end that the log had with them: at once in a quiet log,
    otherwise at a later look. A decision to deliver messages again counts at once.
    """

    def __init__(self, state: Partition, kept_offset: int) -> None:
        self._state = state
        self._committed = RetentionLimits(kept_offset, 0)
        self._seen: tuple[int, RetentionLimits] | None = None

    def look(self, present: RetentionLimits) -> RetentionLimits:
        """Return the limits that count. present: by all that is decided."""
        end_offset, high_watermark = self._state.log.log_end_offset, self._state.term.high_watermark
        if high_watermark >= end_offset:
            self._committed, self._seen = present, None
        elif self._seen is None:
            self._seen = end_offset, present
        elif high_watermark >= self._seen[0]:
            self._committed, self._seen = self._seen[1], (end_offset, present)
        return _lower(self._committed, present)


def _lower(one: RetentionLimits, other: RetentionLimits) -> RetentionLimits:
    kept = [limits.kept_offset for limits in (one, other) if limits.kept_offset is not None]
    return RetentionLimits(min(kept, default=None), min(one.settled_offset, other.settled_offset))


def delete_records(partition: Partition, offset: int) -> TrimJob:
    """Delete all records below an offset.

    Raises RequestError: OFFSET_OUT_OF_RANGE, POLICY_VIOLATION, PARTITION_OFFLINE, NOT_LEADER.
    """
    _check_deletion(partition, offset)
    try:
        return partition.log.start.trim(offset)
    except StorageFailure as failure:
        raise partition.failed_read(failure) from failure


def are_deleted(partition: Partition, offset: int) -> bool:
    """Return whether the log starts at an offset or above it, also on the disk. Raises like `delete_records`."""
    _check_deletion(partition, offset)
    return offset <= partition.log.start.flushed_offset


def _check_deletion(partition: Partition, offset: int) -> None:
    term = partition.leading()
    if "compact" in partition.log.topic.cleanup_policy and not _may_delete(partition):
        raise RequestError(
            ErrorKind.POLICY_VIOLATION, f"{partition.identity} is compacted: its cleanup.policy does not say `delete`"
        )
    if not 0 <= offset <= term.high_watermark:
        raise RequestError(
            ErrorKind.OFFSET_OUT_OF_RANGE,
            f"offset {offset} is outside 0..{term.high_watermark} of {partition.identity}",
        )


def retain(
    partition: Partition, now_ms: int, reader: RetainingReader | None = None, *, may_roll: bool = True
) -> TrimJob | None:
    """Trim the log by the topic's retention; None if there is nothing to delete.

    reader: limits the retention. may_roll: close the active segment if all of it is too old. This needs disk space for
    its indexes.
    """
    term = partition.leader_term
    if partition.offline.reason is not None or term is None or not _may_delete(partition):
        return None
    if may_roll and not _roll_if_too_old(partition, now_ms):
        return None
    log = partition.log
    limit, settled = int(term.high_watermark), 0
    if reader is not None:
        kept, settled = reader.retention_limits()
        limit = limit if kept is None else min(limit, kept)
    start = retained_from(log.segments.all, log.log_start_offset, log.topic, limit, now_ms, settled)
    try:
        return log.start.trim(start) if start > log.log_start_offset else None
    except StorageFailure as failure:
        partition.failed_read(failure)
        return None


def _roll_if_too_old(partition: Partition, now_ms: int) -> bool:
    try:
        partition.log.start.roll_if_too_old(now_ms)
    except StorageFailure as failure:
        partition.go_offline(failure)
        return False
    partition.want_flush()
    return True


def _may_delete(partition: Partition) -> bool:
    """Return whether retention deletes the topic's records, and does not only compact them or keep all."""
    policy = partition.log.topic.cleanup_policy
    return "delete" in policy or "acknowledged" in policy
