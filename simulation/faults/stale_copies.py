"""A broker whose data directory becomes an older one, as nothing in the cluster can tell.

    copied while the broker runs, and put back some seconds later, without a registration in between
        -> it starts before all others, and leads what it is eligible for
        -> the others start, and follow it, or go offline rather than remove records that they know to be committed
        -> an operator removes the logs that were put back, and lets others lead
        -> an operator gives up the records of those that are still offline, because another leader lacks them

What is committed may be unknown to the other replicas for some seconds, and is lost if they follow the copy. So the
ledger excuses a partition as soon as an older log leads it. Nothing else is excused: no log that has not changed since
it was copied, and no replica that removes more than that; see `bound_watch`.
"""

import asyncio
from collections.abc import Collection
from typing import NamedTuple
from uuid import UUID

from conveyor.broker.broker_node import BrokerNode
from conveyor.broker.partitions.log_directories import LOGS
from conveyor.broker.partitions.replica_checkpoint import INTERVAL_MS
from conveyor.cluster.image import NO_LEADER
from conveyor.kernel.ids import NodeId, TopicPartition
from conveyor.testing.memory_disk import MemoryDisk
from simulation.cluster.fault_counts import FaultCounts
from simulation.cluster.machines import SESSION_TIMEOUT_MS
from simulation.cluster.simulated_cluster import SimulatedCluster
from simulation.faults.cluster_faults import duration_s
from simulation.simulated_broker import SimulatedBroker
from simulation.story_schedule import Step

_FOLLOWED_S = 4.0
"""The others may follow the copy for this long."""
_ELECTED_S = 6.0
"""An unclean election may take this long, and so may its leader's followers."""
_MOST_ROUNDS = 5


class _State(NamedTuple):
    """The state that a copy of a log has in common with its original, if that has not changed since."""

    topic_id: UUID
    start: int
    end: int
    epoch: int
    offline_reason: str | None


class _Copy(NamedTuple):
    """A data directory as it was. incarnation: of the registration at that time. logs: those on it."""

    disk: MemoryDisk
    incarnation: str
    logs: dict[TopicPartition, _State]


class StaleCopies:
    """Puts older copies of one broker's data directory back. See the module's docstring."""

    def __init__(self, cluster: SimulatedCluster, node_id: NodeId, counts: FaultCounts) -> None:
        self._cluster = cluster
        self._node_id = node_id
        self._counts = counts

    async def execute(self, step: Step) -> None:
        """Copies are older than what the other brokers know of the high watermarks."""
        copy = self._taken()
        if copy is None:
            return
        self._counts.note(step.action)
        await asyncio.sleep(INTERVAL_MS / 1000 + duration_s(step.number) / 3)
        async with self._cluster.control_all() as brokers:
            stale = self._stale(copy)
            if stale is not None and self._cluster.replicas.may_be_wiped(self._node_id, stale):
                self._counts.note("older copy started")
                await self._start_on(copy, stale, brokers, step.number)
                await self._remove(self._node_id, stale)
                await self._give_up_diverged()

    def _taken(self) -> _Copy | None:
        """Return a copy of the data directory; None if the broker is not well."""
        broker = self._cluster.brokers[self._node_id]
        if (
            not broker.is_sound
            or broker.node is None
            or not broker.node.partitions.logs.checkpoint.has_stored_settlement
        ):
            return None
        return _Copy(broker.disk.process_crash(), broker.node.metadata.session.incarnation, _logs(broker.node))

    def _stale(self, copy: _Copy) -> list[TopicPartition] | None:
        """Return the logs that have changed since; None if the broker has begun another registration."""
        broker = self._cluster.brokers[self._node_id]
        inside = broker.node if broker.is_ready else None
        if inside is None or inside.metadata.session.incarnation != copy.incarnation:
            return None
        return [identity for identity, state in _logs(inside).items() if state != copy.logs.get(identity)]

    async def _start_on(
        self, copy: _Copy, stale: Collection[TopicPartition], brokers: Collection[SimulatedBroker], number: int
    ) -> None:
        """Kill all brokers, and start this one on the copy before the others."""
        own = self._cluster.brokers[self._node_id]
        for log in stale:
            self._cluster.replicas.note_stale(self._node_id, log)
        for broker in brokers:
            broker.crash()
        own.replace_disk(copy.disk, has_power=True)
        await own.start()
        await asyncio.sleep((SESSION_TIMEOUT_MS + number % 1_000) / 1000)
        await asyncio.gather(*(broker.start() for broker in brokers if broker is not own))
        await asyncio.sleep(_FOLLOWED_S)

    async def _give_up_diverged(self) -> None:
        """Let replicas follow their leaders that have kept other records than these."""
        for _ in range(_MOST_ROUNDS):
            await asyncio.sleep(_ELECTED_S)
            diverged = {node_id: _diverged(broker) for node_id, broker in self._cluster.brokers.items()}
            if not any(diverged.values()) and self._is_whole():
                return
            for node_id, logs in diverged.items():
                await self._remove(node_id, [log for log in logs if self._may_give_up(node_id, log)])

    def _is_whole(self) -> bool:
        """Return whether all replicas are in sync. A replica that diverges is online while it looks for its leader."""
        topics = self._cluster.tree.image.topics.values()
        return all(len(one.isr) == len(one.replicas) for topic in topics for one in topic.partitions)

    def _may_give_up(self, node_id: NodeId, log: TopicPartition) -> bool:
        stored = self._cluster.tree.image.partition(*log)
        is_led = stored is not None and stored.leader not in (NO_LEADER, node_id)
        return is_led and self._cluster.replicas.is_excused(log)

    async def _remove(self, node_id: NodeId, logs: Collection[TopicPartition]) -> None:
        """Kill a broker, and start it without these logs. It copies them from their leaders."""
        broker = self._cluster.brokers[node_id]
        if not logs:
            return
        broker.crash()
        for log in logs:
            self._cluster.replicas.replace(self._cluster.loss(node_id), log)
            broker.disk.remove_tree(f"{LOGS}/{log.topic}-{log.partition}")
        await broker.start()


def _logs(inside: BrokerNode) -> dict[TopicPartition, _State]:
    """Return the states of all logs that a broker serves."""
    return {
        partition.identity: _State(
            topic_id=log.place.topic_id,
            start=log.log_start_offset,
            end=log.written_offset,
            epoch=log.leader_epochs.latest,
            offline_reason=partition.offline.reason,
        )
        for partition in inside.partitions.table
        for log in (partition.log,)
    }


def _diverged(broker: SimulatedBroker) -> list[TopicPartition]:
    """Return the partitions that are offline on a broker because their leaders lack records."""
    partitions = () if broker.node is None else broker.node.partitions.table
    return [
        partition.identity
        for partition in partitions
        if partition.offline.is_diverged and partition.offline.reason is not None
    ]
