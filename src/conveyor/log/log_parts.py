"""What recovery hands over to a `Log`."""

import msgspec

from conveyor.log.leader_epochs import LeaderEpochs
from conveyor.log.producers.producer_state import ProducerState
from conveyor.log.segments.segment import Segment


class LogParts(msgspec.Struct, frozen=True, kw_only=True):
    """The result of recovery, from which a `Log` starts. fresh: directory entries are not durable yet.

    was_stopped_cleanly: the last stop was clean, or the log is new, so no record has been lost. lacks_batches: recovery
    has removed batches that were complete when the broker ended. removed_end_offset: see `Log`.
    """

    segments: list[Segment]
    producers: ProducerState
    leader_epochs: LeaderEpochs
    log_start_offset: int
    cleaned_offset: int
    gap_offset: int
    removed_end_offset: int
    fresh: bool
    was_stopped_cleanly: bool
    lacks_batches: bool = False
