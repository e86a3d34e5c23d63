"""The high watermark of a leader: the lowest offset that every in-sync replica has reported.

Invariants: it never falls; it does not advance until every replica of the ISR has reported in this leader epoch.
Source: KIP-497 for the ISR, KAFKA-13091 for the rise when the ISR shrinks.
"""

from collections.abc import Collection

from conveyor.kernel.ids import NodeId, Offset

_NOT_REPORTED = -1


class HighWatermark:
    """See the module's docstring. The sender of a report decides whether it means flushed or written."""

    __slots__ = ("_progress", "offset")

    def __init__(self, offset: int) -> None:
        self.offset = Offset(offset)
        self._progress: dict[NodeId, int] = {}

    def begin(self, isr: Collection[NodeId], *, is_new_epoch: bool) -> None:
        """Wait for these replicas from the next report on. is_new_epoch: earlier reports no longer count."""
        before = {} if is_new_epoch else self._progress
        self._progress = {node: before.get(node, _NOT_REPORTED) for node in isr}

    def report(self, node: NodeId, offset: int) -> bool:
        """Record the progress of a replica of the ISR; ignore any other replica.

        Returns whether the high watermark has risen.
        """
        if node not in self._progress:
            return False
        self._progress[node] = offset
        lowest = min(self._progress.values())
        if lowest <= self.offset:
            return False
        self.offset = Offset(lowest)
        return True
