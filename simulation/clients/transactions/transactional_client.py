"""Transactional producers. Each executes its steps in order and reports to `TransactionPromises`.

    transact    begin, send batches to one or both partitions, commit or abort. Some transactions also commit the
                position of a group, which the client has fetched before. Sometimes the client stops in between, as if
                it was killed: its next step begins with InitProducerId
    desert      send, or transact, with a new transactional id that is not used again
    abandon     send a batch to a partition that is new in the transaction, and abort before there is an answer: the
                leader of the partition asks the coordinator about the batch, whose answer may be late
    take_over   InitProducerId, which aborts an open transaction
    send_late   a request that was sent before arrives again, as if a network had held it back

Clients with the same transactional id take it from each other, so that each is a zombie now and then. A client repeats
each request until it has an answer, for some seconds; a client that gets none stops. A network may hold back a batch
of a transaction that is to be aborted, until the abort is on its way or later. A client may connect again, and a
position of an earlier transaction arrives once more over its older connection.

TV1 and TV2 are the transaction versions of KIP-890; in TV2 the first batch lets a partition take part. A late EndTxn or
marker is only sent in TV2: TV1 cannot tell it from one that is meant for the present transaction (KAFKA-17754,
KAFKA-19446).
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from random import Random
from typing import NamedTuple, TypeVar

from conveyor.broker.broker_node import BrokerNode
from conveyor.cluster.image import NO_LEADER, OFFSETS_TOPIC, TRANSACTIONS_TOPIC
from conveyor.kernel.errors import ERRORS, ErrorKind, RequestError
from conveyor.kernel.ids import NodeId, ProducerIdentity
from conveyor.records.batch import TRANSACTIONAL
from conveyor.records.record import encode_batch
from conveyor.records.transaction_marker import TransactionMarker
from conveyor.replication.transactions import append_marker
from conveyor.transactions.transaction_value import EPOCH_BUMPING_VERSION
from simulation.clients.transactions.position_promises import PositionPromises
from simulation.clients.transactions.transaction_promises import SentTransaction, TransactionPromises
from simulation.cluster.simulated_cluster import SimulatedCluster
from simulation.doors.client_door import BrokerDoor
from simulation.doors.client_network import Disconnected
from simulation.doors.kafka_link import KafkaLink
from simulation.doors.kafka_requests import (
    PublishedAt,
    SpeaksKafka,
    Transactional,
    committed_offset,
    init_producer,
    publish,
)
from simulation.doors.kafka_transactions import (
    add_offsets,
    add_partition,
    commit_offset_in_transaction,
    end_transaction,
)
from simulation.ledger import Place
from simulation.story_rules import MOVES_TOPIC
from simulation.story_schedule import Step
from simulation.story_topics import PARTITIONS

Reply = TypeVar("Reply")

PLACES: Sequence[Place] = [(MOVES_TOPIC, number) for number in range(PARTITIONS)]
COORDINATOR: Place = (TRANSACTIONS_TOPIC, 0)
TIMEOUTS_MS = (500, 3_000)
"""The shortest and the longest transaction timeout."""

POSITIONS: Place = (OFFSETS_TOPIC, 0)
PHASES = ("empty", "ongoing", "ending", "ended")

_PATIENCE_S = 4.0
_PAUSES_S = (0.0, 0.0, 0.0, 0.05, 0.2, 1.0)
_RETRIES_S = (0.02, 0.1, 0.5)
_HELD_S = (0.0, 0.01, 0.03, 0.3)
_HELD_ANSWERS_S = (0.03, 0.06, 0.1, 0.2)
_REPEATS = 0.15
"""The probability that the network repeats one of the latest requests between two batches."""
_LATEST = 6
_POSITIONS = 0.3
"""The probability that a transaction commits a position."""
_RECONNECTS = 0.5
"""The probability that a client connects again after it has committed a position."""
_STOPS = 0.05
"""The probability that a client stops before a request."""
_REMEMBERED = 40
_FENCED = (ErrorKind.INVALID_PRODUCER_EPOCH, ErrorKind.PRODUCER_FENCED, ErrorKind.INVALID_PRODUCER_ID_MAPPING)

Notice = Callable[[str, Place], None]
"""Called with what a client has just done, and the other partition that it concerns. See `Ambushes`."""


class _Stopped(Exception):  # noqa: N818 - named for what it is
    """The client stops here. It does not know the outcome of its transaction."""


class _Failed(Exception):  # noqa: N818 - named for what it is
    """The transaction cannot be committed any more."""


Request = Callable[[BrokerDoor], Awaitable[Reply]]


class _Late(NamedTuple):
    """A request that was sent, and may arrive again. place: whose leader gets it. is_batch: it begins a connection."""

    place: Place
    request: Request[object]
    is_batch: bool = False


class _Overtaken(NamedTuple):
    """A request that was sent over a connection which its client has given up since."""

    link: KafkaLink
    request: Callable[[SpeaksKafka], Awaitable[None]]


class TransactionalClient:
    """See the module's docstring. name: of its records; unique. noticed: see `Notice`."""

    def __init__(
        self,
        name: str,
        transactional_id: str,
        cluster: SimulatedCluster,
        promises: TransactionPromises,
        noticed: Notice,
    ) -> None:
        self._name = name
        self._id = transactional_id
        self._cluster = cluster
        self._door, self._late_door = cluster.clients.client(name), cluster.clients.client(f"late {name}")
        self._promises = promises
        self._noticed = noticed
        self._identity: ProducerIdentity | None = None
        self._version = 0
        self._sequences: dict[Place, int] = {}
        self._count = 0
        self._late: list[_Late] = []
        self._overtaken: _Overtaken | None = None
        self._positions = PositionPromises(promises)
        self.phase = "empty"
        """The state of the last transaction, as far as the client can tell: one of PHASES."""

    async def execute(self, step: Step, _: object) -> None:
        chance = Random(step.number)
        try:
            if step.action == "send_late" and self._late:
                await self._send_late(self._late[-1] if chance.random() < 0.5 else chance.choice(self._late))
            elif step.action == "take_over":
                await self._initialize(chance, None)
            elif step.action == "desert":
                await self._desert(chance)
            elif step.action == "abandon":
                await self._abandon(chance)
            elif step.action == "transact":
                await self._transact(chance)
        except (_Stopped, _Failed):
            self._identity = None

    async def _desert(self, chance: Random) -> None:
        self._id, self._identity = f"{self._name} {self._count}", None
        if chance.random() < 0.5:
            return await self._transact(chance)
        identity = await self._initialize(chance, None)
        await self._send_all(chance, self._promises.begin(self._id), identity, PLACES)

    async def _abandon(self, chance: Random) -> None:
        identity = await self._initialize(chance, None, version=0)
        place = max(PLACES, key=lambda place: self._leader(place) != self._leader(COORDINATOR))
        transaction = self._promises.begin(f"transaction {self._count} of {self._name}")
        await self._add(chance, identity, place)
        self._prepare_batch(chance, transaction, identity, place)
        held_s = chance.choice(_HELD_ANSWERS_S)
        self._cluster.switch.hold_answers(self._leader(COORDINATOR), self._leader(place), held_s)
        held = asyncio.ensure_future(self._send_late(self._late[-1]))
        await asyncio.sleep(chance.uniform(0, held_s / 2))
        await self._end(chance, transaction, identity, commits=False)
        await held
        await self._initialize(chance, identity)  # A batch without an answer may still arrive.
        self._check_ended(place, identity.producer_id)

    async def _transact(self, chance: Random) -> None:
        identity = self._identity or await self._initialize(chance, None)
        transaction = self._promises.begin(f"transaction {self._count} of {self._name}")
        has_position = self._overtaken is not None or chance.random() < _POSITIONS
        if has_position:
            await self._check_position(chance)
        places, commits, has_failed = chance.sample(PLACES, chance.randint(1, PARTITIONS)), chance.random() < 0.7, False
        try:
            await self._send_all(chance, transaction, identity, places)
            if has_position:
                await self._commit_position(chance, transaction, identity)
        except _Failed:
            has_failed = True
        await _pause(chance)
        held: asyncio.Future[None] | None = None
        if not commits and not has_failed and chance.random() < 0.6:
            place = chance.choice(PLACES)
            await self._add(chance, identity, place)
            self._prepare_batch(chance, transaction, identity, place)
            held = asyncio.ensure_future(self._send_late(self._late[-1], chance.choice(_HELD_S)))
        await self._end(chance, transaction, identity, commits=commits and not has_failed)
        if held is not None:
            await held
        if (has_failed or held is not None) and self._version < EPOCH_BUMPING_VERSION:
            await self._initialize(chance, identity)  # A batch without an answer may still arrive.
        if self._overtaken is not None:
            await self._transact(chance)  # Its commit of a position is repeated by the network.

    async def _send_all(
        self, chance: Random, transaction: SentTransaction, identity: ProducerIdentity, places: Sequence[Place]
    ) -> None:
        added: set[Place] = set()
        for index in range(chance.randint(1, 4)):
            place = places[index % len(places)]
            is_new = place not in added
            added.add(place)
            if is_new and self._version < EPOCH_BUMPING_VERSION:
                await self._add(chance, identity, place)
            await self._send(chance, transaction, identity, place)
            if is_new and self._version >= EPOCH_BUMPING_VERSION:
                self._begun(place)
            if self._late and chance.random() < _REPEATS:
                await self._send_late(chance.choice(self._late[-_LATEST:]))
            await _pause(chance)

    async def _check_position(self, chance: Random) -> None:
        async def request(broker: BrokerDoor) -> int:
            return await committed_offset(broker, self._name, PLACES[0], is_stable=True)

        self._positions.check(await self._insist(chance, POSITIONS, request))

    async def _commit_position(self, chance: Random, transaction: SentTransaction, identity: ProducerIdentity) -> None:
        taken, group, position = (self._id, identity), self._name, self._count
        adds = self._version >= EPOCH_BUMPING_VERSION

        async def add(broker: BrokerDoor) -> None:
            await add_offsets(broker, taken, group)

        async def commit(link: SpeaksKafka) -> None:
            await commit_offset_in_transaction(link, taken, group, PLACES[0], position, adds=adds)

        async def request(broker: BrokerDoor) -> KafkaLink:
            await commit(broker)
            return await broker.kafka_link()

        if not adds:
            await self._insist(chance, COORDINATOR, add)
        self._positions.attempt(position, transaction)
        link = await self._insist(chance, POSITIONS, request)
        overtaken, self._overtaken = self._overtaken, None
        if overtaken is not None:
            with suppress(Disconnected, RequestError, TimeoutError):
                await asyncio.wait_for(overtaken.request(overtaken.link), _PATIENCE_S)
        elif chance.random() < _RECONNECTS:
            self._overtaken = _Overtaken(link, commit)
            self._door = self._cluster.clients.client(self._name)

    async def _initialize(
        self, chance: Random, expected: ProducerIdentity | None, version: int | None = None
    ) -> ProducerIdentity:
        """Get an identity. expected: to raise the epoch after a failure (KIP-360)."""
        if expected is None:
            self._version = chance.choice((0, EPOCH_BUMPING_VERSION)) if version is None else version
        transactional_id, timeout_ms = self._id, chance.randint(*TIMEOUTS_MS)

        async def request(broker: BrokerDoor) -> ProducerIdentity:
            return await init_producer(broker, transactional_id, timeout_ms, expected)

        identity = await self._insist(chance, COORDINATOR, request)
        self.phase = "empty"
        self._promises.initialized(self._id, identity)
        self._become(identity)
        return identity

    def _become(self, identity: ProducerIdentity) -> None:
        if identity != self._identity:
            self._sequences = {}
        self._identity = identity

    async def _add(self, chance: Random, identity: ProducerIdentity, place: Place) -> None:
        taken = (self._id, identity)

        async def request(broker: BrokerDoor) -> None:
            await add_partition(broker, taken, place)

        await self._insist(chance, COORDINATOR, request)
        self._begun(place)

    def _begun(self, place: Place) -> None:
        """Note that a partition takes part in the transaction."""
        self.phase = "ongoing"
        self._noticed("at_begin", place)

    async def _send(
        self, chance: Random, transaction: SentTransaction, identity: ProducerIdentity, place: Place
    ) -> None:
        values, request = self._prepare_batch(chance, transaction, identity, place)
        published = await self._insist(chance, place, request)
        self._sequences[place] = self._sequences.get(place, 0) + len(values)
        self._promises.acknowledge(transaction, place, published.base_offset, values)

    def _prepare_batch(
        self, chance: Random, transaction: SentTransaction, identity: ProducerIdentity, place: Place
    ) -> tuple[Sequence[bytes], Request[PublishedAt]]:
        """Return the values of the next batch, and the request that sends it."""
        numbers = range(self._count, self._count + chance.randint(1, 6))
        self._count = numbers.stop
        values = [b"%s:%d" % (self._name.encode(), number) for number in numbers]
        batch = encode_batch(
            [(self._cluster.clock.now_ms(), None, value, ()) for value in values],
            attributes=TRANSACTIONAL,
            producer_id=identity.producer_id,
            producer_epoch=identity.producer_epoch,
            base_sequence=self._sequences.get(place, 0),
        )
        taken = Transactional(self._id, self._version >= EPOCH_BUMPING_VERSION)
        self._promises.send(transaction, self._id, identity, values)

        async def request(broker: BrokerDoor) -> PublishedAt:
            (published,) = await publish(broker, place[0], [(place[1], batch)], transaction=taken)
            if published.error is not None:
                raise published.error
            return published

        self._remember(_Late(place, request, is_batch=True))
        return values, request

    async def _end(
        self, chance: Random, transaction: SentTransaction, identity: ProducerIdentity, *, commits: bool
    ) -> None:
        version, taken = self._version, (self._id, identity)

        async def request(broker: BrokerDoor) -> ProducerIdentity:
            return await end_transaction(broker, taken, commits=commits, bumps=version >= EPOCH_BUMPING_VERSION)

        self._promises.ask(transaction, commits=commits)
        if version >= EPOCH_BUMPING_VERSION:
            self._remember(_Late(COORDINATOR, request))
        place = (MOVES_TOPIC, chance.randrange(PARTITIONS))
        self.phase = "ending"
        self._noticed("at_end", place)
        following = await self._insist(chance, COORDINATOR, request)
        self.phase = "ended"
        self._promises.confirm(transaction)
        self._become(following)
        if version >= EPOCH_BUMPING_VERSION:
            self._remember_marker(place, identity, commits=commits)

    def _remember_marker(self, place: Place, identity: ProducerIdentity, *, commits: bool) -> None:
        """Remember a marker that the coordinator sends now."""
        marker = TransactionMarker(
            producer_id=identity.producer_id,
            producer_epoch=identity.producer_epoch + 1,
            coordinator_epoch=self._door.newest_epoch(COORDINATOR),
            commits=commits,
        )

        def append(inside: BrokerNode) -> None:
            with suppress(RequestError):
                append_marker(
                    inside.partitions.table.find(*place), marker, EPOCH_BUMPING_VERSION, inside.clock.now_ms()
                )

        async def request(_: BrokerDoor) -> None:
            leader = self._cluster.brokers.get(self._leader(place))
            if leader is not None:
                leader.run_inside(append)  # It comes over a link between brokers.

        self._remember(_Late(place, request))

    def _remember(self, late: _Late) -> None:
        self._late = [*self._late[1 - _REMEMBERED :], late]

    def _check_ended(self, place: Place, producer_id: int) -> None:
        """Check that the leader of a partition has the end of this client's last transaction, and nothing after it."""
        stored, leader = self._cluster.tree.image.partition(*place), self._cluster.brokers.get(self._leader(place))
        partition = None if leader is None or leader.node is None else leader.node.partitions.table.get(*place)
        if partition is None or stored is None or partition.term.epoch != stored.leader_epoch:
            return
        opened = partition.log.producers.transactions.opened.get(producer_id)
        if partition.offline.reason is None and opened is not None:
            self._promises.broken("NoHangingTransaction", f"{self._name} has {opened} in {place}, and has begun none")

    def _leader(self, place: Place) -> NodeId:
        found = self._cluster.tree.image.partition(*place)
        return NO_LEADER if found is None else found.leader

    async def _send_late(self, late: _Late, held_s: float = 0.0) -> None:
        await asyncio.sleep(held_s)
        door = self._late_door if late.is_batch else self._door
        with suppress(Disconnected, RequestError):
            await late.request(await door.leader(late.place))

    async def _insist(self, chance: Random, place: Place, request: Request[Reply]) -> Reply:
        """Repeat a request to the leader of a partition. Raises _Failed, or _Stopped without a usable answer."""
        if chance.random() < _STOPS:
            raise _Stopped
        loop = asyncio.get_running_loop()
        ends_s = loop.time() + _PATIENCE_S
        while loop.time() < ends_s:
            broker = await self._door.leader(place)
            try:
                return await request(broker)
            except Disconnected:
                pass
            except RequestError as error:
                self._check_refusal(error)
            await asyncio.sleep(chance.choice(_RETRIES_S))
        raise _Stopped

    def _check_refusal(self, error: RequestError) -> None:
        """Raise what an error means for the client, unless it repeats its request."""
        if error.kind is ErrorKind.OUT_OF_ORDER_SEQUENCE:
            self._promises.broken("SequencesHold", f"{self._name}: {error.message}")
        if error.kind in _FENCED:
            raise _Stopped
        if not ERRORS[error.kind].retriable:
            raise _Failed


async def _pause(chance: Random) -> None:
    await asyncio.sleep(chance.choice(_PAUSES_S))
