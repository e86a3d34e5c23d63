"""The clients of a simulated broker. Each executes its steps in order and reports to the ledgers.

On a missing reply a client does what a careful program would. An idempotent producer resends the batch until it is
acknowledged; all other clients continue and treat the outcome as unknown.
"""

import asyncio
from collections.abc import Callable, Sequence
from itertools import takewhile
from typing import Protocol

from conveyor.broker.answers import answered
from conveyor.broker.broker_node import BrokerNode
from conveyor.broker.fetch.fetcher import Fetched, FetchPosition, FetchWait, Finished
from conveyor.broker.produce.publish import ACKS_ALL, Published
from conveyor.broker.queues.leasing.lease import Lease
from conveyor.cluster.image import OFFSETS_TOPIC, QUEUE_STATE, companion
from conveyor.groups.group_commands import CommitOffsets, FetchOffsets, OffsetToCommit
from conveyor.kernel.errors import ErrorKind, RequestError
from conveyor.kernel.ports import FileSlice
from conveyor.log.batch_reading import batches_in
from conveyor.records.batch import batch_is_intact
from conveyor.records.compression import NONE, ZSTD
from conveyor.records.message_attributes import DELAY_MS
from conveyor.records.record import Header, Record, decode_records, encode_batch
from simulation.callers import CALLER
from simulation.ledger import DelayLedger, InvariantBroken, LogLedger, OffsetLedger, Place, QueueLedger
from simulation.simulated_broker import Disconnected, SimulatedBroker
from simulation.simulated_clock import SimulatedClock
from simulation.story_schedule import Step

LOG_TOPIC, TABLE_TOPIC, QUEUE_TOPIC, DELAY_TOPIC = "log", "table", "work", "later"
DUE_TOPIC = "due"
"""The target of DELAY_TOPIC."""
SUBSCRIPTION = "workers"
GROUP = "readers"
PARTITIONS = 2

_PAUSE_S = 0.2
_KEYS = 8
_READ_BYTES = 1 << 16
_NO_REPLY = (Disconnected, RequestError)


class Actor(Protocol):
    """Executes the steps that name it."""

    async def execute(self, step: Step, broker: SimulatedBroker) -> None: ...


class SimulatedDoor(Protocol):
    """Where clients reach a broker or a cluster."""

    @property
    def clock(self) -> SimulatedClock: ...

    async def leader(self, place: Place) -> SimulatedBroker:
        """Return the broker that should lead a partition. It may refuse the request, or be dead."""
        ...


