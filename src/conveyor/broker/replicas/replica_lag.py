"""Tracks how long each in-sync replica has lagged behind its leader. Time is passed in.

A replica has caught up at a time if it has, now or later, all records that the leader had then. So a replica that has
been idle does not lag with the first record that it lacks, and one that is always a little behind does not lag either.
The first check in a leader epoch counts as caught up: a replica that never catches up gets the full time. One that is
not connected does not catch up, even if it has all records.
"""

import msgspec

from conveyor.kernel.ids import LeaderEpoch, NodeId
from conveyor.replication.partition import Partition

MESSAGES_FOR_MS = 1_000
"""A replica may lack too many messages for this long."""


class LagLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Settings: `broker.replica_lag_time_max_ms`, `broker.replica_lag_max_messages` (0: no limit)."""

    time_ms: int
    messages: int


class _Watched(msgspec.Struct, kw_only=True):
    """One replica. marker_offset: the leader's end at marker_ms, which the replica has yet to reach."""

    epoch: LeaderEpoch
    caught_up_ms: int
    marker_offset: int
    marker_ms: int
    behind_since_ms: int | None = None
    lag_ms: int = 0


class ReplicaLag:
    """The replicas of all partitions that this broker leads; see the module's docstring."""

    def __init__(self) -> None:
        self._watched: dict[Partition, dict[NodeId, _Watched]] = {}

    @property
    def longest_ms(self) -> int:
        """The longest time that a replica had not caught up for, when it was last checked."""
        return max((watched.lag_ms for replicas in self._watched.values() for watched in replicas.values()), default=0)

    def forget(self, partition: Partition) -> None:
        """The partition is not led any more."""
        self._watched.pop(partition, None)

    def joins(self, partition: Partition, node: NodeId) -> None:
        """A replica is about to be in sync again: it gets the full time, whatever it lacked before."""
        self._watched.get(partition, {}).pop(node, None)

    def lags(self, partition: Partition, node: NodeId, now_ms: int, limits: LagLimits, *, is_connected: bool) -> bool:
        """Return whether a replica lags now. To be called regularly for each in-sync replica."""
        term = partition.leader_term
        assert term is not None, "only a leader measures its replicas"
        end = partition.log.log_end_offset
        replicas = self._watched.setdefault(partition, {})
        watched = replicas.get(node)
        if watched is None or watched.epoch != term.epoch:
            watched = replicas[node] = _Watched(
                epoch=term.epoch, caught_up_ms=now_ms, marker_offset=end, marker_ms=now_ms
            )
        durable = term.replicas.durable_offset_of(node) if is_connected else -1
        if durable >= watched.marker_offset:
            watched.caught_up_ms = now_ms if durable >= end else watched.marker_ms
            watched.marker_offset, watched.marker_ms = end, now_ms
        watched.lag_ms = now_ms - watched.caught_up_ms
        lacks_too_many = limits.messages > 0 and end - durable > limits.messages
        if not lacks_too_many:
            watched.behind_since_ms = None
        elif watched.behind_since_ms is None:
            watched.behind_since_ms = now_ms
        return now_ms - watched.caught_up_ms > limits.time_ms or (
            watched.behind_since_ms is not None and now_ms - watched.behind_since_ms >= MESSAGES_FOR_MS
        )
