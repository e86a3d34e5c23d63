"""The high watermark of a leader: the lowest offset that every replica it waits for has reported.

Invariants: it never falls on a leader; it does not advance until every replica it waits for has reported in this leader
epoch. A leader waits for the ISR and for each replica that it has asked to join: the join may be granted before the
leader learns of it. While the ISR is too small (`is_frozen`) it does not advance at all.
Source: KIP-497 for the ISR, KAFKA-13091 for the rise when the ISR shrinks, KAFKA-15583 for the frozen one.
"""

from collections.abc import Collection

from conveyor.kernel.ids import NodeId, Offset

_NOT_REPORTED = -1


class HighWatermark:
    """See the module's docstring. The sender of a report decides whether it means flushed or written."""

    __slots__ = ("_others", "_progress", "is_frozen", "offset")

    def __init__(self, offset: int) -> None:
        self.offset = Offset(offset)
        self.is_frozen = False
        self._progress: dict[NodeId, int] = {}
        self._others: dict[NodeId, int] = {}
        """The reports of replicas that it does not wait for. They count from the moment it does."""

    def begin(self, replicas: Collection[NodeId], *, is_new_epoch: bool) -> None:
        """Wait for these replicas from the next report on. is_new_epoch: earlier reports no longer count."""
        reports = {} if is_new_epoch else self._others | self._progress
        self._progress = {node: reports.pop(node, _NOT_REPORTED) for node in replicas}
        self._others = reports

    def report(self, node: NodeId, offset: int) -> bool:
        """Record the progress of a replica. Returns whether the high watermark has risen."""
        if node not in self._progress:
            self._others[node] = offset
            return False
        self._progress[node] = offset
        lowest = min(self._progress.values())
        if lowest <= self.offset or self.is_frozen:
            return False
        self.offset = Offset(lowest)
        return True

    def follow(self, offset: int) -> bool:
        """Take over the high watermark of this follower's leader. Returns whether it has risen."""
        if offset <= self.offset:
            return False
        self.offset = Offset(offset)
        return True

    def restart_at(self, offset: int) -> None:
        """Set the high watermark of a follower whose log was truncated below it, or has restarted."""
        self.offset = Offset(offset)