class Producer:
    """Sends batches of `<name>:<number>` values to both partitions of a topic in turn.

    acks: ACKS_ALL or ACKS_LEADER.
    keyed: each record has one of a few keys. pauses_s: before a retry; the step chooses one.
    An idempotent producer resends a batch until it is acknowledged; `latest` is then the last acknowledged number of
    each key.
    """

    def __init__(
        self,
        name: str,
        topic: str,
        ledger: LogLedger,
        *,
        acks: int = ACKS_ALL,
        idempotent: bool = True,
        keyed: bool = False,
        pauses_s: Sequence[float] = (_PAUSE_S,),
    ) -> None:
        self.latest: dict[bytes, int] = {}
        self._name = name
        self._topic = topic
        self._ledger = ledger
        self._acks = acks
        self._is_idempotent = idempotent
        self._is_keyed = keyed
        self._pauses_s = pauses_s
        self._producer_id = -1
        self._sequences: dict[int, int] = {}
        self._count = 0

    async def execute(self, step: Step, door: SimulatedDoor) -> None:
        partition, size = step.number % PARTITIONS, 1 + step.number // PARTITIONS % 40
        numbers = range(self._count, self._count + size)
        self._count += size
        while True:
            try:
                published = await self._send(await door.leader((self._topic, partition)), partition, numbers)
            except Disconnected:
                published = None
            if published is not None and published.error is None:
                return self._acknowledged(partition, numbers, published.base_offset)
            if not self._retries(published):
                return
            await asyncio.sleep(self._pauses_s[step.number // (PARTITIONS * 40) % len(self._pauses_s)])

    def _retries(self, published: Published | None) -> bool:
        """Return whether to send the batch again."""
        kind = None if published is None or published.error is None else published.error.kind
        if kind in (ErrorKind.OUT_OF_ORDER_SEQUENCE, ErrorKind.INVALID_PRODUCER_EPOCH):
            if self._acks == ACKS_ALL and not self._is_excused:
                raise InvariantBroken("NoAcknowledgedLoss", f"{self._topic} does not know the sequence of {self._name}")
            self._producer_id = -1  # A power cut lost records, which acks=1 permits: use a new producer id.
        return self._is_idempotent

    @property
    def _is_excused(self) -> bool:
        return any(self._ledger.of((self._topic, number)).is_excused for number in range(PARTITIONS))

    def _acknowledged(self, partition: int, numbers: Sequence[int], base_offset: int) -> None:
        if self._is_idempotent:
            self._sequences[partition] = self._sequences.get(partition, 0) + len(numbers)
        if self._acks == ACKS_ALL and not self._is_keyed:
            self._ledger.acknowledge((self._topic, partition), base_offset, [self._value(number) for number in numbers])
        if self._is_keyed:
            self.latest |= {_key(partition, number): number for number in numbers}

    async def _send(self, broker: SimulatedBroker, partition: int, numbers: Sequence[int]) -> Published | None:
        if self._is_idempotent and self._producer_id < 0:
            try:
                self._producer_id = await broker.ask(lambda inside: inside.cluster.producer_ids.allocate())
            except RequestError:
                return None
            self._sequences = {}
        batch = self._batch(partition, numbers, broker.clock.now_ms())
        return (await publish(broker, self._topic, [(partition, batch)], self._acks))[0]

    def _batch(self, partition: int, numbers: Sequence[int], now_ms: int) -> bytes:
        records: list[tuple[int, bytes | None, bytes | None, Sequence[Header]]] = [
            (now_ms, _key(partition, number) if self._is_keyed else None, self._value(number), ()) for number in numbers
        ]
        codec = ZSTD if len(numbers) > 20 else NONE
        if not self._is_idempotent:
            return encode_batch(records, codec=codec)
        sequence = self._sequences.get(partition, 0)
        return encode_batch(
            records, codec=codec, producer_id=self._producer_id, producer_epoch=0, base_sequence=sequence
        )

    def _value(self, number: int) -> bytes:
        return b"%s:%d" % (self._name.encode(), number)


class Reader:
    """Reads the partitions of the plain topic from its own positions, and sometimes again from the start.

    has_failovers: a broker that leads no longer, and does not know it, may not have all records yet.
    """

    def __init__(self, ledger: LogLedger, *, has_failovers: bool = False) -> None:
        self._has_failovers = has_failovers
        self._ledger = ledger
        self._positions: dict[Place, int] = {}

    async def execute(self, step: Step, door: SimulatedDoor) -> None:
        place = (LOG_TOPIC, step.number % PARTITIONS)
        if step.number % 5 == 0:
            self._positions[place] = 0
        start = max(self._positions.get(place, 0), self._ledger.of(place).readable_from)
        try:
            records, fetched = await read(await door.leader(place), place, start, wait_ms=step.number % 2_000)
        except _NO_REPLY:
            return
        if fetched.error is not None:
            if fetched.error.kind is ErrorKind.OFFSET_OUT_OF_RANGE and not self._has_failovers:
                self._ledger.check_end(place, start)
            return
        values = [(record.offset, record.value or b"") for record in records]
        self._ledger.read(place, start, values, fetched.high_watermark)
        if records:
            self._positions[place] = records[-1].offset + 1


class Committer:
    """A consumer group that commits rising offsets and fetches its committed offset."""

    def __init__(self, ledger: OffsetLedger) -> None:
        self._ledger = ledger
        self._next = 0

    async def execute(self, step: Step, door: SimulatedDoor) -> None:
        broker = await door.leader((OFFSETS_TOPIC, 0))
        await (self._commit(broker) if step.action == "commit" else self._fetch(broker))

    async def _commit(self, broker: SimulatedBroker) -> None:
        offset, self._next = self._next, self._next + 1
        wanted = OffsetToCommit(topic=LOG_TOPIC, partition=0, offset=offset, leader_epoch=-1, metadata="")
        command = CommitOffsets(group_id=GROUP, generation_id=-1, member_id="", offsets=(wanted,))
        self._ledger.attempt(offset)
        try:
            reply = await broker.ask(lambda inside: inside.coordinators.groups.ask(CALLER, command))
        except _NO_REPLY:
            return
        if reply.errors == (None,):
            self._ledger.confirm(offset)

    async def _fetch(self, broker: SimulatedBroker) -> None:
        command = FetchOffsets(group_id=GROUP, partitions=((LOG_TOPIC, 0),))
        try:
            reply = await broker.ask(lambda inside: inside.coordinators.groups.ask(CALLER, command))
        except _NO_REPLY:
            return
        self._ledger.check(reply.offsets[0].offset)


class PublishedMessages(Protocol):
    published: dict[str, int]


class QueuePublisher:
    """Publishes messages to the queue's topic, some of them delayed.

    ledger: takes the due times of the acknowledged messages, 0 without a delay, by message id, into `published`.
    """

    def __init__(self, ledger: PublishedMessages) -> None:
        self._ledger = ledger
        self._count = 0

    async def execute(self, step: Step, door: SimulatedDoor) -> None:
        partition, size = step.number % PARTITIONS, 1 + step.number // PARTITIONS % 10
        broker = await door.leader((QUEUE_TOPIC, partition))
        delay_ms = step.number % 20_000 if step.action == "produce_delayed" else 0
        now_ms = door.clock.now_ms()
        headers = ((DELAY_MS, b"%d" % delay_ms),) if delay_ms else ()
        batch = encode_batch([(now_ms, None, b"%d" % (self._count + index), headers) for index in range(size)])
        self._count += size
        try:
            published = (await publish(broker, QUEUE_TOPIC, [(partition, batch)], ACKS_ALL))[0]
        except Disconnected:
            return
        if published.error is None:
            ids = [f"{partition}-{published.base_offset + index}" for index in range(size)]
            self._ledger.published |= dict.fromkeys(ids, now_ms + delay_ms if delay_ms else 0)


class DelayPublisher:
    """Publishes records to the delayed topic, and some to its target. A record without a reply may appear or not."""

    def __init__(self, ledger: DelayLedger) -> None:
        self._ledger = ledger
        self._count = 0

    async def execute(self, step: Step, door: SimulatedDoor) -> None:
        size, delay_ms, now_ms = 1 + step.number % 5, step.number % 20_000, door.clock.now_ms()
        values = [b"%d" % (self._count + index) for index in range(size)]
        self._count += size
        topic = DUE_TOPIC if step.number % 4 == 0 else DELAY_TOPIC
        self._ledger.due_ms |= dict.fromkeys(values, 0 if topic == DUE_TOPIC else now_ms + delay_ms)
        headers = ((DELAY_MS, b"%d" % delay_ms),)
        batch = encode_batch([(now_ms, None, value, headers) for value in values])
        try:
            broker = await door.leader((topic, 0))
            published = (await publish(broker, topic, [(0, batch)], ACKS_ALL))[0]
        except Disconnected:
            return
        if published.error is None:
            self._ledger.acknowledged |= set(values)


class Worker:
    """Leases messages of the subscription and settles its leases with ack, nack or extend."""

    def __init__(self, ledger: QueueLedger) -> None:
        self._ledger = ledger
        self._leases: list[Lease] = []

    async def execute(self, step: Step, broker: SimulatedBroker) -> None:
        await (self.lease(broker, step.number) if step.action == "lease" else self._settle(broker, step.number))

    async def lease(self, broker: SimulatedBroker, number: int) -> int:
        """Lease a few messages. Returns the number of leases."""
        visibility_ms, wait_ms = 1_000 + number % 20_000, number % 3_000

        async def leased(inside: BrokerNode) -> list[Lease]:
            leases = await inside.queues.leases.lease(CALLER, SUBSCRIPTION, 1 + number % 8, wait_ms, visibility_ms)
            note_leases(self._ledger, broker, inside, leases, visibility_ms)
            return leases

        try:
            leases = await broker.ask(leased)
        except _NO_REPLY:
            return 0
        self._leases += leases
        return len(leases)

    async def settle_all(self, broker: SimulatedBroker) -> None:
        """Ack all current leases."""
        while self._leases:
            await self._ack(broker, len(self._leases))

    async def _settle(self, broker: SimulatedBroker, number: int) -> None:
        count = 1 + number % 4
        if number % 3:
            return await self._ack(broker, count)
        chosen, self._leases = self._leases[:count], self._leases[count:]
        for lease in chosen:
            self._ledger.release(lease.message.message_id)
        ack_ids = [lease.ack_id for lease in chosen]
        try:
            await broker.ask(
                lambda inside: inside.queues.settlements.nack(CALLER, SUBSCRIPTION, ack_ids, number % 5_000)
            )
        except _NO_REPLY:
            return

    async def _ack(self, broker: SimulatedBroker, count: int) -> None:
        chosen, self._leases = self._leases[:count], self._leases[count:]
        if not chosen:
            return
        for lease in chosen:
            self._ledger.release(lease.message.message_id)
        ack_ids = [lease.ack_id for lease in chosen]
        try:
            results = await broker.ask(lambda inside: inside.queues.settlements.ack(CALLER, SUBSCRIPTION, ack_ids))
        except _NO_REPLY:
            return
        for lease, error in zip(chosen, results, strict=True):
            if error is None:
                self._ledger.ack(lease.message.message_id)


def note_leases(
    ledger: QueueLedger, broker: SimulatedBroker, inside: BrokerNode, leases: Sequence[Lease], visibility_ms: int
) -> None:
    """Check granted leases, within the request."""
    clock = broker.clock
    for lease in leases:
        message = lease.message
        state = inside.partitions.table.get(companion(QUEUE_STATE, message.topic), message.partition)
        messages = inside.partitions.table.get(message.topic, message.partition)
        tenure = (state, messages), -1 if messages is None else messages.term.role.epoch
        ledger.lease(message.message_id, clock.latest_ms(), clock.steady_ms(), visibility_ms, tenure)


async def publish(
    broker: SimulatedBroker, topic: str, batches: Sequence[tuple[int, bytes]], acks: int
) -> Sequence[Published]:
    """Publish to partitions of a topic. Raises Disconnected."""

    return await broker.ask(lambda inside: append(broker, inside, topic, batches, acks))


async def append(
    broker: SimulatedBroker, inside: BrokerNode, topic: str, batches: Sequence[tuple[int, bytes]], acks: int
) -> Sequence[Published]:
    """Do the same as `publish`, within a request.

    The acknowledgement is checked when the broker decides on it: the process may be paused before the client has it.
    """
    wanted, incarnation = [(topic, *batch) for batch in batches], broker.starts
    image = inside.metadata.image.topics.get(topic)
    partitions = [inside.partitions.table.get(topic, number) for number, _ in batches]
    terms = [None if partition is None else partition.leader_term for partition in partitions]
    roles = [None if term is None else term.role for term in terms]
    broken: list[InvariantBroken] = []

    def check(results: Sequence[Published]) -> None:
        for (number, _), role, published in zip(batches, roles, results, strict=True):
            if published.error is None and image is not None and role is not None and not role.is_read_only:
                broker.epochs.acknowledge(image.topic_id, number, role.epoch, incarnation)

    def publish_checked(finished: Callable[[Sequence[Published]], None]) -> None:
        def acknowledged(results: Sequence[Published]) -> None:
            try:
                check(results)
            except InvariantBroken as failure:
                broken.append(failure)
            finished(results)

        inside.produce.publisher.publish(CALLER, wanted, acks, acknowledged)

    results: Sequence[Published] = await answered(publish_checked)
    if broken:
        raise broken[0]
    return results


async def read(
    broker: SimulatedBroker, place: Place, start: int, *, wait_ms: int, epoch: int = -1
) -> tuple[list[Record], Fetched]:
    """Read the records of a partition from an offset on, as many as one fetch returns. Raises Disconnected.

    epoch: the leader epoch that the client knows; -1 for none.
    """

    return await broker.ask(lambda inside: fetch(inside, place, start, wait_ms=wait_ms, epoch=epoch))


async def fetch(
    inside: BrokerNode, place: Place, start: int, *, wait_ms: int, epoch: int = -1
) -> tuple[list[Record], Fetched]:
    """Do the same as `read`, within a request."""
    position, wait = FetchPosition(*place, start, _READ_BYTES, epoch), FetchWait(wait_ms, 1, _READ_BYTES)

    def begin(finished: Finished) -> object:
        return inside.fetch.fetcher.fetch(CALLER, [position], wait, finished)

    (fetched,) = await answered(begin)
    stored = [] if fetched.records is None else _records(fetched.records)
    return [record for record in stored if record.offset >= start], fetched


def _records(stored: FileSlice) -> list[Record]:
    """Return the records before the first damaged batch, as a client does that compares checksums."""
    intact = takewhile(lambda found: batch_is_intact(found[2]), batches_in(stored))
    return [record for header, _, batch in intact if header.records_count for record in decode_records(batch)]


def _key(partition: int, number: int) -> bytes:
    return b"%d-%d" % (partition, number % _KEYS)
