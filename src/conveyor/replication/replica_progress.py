"""Tracks how much the replicas of a led partition have made durable in the present leader epoch.

The leader waits for the ISR and for each replica that it has asked to join: the join may be granted before the leader
learns of it. `lowest` is what all of them have, by their reports; it is -1 until each of them has reported in this
leader epoch. The reports of other replicas count from the moment the leader waits for them.
Source: KIP-497 for the ISR, KAFKA-13091 for the rise when the ISR shrinks.
"""

from collections.abc import Callable, Mapping
from typing import NamedTuple

from conveyor.kernel.ids import NodeId
from conveyor.replication.roles import Leader
from conveyor.replication.term_context import TermContext

_NOT_REPORTED = -1


class ReplicaReport(NamedTuple):
    """The ends of what a replica has written and flushed, and the start of its log, which is on its disk.

    written_offset: counts where `flush.policy=os`; flushed_offset, unless the replica knows that it may lose more.
    """

    written_offset: int
    flushed_offset: int
    log_start_offset: int = 0


class ReplicaProgress:
    """See the module's docstring. progressed: called when `lowest` may have risen.

    joining: the replicas that this leader has asked to add to the ISR, with the partition epoch of the request. They
    are waited for, too, until the image shows a later partition epoch. reports: the last report of each other replica.
    """

    __slots__ = ("_context", "_isr", "_leader", "_log", "_progressed", "_waited", "joining", "reports")

    def __init__(
        self, context: TermContext, role: Leader, joining: Mapping[NodeId, int], progressed: Callable[[], None]
    ) -> None:
        self.joining = dict(joining)
        self.reports: dict[NodeId, ReplicaReport] = {}
        self._context = context
        self._log = context.log
        self._leader = role.leader
        self._progressed = progressed
        self.wait_for(role)

    def wait_for(self, role: Leader) -> None:
        """Wait for the ISR of a role. Joins that were asked for before it no longer count: the role has the answer."""
        self._isr = role.isr
        self.joining = {node: epoch for node, epoch in self.joining.items() if epoch >= role.partition_epoch}
        self._wait()

    def reported(self, node: NodeId, report: ReplicaReport) -> None:
        """Count the progress of another replica."""
        if self._context.offline.reason is not None:
            return
        before = self.reports.get(node, report)
        self.reports[node] = report
        if report.flushed_offset < before.flushed_offset:
            self._context.changed.emit(None)  # Other followers must keep tombstones that this replica has lost.
        self._progressed()

    def join(self, node: NodeId, partition_epoch: int) -> None:
        """Wait for a replica from now on, because this leader is about to ask that it joins the ISR."""
        self.joining[node] = partition_epoch
        self._wait()
        self._progressed()

    def end_join(self, node: NodeId) -> None:
        """Stop waiting for a replica whose join was refused."""
        if self.joining.pop(node, None) is not None:
            self._wait()
            self._progressed()

    def stop(self) -> None:
        """Call back no more: the term has ended. A cycle would keep the log's files open and their space in use."""
        self._progressed = _nothing

    def lowest(self) -> int:
        """Return the end of what this broker and all replicas that it waits for have made durable."""
        log, reports = self._log, self.reports
        is_flushed = log.topic.flush_policy == "ack"
        lowest: int = log.flushes.flushed_offset if is_flushed else log.written_offset
        for node in self._waited:
            report = reports.get(node)
            if report is None:
                return _NOT_REPORTED
            offset = report.flushed_offset if is_flushed else report.written_offset
            if offset < lowest:
                lowest = offset
        return lowest

    def durable_offset_of(self, node: NodeId) -> int:
        """Return the end of what a replica has reported to be as durable as the policy demands; -1 if nothing."""
        report = self.reports.get(node)
        if report is None:
            return _NOT_REPORTED
        return report.flushed_offset if self._log.topic.flush_policy == "ack" else report.written_offset

    def log_start_of(self, node: NodeId) -> int:
        """Return where a replica has reported that its log starts; -1 until it has reported."""
        return self.reports[node].log_start_offset if node in self.reports else _NOT_REPORTED

    def flushed_by_all(self, role: Leader) -> int:
        """Return the end of what all assigned replicas have flushed: 0 until each of them has reported. A replica that
        has reported without being assigned counts, too: the image may be about to show it.
        """
        reports, flushed = self.reports, int(self._log.flushes.flushed_offset)
        for node in {*role.replicas, *role.isr, *reports}:
            if node != self._leader:
                flushed = min(flushed, reports[node].flushed_offset if node in reports else 0)
        return flushed

    def _wait(self) -> None:
        self._waited = tuple(node for node in {*self._isr, *self.joining} if node != self._leader)


def _nothing() -> None:
    """A term that has ended does not advance."""
