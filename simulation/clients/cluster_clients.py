"""Clients that only make sense in a cluster: a consumer that looks for the end, and an operator.

Invariants, by the names that failures report:

    NoOffsetGoesBack    the end of a partition (ListOffsets, latest) never falls for a client that knows in which leader
                        epoch it was shown before; and a consumer that continues there, in whatever epoch, is never
                        refused because the offset is out of range: it would reset its position
"""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import permutations

from conveyor.cluster.image import NO_LEADER, ClusterImage, PartitionImage
from conveyor.cluster.topic_change import ConfigChange, Operation
from conveyor.kernel.errors import ErrorKind, RequestError
from conveyor.kernel.ids import NodeId, TopicPartition
from simulation.cluster.simulated_cluster import SimulatedCluster
from simulation.doors.client_door import BrokerDoor, ClientDoor
from simulation.doors.client_network import Disconnected
from simulation.doors.kafka_requests import (
    LATEST,
    TOPIC_RESOURCE,
    change_config,
    elect_leaders,
    fetch,
    list_offset,
    reassign,
)
from simulation.ledger import InvariantBroken, LogLedger, OffsetLedger, Place
from simulation.story_schedule import Step
from simulation.story_topics import LOG_TOPIC, PARTITIONS

_NO_REPLY = (Disconnected, RequestError)
_POLLS = 16
_POLL_EACH_S = 0.003
_FENCED_EACH_S = 0.05


class EndWatcher:
    """Asks for the ends of partitions, and reads there. See NoOffsetGoesBack.

    A record that the ledger knows to be acknowledged is below the end.
    """

    def __init__(self, cluster: SimulatedCluster, ledger: LogLedger) -> None:
        self._cluster = cluster
        self._ledger = ledger
        self._door = cluster.clients.client("election watcher")
        self._ends: dict[Place, int] = {}
        self._epochs: dict[Place, int] = {}
        """The newest leader epochs that have shown an end."""
        self._has_elected = asyncio.Event()
        cluster.tree.observe(self._stored)

    async def poll_after_elections(self) -> None:
        """Ask the new leader often after each election, forever: it does not know yet what is committed."""
        while True:
            await self._has_elected.wait()
            self._has_elected.clear()
            for number in range(_POLLS):
                place = (LOG_TOPIC, number % PARTITIONS)
                elected = self._cluster.tree.image.partition(*place)
                if elected is not None and elected.leader != NO_LEADER:
                    with suppress(*_NO_REPLY):
                        await self._ask(number, place, self._door.broker(elected.leader), elected.leader_epoch)
                await asyncio.sleep(_POLL_EACH_S)

    def _stored(self, old: ClusterImage, new: ClusterImage) -> None:
        before, after = (image.topics.get(LOG_TOPIC) for image in (old, new))
        if before is not None and after is not None and before is not after:
            changed = zip(before.partitions, after.partitions, strict=True)
            if any(was.leader_epoch != now.leader_epoch for was, now in changed):
                self._has_elected.set()

    async def execute(self, step: Step, door: ClientDoor) -> None:
        place = (LOG_TOPIC, step.number % PARTITIONS)
        with suppress(*_NO_REPLY):
            broker = await door.leader(place)
            await self._ask(step.number, place, broker, door.newest_epoch(place))

    async def _ask(self, number: int, place: Place, broker: BrokerDoor, epoch: int) -> None:
        await (self._list if number % 3 else self._read)(place, broker, epoch)

    async def _list(self, place: Place, broker: BrokerDoor, epoch: int) -> None:
        before, epoch = self._known_end(place), max(epoch, self._epochs.get(place, epoch))
        end = await list_offset(broker, place, LATEST, epoch)
        self._epochs[place] = max(epoch, self._epochs.get(place, epoch))
        if self._ledger.of(place).is_excused:
            return
        if end < before:
            raise InvariantBroken("NoOffsetGoesBack", f"{place} ends at {end} in epoch {epoch}, before at {before}")
        self._ends[place] = max(end, self._ends.get(place, 0))

    def _known_end(self, place: Place) -> int:
        last = max(self._ledger.of(place).acknowledged, default=-1)
        return max(self._ends.get(place, 0), last + 1)

    async def _read(self, place: Place, broker: BrokerDoor, epoch: int) -> None:
        end = self._known_end(place)
        fetched = await fetch(broker, place, end, epoch=epoch)
        if self._ledger.of(place).is_excused or end < self._ledger.of(place).readable_from:
            return
        if fetched.error is not None and fetched.error.kind is ErrorKind.OFFSET_OUT_OF_RANGE:
            raise InvariantBroken("NoOffsetGoesBack", f"{place}: {end} was the end, in epoch {epoch}: {fetched.error}")


