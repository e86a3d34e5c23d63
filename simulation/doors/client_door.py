"""One client's connections to all brokers of a story, and how it finds the leaders of partitions."""

import asyncio
from collections.abc import Mapping, Sequence
from random import Random
from typing import Any, TypeVar

from conveyor.cluster.image import NO_EPOCH, NO_LEADER
from conveyor.kernel.errors import RequestError
from conveyor.kernel.ids import LeaderEpoch, NodeId
from conveyor.replication.roles import Leader
from simulation.doors.broker_doors import HTTP_PORT, KAFKA_PORT
from simulation.doors.client_network import ClientNetwork, Disconnected
from simulation.doors.kafka_link import KafkaLink, Watch
from simulation.doors.kafka_requests import published_at, show_topic
from simulation.doors.rest_link import RestAnswer, RestLink
from simulation.ledger import Place
from simulation.simulated_broker import SimulatedBroker
from simulation.simulated_clock import SimulatedClock

_REQUEST_TIMEOUT_S = 10.0
_PAUSE_S = 0.2
_RESETS = 0.005
"""The share of requests after which the network resets the connection."""
_LONGEST_UNTIL_RESET_S = 0.02
_LAST_REQUESTS = 0.02
"""The share of HTTP requests after which the client says that it sends no more."""


Reply = TypeVar("Reply")


class ClientSide:
    """The parts that all clients of a story share: their network, and the newest leader epochs that they have seen."""

    def __init__(
        self, network: ClientNetwork, brokers: Mapping[NodeId, SimulatedBroker], chance: Random, clock: SimulatedClock
    ) -> None:
        self.network = network
        self.brokers = brokers
        self.chance = chance
        self.clock = clock
        self.newest: dict[Place, tuple[LeaderEpoch, NodeId]] = {}

    def client(self, name: str) -> "ClientDoor":
        """Return the connections of one client. name: its client id."""
        return ClientDoor(self, name)


class ClientDoor:
    """See the module's docstring. Requests to one broker over one door go over one connection."""

    def __init__(self, side: ClientSide, name: str) -> None:
        self._side = side
        self._name = name
        self._doors: dict[NodeId, BrokerDoor] = {}

    @property
    def clock(self) -> SimulatedClock:
        """The clock of the clients."""
        return self._side.clock

    def any(self) -> "BrokerDoor":
        """Return a broker as clients find one: it may be dead."""
        return self.broker(self._side.chance.choice(list(self._side.brokers)))

    def broker(self, node_id: NodeId) -> "BrokerDoor":
        if node_id not in self._doors:
            self._doors[node_id] = BrokerDoor(self._side, self._name, self._side.brokers[node_id])
        return self._doors[node_id]

    async def leader(self, place: Place, asked: "BrokerDoor | None" = None) -> "BrokerDoor":
        """Return the leader of a partition by the newest metadata that clients have seen; if it shows none, any broker.

        As Kafka's clients do, they never go back to an earlier leader epoch. asked: the broker that a client asks, as
        they do not ask one that gives no answer again before the others; any broker if it is None.
        """
        asked, newest = asked or self.any(), self._side.newest
        try:
            shown = (await show_topic(asked, place[0])).leaders.get(place[1], (NO_EPOCH, NO_LEADER))
        except (Disconnected, RequestError):
            await asyncio.sleep(_PAUSE_S)
        else:
            newest[place] = max(newest.get(place, shown), shown)
        _, node_id = newest.get(place, (NO_EPOCH, NO_LEADER))
        return self.broker(node_id) if node_id in self._side.brokers else asked

    def newest_epoch(self, place: Place) -> LeaderEpoch:
        """Return the newest leader epoch of a partition that clients have seen."""
        return self._side.newest.get(place, (NO_EPOCH, NO_LEADER))[0]


