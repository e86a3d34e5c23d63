"""The groups of a story: one of the classic protocol, one of the consumer protocol (KIP-848), and their members."""

import asyncio

from conveyor.cluster.image import OFFSETS_TOPIC
from conveyor.kernel.errors import RequestError
from conveyor.kernel.ids import TopicPartition
from simulation.clients.groups.group_members import TIMEOUT_MS, GroupMember
from simulation.clients.groups.group_promises import GroupPromises
from simulation.cluster.fault_counts import FaultCounts
from simulation.cluster.simulated_cluster import SimulatedCluster
from simulation.doors.client_door import ClientDoor
from simulation.doors.client_network import Disconnected
from simulation.doors.kafka_requests import committed_offset
from simulation.story_topics import PARTITIONS
from simulation.troubles import SHARED_TOPIC

_MEMBERS_OF_EACH = 3
_OFFSETS = TopicPartition(OFFSETS_TOPIC, 0)
_RETRY_S = 0.5


class ClusterGroups:
    """See the module's docstring. clients: by the name of the actor."""

    def __init__(self, cluster: SimulatedCluster, counts: FaultCounts) -> None:
        self._groups = [
            GroupPromises(name, lambda: cluster.replicas.is_excused(_OFFSETS), counts.note, TIMEOUT_MS / 1000)
            for name in ("crew", "modern-crew")
        ]
        numbers = range(1, 1 + _MEMBERS_OF_EACH * len(self._groups))
        self.clients = {
            f"member-{number}": GroupMember(number, self._groups[number % 2], is_classic=number % 2 == 0)
            for number in numbers
        }

    def check(self) -> None:
        """Raise what has ended a member."""
        for member in self.clients.values():
            member.check()

    async def check_the_end(self, door: ClientDoor) -> None:
        """Compare the committed offsets with the replies that the members received. All brokers run."""
        for member in self.clients.values():
            member.die()
        for promises in self._groups:
            for partition in range(PARTITIONS):
                promises.check(partition, promises.known(partition), await _committed(door, promises.group, partition))


async def _committed(door: ClientDoor, group: str, partition: int) -> int:
    while True:
        try:
            return await committed_offset(await door.leader(_OFFSETS), group, (SHARED_TOPIC, partition))
        except (Disconnected, RequestError):
            await asyncio.sleep(_RETRY_S)
