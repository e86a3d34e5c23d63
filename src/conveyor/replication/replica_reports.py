"""What the other replicas of a led partition have reported in the present leader epoch."""

from typing import NamedTuple


class ReplicaReport(NamedTuple):
    """The ends of what a replica has written and flushed, and the start of its log, which is on its disk."""

    written_offset: int
    flushed_offset: int
    log_start_offset: int = 0