class ClusterOffsets(OffsetLedger):
    """The offsets of one group. is_excused: returns whether they may be lost; see `replica_ledger`."""

    def __init__(self, is_excused: Callable[[], bool]) -> None:
        super().__init__()
        self._is_excused = is_excused

    def check(self, offset: int) -> None:
        if not self._is_excused():
            super().check(offset)


class ClusterOperator:
    """Reassigns partitions, elects preferred leaders and changes `min.insync.replicas`.

    topics: what may be reassigned, with its replication factor.
    """

    def __init__(self, cluster: SimulatedCluster, topics: dict[str, int]) -> None:
        self._cluster = cluster
        self._topics = sorted(topics.items())

    async def execute(self, step: Step, door: ClientDoor) -> None:
        action = {
            "reassign": self._reassign,
            "cancel_reassignment": self._cancel,
            "elect_preferred": self._elect,
            "set_min_insync": self._set_min_insync,
        }[step.action]
        with suppress(*_NO_REPLY):
            await action(door.any(), step.number)

    async def elect_uncleanly(self, door: ClientDoor) -> None:
        """Elect leaders for partitions whose in-sync replicas have all lost their records, or cannot prove that they
        have them. If a record was acknowledged there that nothing excuses, its loss is found.

        A broker that leads with a log that it cannot open is stopped for the election.
        """
        failed = next(filter(self._leads_what_is_lost, self._cluster.brokers), None)
        if failed is None:
            return await self._elect_leaderless(door)
        async with self._cluster.control(failed) as broker:
            broker.crash()
            while failed in {partition.leader for _, partition in self._partitions()}:  # noqa: ASYNC110 - virtual time
                await asyncio.sleep(_FENCED_EACH_S)
            await self._elect_leaderless(door)
            await broker.start()

    def _leads_what_is_lost(self, node_id: NodeId) -> bool:
        """Return whether a broker alone is in sync with a partition whose log is damaged there."""
        inside, own = self._cluster.brokers[node_id].node, {node_id}
        damaged = () if inside is None else inside.partitions.table.damaged()
        return any(
            identity in damaged and partition.leader in own and {*partition.isr, *partition.elr} == own
            for identity, partition in self._partitions()
        )

    def _partitions(self) -> Iterator[tuple[TopicPartition, PartitionImage]]:
        for topic in self._cluster.tree.image.topics.values():
            for number, partition in enumerate(topic.partitions):
                yield TopicPartition(topic.name, number), partition

    async def _elect_leaderless(self, door: ClientDoor) -> None:
        wanted = [
            (identity.topic, identity.partition)
            for identity, partition in self._partitions()
            if partition.leader == NO_LEADER
            and (not (partition.isr or partition.elr) or self._cluster.replicas.is_excused(identity))
        ]
        if wanted:
            with suppress(*_NO_REPLY):
                await elect_leaders(door.any(), wanted, is_unclean=True)

    async def _reassign(self, broker: BrokerDoor, number: int) -> None:
        """Sometimes with one replica less than the topic should have."""
        topic, factor = self._topics[number % len(self._topics)]
        partition, number = number // 8 % PARTITIONS, number // 16
        size = max(1, factor - 1) if factor == len(self._cluster.brokers) and number % 2 else factor
        targets = list(permutations(sorted(self._cluster.brokers), size))
        await reassign(broker, (topic, partition), targets[number // 2 % len(targets)])

    async def _cancel(self, broker: BrokerDoor, number: int) -> None:
        topic, _ = self._topics[number % len(self._topics)]
        await reassign(broker, (topic, number // 8 % PARTITIONS), None)

    async def _elect(self, broker: BrokerDoor, number: int) -> None:
        topic, _ = self._topics[number % len(self._topics)]
        await elect_leaders(broker, [(topic, number // 8 % PARTITIONS)], is_unclean=False)

    async def _set_min_insync(self, broker: BrokerDoor, number: int) -> None:
        change = ConfigChange(name="min.insync.replicas", operation=Operation.SET, value=str(1 + number % 2))
        await change_config(broker, (TOPIC_RESOURCE, LOG_TOPIC), change)
