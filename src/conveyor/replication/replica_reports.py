"""What the other replicas of a led partition have reported in the present leader epoch."""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from conveyor.kernel.ids import NodeId


class ReplicaReport(NamedTuple):
    """The ends of what a replica has written and flushed, and the start of its log, which is on its disk.

    written_offset: counts where `flush.policy=os`; flushed_offset, unless the replica knows that it may lose more.
    """

    written_offset: int
    flushed_offset: int
    log_start_offset: int = 0


_NOTHING = ReplicaReport(0, 0)


def log_start_of(reports: Mapping[NodeId, ReplicaReport], node: NodeId) -> int:
    """Return where a replica has reported that its log starts; -1 until it has reported."""
    return reports[node].log_start_offset if node in reports else -1


def flushed_by_all(reports: Mapping[NodeId, ReplicaReport], replicas: Iterable[NodeId]) -> int:
    """Return the end of what all these replicas have reported as flushed: 0 until each of them has reported. A replica
    that has reported without being among them counts, too: the image may be about to show it.
    """
    return min(reports.get(node, _NOTHING).flushed_offset for node in {*replicas, *reports})
