"""Bugs of replication that both the model of one partition and the simulation of a cluster must find."""

from collections.abc import Mapping
from typing import Any
from weakref import WeakKeyDictionary

import pytest

from conveyor.kernel.ids import NodeId
from conveyor.log.log import Log
from conveyor.replication.leader_term import LeaderTerm
from conveyor.replication.replica_progress import ReplicaProgress, ReplicaReport
from conveyor.replication.roles import Leader
from conveyor.replication.streams.follower_end import FollowerEnd
from conveyor.replication.streams.frames import FollowerProgress
from conveyor.replication.term_context import TermContext


def ignore_pending_joins(monkeypatch: pytest.MonkeyPatch) -> None:
    """The high watermark waits for a replica only once its join is granted."""
    monkeypatch.setattr(ReplicaProgress, "join", lambda *_: None)


def join_below_the_epoch_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """A replica joins with what this leader has committed, but not with what the leader before it had (KAFKA-7128)."""
    monkeypatch.setattr(
        LeaderTerm, "may_join", lambda self, node: self.replicas.durable_offset_of(node) >= self.high_watermark
    )


def commit_below_the_minimum_isr(monkeypatch: pytest.MonkeyPatch) -> None:
    """The high watermark is not frozen while the ISR is too small (KAFKA-15583)."""

    def advance(self: LeaderTerm) -> None:
        has_enough_replicas, self._has_enough_replicas = self._has_enough_replicas, True
        plain_advance(self)
        self._has_enough_replicas = has_enough_replicas

    plain_advance = LeaderTerm.advance
    monkeypatch.setattr(LeaderTerm, "advance", advance)


def report_written_as_flushed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A follower reports what it has written as flushed."""

    def reported(self: FollowerEnd, inbound: Any) -> FollowerProgress:
        written_offset = inbound.partition.log.written_offset
        return plain_report(self, inbound)._replace(written_offset=written_offset, flushed_offset=written_offset)

    plain_report = FollowerEnd._report
    monkeypatch.setattr(FollowerEnd, "_report", reported)


def count_reports_of_earlier_epochs(monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker that leads again counts what replicas reported when it led before."""

    def begin(self: LeaderTerm, context: TermContext, role: Leader, before: Any, joining: Mapping[NodeId, int]) -> None:
        plain_begin(self, context, role, before, joining)
        self.replicas.reports = reports.setdefault(context.log, self.replicas.reports)

    reports: WeakKeyDictionary[Log, dict[NodeId, ReplicaReport]] = WeakKeyDictionary()
    plain_begin = LeaderTerm.__init__
    monkeypatch.setattr(LeaderTerm, "__init__", begin)
