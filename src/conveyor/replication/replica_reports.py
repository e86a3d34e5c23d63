"""What the other replicas of a led partition have reported in the present leader epoch."""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from conveyor.kernel.ids import NodeId


class ReplicaReport(NamedTuple):
    """The ends of what a replica has written and flushed, and the start of its log, which is on its disk."""

    written_offset: int
    flushed_offset: int
    log_start_offset: int = 0


_NOTHING = ReplicaReport(0, 0)


def flushed_by_all(reports: Mapping[NodeId, ReplicaReport], replicas: Iterable[NodeId]) -> int:
    """Return the end of what all these replicas have reported as flushed: 0 until each of them has reported. A replica
    that has reported without being among them counts, too: the image may be about to show it.
    """
    return min(reports.get(node, _NOTHING).flushed_offset for node in {*replicas, *reports})