class BrokerDoor:
    """One client's connections to one broker, which are opened when they are needed."""

    def __init__(self, side: ClientSide, name: str, broker: SimulatedBroker) -> None:
        self._side = side
        self._name = name
        self._broker = broker
        self._dialling = asyncio.Lock()
        self._kafka: KafkaLink | None = None
        self._rest: RestLink | None = None

    @property
    def clock(self) -> SimulatedClock:
        """The clock of the clients."""
        return self._side.clock

    async def kafka(self, api_key: int, version: int, body: Mapping[str, Any], watch: Watch | None = None) -> Any:
        """Ask the broker over Kafka's protocol. Returns kio's response. Raises Disconnected."""
        link = await self.kafka_link()
        self._disturb(link)
        return await self._answer(link, link.send(api_key, version, body, watch))

    async def rest(self, method: str, path: str, document: object = None) -> RestAnswer:
        """Ask the broker over HTTP. Raises Disconnected."""
        link = await self.rest_link()
        self._disturb(link)
        reply = link.send(method, path, document)
        if method != "GET" and self._side.chance.random() < _LAST_REQUESTS:  # One that waits would end with its client.
            link.end_input()
            self._rest = None
        return await self._answer(link, reply)

    def acknowledgements(self, topic: str, numbers: Sequence[int]) -> Watch:
        return _Acknowledgements(self._broker, topic, numbers)

    async def kafka_link(self) -> KafkaLink:
        """Return the connection to the Kafka door. Raises Disconnected."""
        async with self._dialling:
            if self._kafka is None or not self._kafka.is_open:
                self._kafka = await self._side.network.connect(
                    lambda: KafkaLink(self._name, self._broker.bugs.append), self._broker.host, KAFKA_PORT
                )
            return self._kafka

    async def rest_link(self) -> RestLink:
        """Return the connection to the HTTP door. Raises Disconnected."""
        async with self._dialling:
            if self._rest is None or not self._rest.is_open:
                self._rest = await self._side.network.connect(RestLink, self._broker.host, HTTP_PORT)
            return self._rest

    def _disturb(self, link: KafkaLink | RestLink) -> None:
        """Reset the connection soon, by chance."""
        chance = self._side.chance
        if chance.random() < _RESETS:
            asyncio.get_running_loop().call_later(chance.uniform(0, _LONGEST_UNTIL_RESET_S), link.close)

    async def _answer(self, link: KafkaLink | RestLink, reply: "asyncio.Future[Reply]") -> Reply:
        try:
            async with asyncio.timeout(_REQUEST_TIMEOUT_S):
                return await reply
        except TimeoutError as error:
            link.close()
            raise Disconnected("no reply in time") from error
        except asyncio.CancelledError:
            link.close()
            raise


class _Acknowledgements(Watch):
    """Checks in which leader epochs a broker acknowledges batches, when it does: its process may be paused before the
    client has the answer.
    """

    def __init__(self, broker: SimulatedBroker, topic: str, numbers: Sequence[int]) -> None:
        self._broker = broker
        self._topic = topic
        self._numbers = numbers
        self._roles: list[tuple[Leader | None, int]] = []
        """The roles of the partitions, and the ends of their logs, when the request arrived."""

    def arrived(self) -> None:
        inside = self._broker.node
        if inside is None:
            return
        self._incarnation, self._image = self._broker.starts, inside.metadata.image.topics.get(self._topic)
        for number in self._numbers:
            partition = inside.partitions.table.get(self._topic, number)
            term = None if partition is None else partition.leader_term
            end = 0 if partition is None else partition.log.log_end_offset
            self._roles.append((None if term is None else term.role, end))

    def answered(self, response: Any) -> None:
        results = response.responses[0].partition_responses
        for number, (role, end), result in zip(self._numbers, self._roles, results, strict=False):
            if role is None or role.is_read_only or self._image is None or published_at(result).error is not None:
                continue
            led, is_new = (self._image.topic_id, number, role.epoch), result.base_offset >= end
            self._broker.epochs.acknowledge(*led, self._incarnation, is_new=is_new)
