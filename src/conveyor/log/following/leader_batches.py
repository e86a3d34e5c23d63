"""Checks of the batches that a follower copies from its leader, before the follower changes anything.

The batches are stored as the leader sent them. They must continue the follower's log: offsets follow each other without
a gap or overlap, and leader epochs do not fall. Offsets may be missing only below the follower's gap offset; see
`LeaderCopy.allow_gaps`. Only headers and CRCs are checked; see `check_stored`. Source: KIP-101, KIP-595.
"""

from enum import Enum, auto
from typing import NamedTuple

import msgspec

from conveyor.kernel.errors import ErrorKind, RequestError
from conveyor.kernel.ids import Offset
from conveyor.kernel.ports import Bytes
from conveyor.records.batch import HEADER_BYTES, BatchHeader, read_header
from conveyor.records.checked_batch import CheckedBatch, check_stored

MAX_TAKEN_BYTES = 1 << 20
"""The most bytes that one call takes, unless its first batch is larger."""

MAX_TAKEN_BATCHES = 1_000


class FollowerAppendInfo(NamedTuple):
    """The result of an append by a follower. taken_bytes: how many of the bytes are appended; the rest needs further
    calls.
    """

    taken_bytes: int
    log_end_offset: Offset


class BatchFault(Enum):
    """The reason why a batch of a leader is refused."""

    INCOMPLETE = auto()
    """The bytes end within the batch."""

    INVALID = auto()
    """Its magic, length, CRC or a header field is wrong."""

    OVERLAP = auto()
    """It begins below the log end offset."""

    GAP = auto()
    """Offsets before it are missing, and no compaction explains that."""

    OLD_EPOCH = auto()
    """Its leader epoch is below that of an earlier batch, or below an epoch that this broker has begun itself."""

    FUTURE_EPOCH = auto()
    """Its leader epoch is above that of the leader that sent it."""


class RefusedBatch(RequestError):  # noqa: N818 - named for what it is
    """A leader sent a batch that cannot follow this log. Nothing of the call's bytes was appended.

    number, position: the batch's index and first byte in the bytes of the call.
    """

    def __init__(self, fault: BatchFault, number: int, position: int, reason: str) -> None:
        super().__init__(ErrorKind.CORRUPT_BATCH, f"batch {number} of the leader, at byte {position}: {reason}")
        self.fault = fault
        self.number = number
        self.position = position


class LogTail(msgspec.Struct, frozen=True, kw_only=True):
    """The end that the next batch must continue: the log end offset, the latest leader epoch, and the offset below
    which offsets may be missing.

    is_empty: the log has no batch at all. The first one may then begin below the log end offset, which is the log start
    offset too, if it holds that offset: a log may start within a batch.
    """

    end_offset: int
    is_empty: bool
    leader_epoch: int
    gap_offset: int


def check_leader_batches(content: Bytes, tail: LogTail, leader_epoch: int) -> list[CheckedBatch]:
    """Return the leading batches of the bytes, checked: at least one, and at most MAX_TAKEN_BYTES or MAX_TAKEN_BATCHES.

    leader_epoch: the epoch of the leader that sent them. Raises RefusedBatch if one of them is bad.
    """
    batches: list[CheckedBatch] = []
    view, position = memoryview(content), 0
    while position < len(view) and len(batches) < MAX_TAKEN_BATCHES:
        number = len(batches)
        size = _size_at(view, position, number)
        if batches and position + size > MAX_TAKEN_BYTES:
            break
        try:
            batch = check_stored(view[position : position + size])
        except RequestError as error:
            raise RefusedBatch(BatchFault.INVALID, number, position, error.message) from error
        fault = _fault(batch.header, tail, leader_epoch)
        if fault is not None:
            raise RefusedBatch(fault, number, position, _reason(batch.header, tail, leader_epoch))
        batches.append(batch)
        header = batch.header
        tail = LogTail(
            end_offset=header.next_offset,
            is_empty=False,
            leader_epoch=header.leader_epoch,
            gap_offset=tail.gap_offset,
        )
        position += size
    return batches


def _size_at(view: memoryview, position: int, number: int) -> int:
    """Return the size of the batch at a position. All its bytes are present."""
    available = len(view) - position
    if available < HEADER_BYTES:
        raise RefusedBatch(BatchFault.INCOMPLETE, number, position, f"{available} bytes are not a batch")
    size = read_header(view, position).size
    if size > available:
        raise RefusedBatch(BatchFault.INCOMPLETE, number, position, f"{available} of its {size} bytes were sent")
    return max(size, HEADER_BYTES)


def _fault(header: BatchHeader, tail: LogTail, leader_epoch: int) -> BatchFault | None:
    if header.base_offset < tail.end_offset and not (tail.is_empty and header.next_offset > tail.end_offset):
        return BatchFault.OVERLAP
    if header.base_offset > max(tail.end_offset, tail.gap_offset):
        return BatchFault.GAP
    if header.leader_epoch < tail.leader_epoch:
        return BatchFault.OLD_EPOCH
    return BatchFault.FUTURE_EPOCH if header.leader_epoch > leader_epoch else None


def _reason(header: BatchHeader, tail: LogTail, leader_epoch: int) -> str:
    return (
        f"offset {header.base_offset} in epoch {header.leader_epoch} cannot follow offset {tail.end_offset}"
        f" in epoch {tail.leader_epoch}; offsets may be missing below {tail.gap_offset},"
        f" and the leader's epoch is {leader_epoch}"
    )
