"""The input of recovery, and its result, from which a `Log` starts."""

from typing import NamedTuple

import msgspec

from conveyor.kernel.ids import Offset
from conveyor.log.leader_epochs import MAX_EPOCH, LeaderEpochs
from conveyor.log.producers.producer_state import ProducerState
from conveyor.log.segments.segment import Segment


class ExpectedLog(NamedTuple):
    """The log that a start must find, as far as it is known outside of the log's directory.

    may_be_new: the log need not exist. end_offset: of what was on the disk: the log does not end below it.
    start_offset: the log does not begin below it. high_watermark: of the partition, if the log reaches it.
    has_segment: no power failure can have taken the name of its segment. leader_epoch: the partition's newest.
    is_unflushed: records may have been committed before they were on this disk, because of `flush.policy=os`.
    """

    may_be_new: bool = True
    end_offset: int = 0
    high_watermark: int = 0
    start_offset: int = 0
    has_segment: bool = False
    leader_epoch: int = MAX_EPOCH
    is_unflushed: bool = False

    @property
    def is_flushed(self) -> bool:
        """Whether some of the records above the log start were on the disk."""
        return self.end_offset > self.start_offset


NOTHING_EXPECTED = ExpectedLog()


class Recovered(NamedTuple):
    """The facts that recovery has found about a log, beside its content.

    was_stopped_cleanly: the last stop was certainly clean, or the log is new, so no record has been lost.
    lacks_batches: recovery has removed batches that were complete when the broker ended. high_watermark: the
    partition's is not below it.
    """

    was_stopped_cleanly: bool
    lacks_batches: bool
    high_watermark: Offset


class LogParts(msgspec.Struct, frozen=True, kw_only=True):
    """The result of recovery, from which a `Log` starts. fresh: directory entries are not durable yet.

    The other offsets: see `offset_file`.
    """

    segments: list[Segment]
    producers: ProducerState
    leader_epochs: LeaderEpochs
    log_start_offset: int
    cleaned_offset: int
    gap_offset: int
    removed_end_offset: int
    fresh: bool
    recovered: Recovered
