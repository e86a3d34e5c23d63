"""The clients of a simulated broker. Each carries out its steps one after the other, and reports to the ledgers.

A client that gets no reply does what a careful program would: an idempotent producer sends the same batch again until
it is acknowledged, everybody else goes on and counts the outcome as unknown.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol, TypeVar

from conveyor.broker.broker_node import Broker
from conveyor.broker.fetch.fetcher import Fetched, FetchPosition, FetchWait
from conveyor.broker.produce.publish import ACKS_ALL, Published
from conveyor.broker.queues.queues import Lease
from conveyor.groups.group_commands import CommitOffsets, FetchOffsets, OffsetToCommit
from conveyor.groups.replies import Committed, FetchedOffsets
from conveyor.kernel.errors import ErrorKind, RequestError
from conveyor.records.batch import iterate_batches
from conveyor.records.compression import NONE, ZSTD
from conveyor.records.message_attributes import DELAY_MS
from conveyor.records.record import Header, Record, decode_records, encode_batch
from conveyor.testing.simulation.ledger import DelayLedger, InvariantBroken, LogLedger, OffsetLedger, Place, QueueLedger
from conveyor.testing.simulation.simulated_broker import Disconnected, SimulatedBroker
from conveyor.testing.simulation.story_schedule import Step

LOG_TOPIC, TABLE_TOPIC, QUEUE_TOPIC, DELAY_TOPIC = "log", "table", "work", "later"
SUBSCRIPTION = "workers"
GROUP = "readers"
PARTITIONS = 2

Reply = TypeVar("Reply")

_PAUSE_S = 0.2
_KEYS = 8
_READ_BYTES = 1 << 16
_NO_REPLY = (Disconnected, RequestError)


class Actor(Protocol):
    """Carries out the steps that name it."""

    async def carry_out(self, step: Step, broker: SimulatedBroker) -> None: ...


class Producer:
    """Sends batches of `<name>:<number>` values to both partitions of a topic in turn.

    acks: ACKS_ALL or ACKS_LEADER. keyed: records have one of a few keys. An idempotent producer sends a batch until it
    is acknowledged; `latest` is then the number of the last acknowledged value of each key.
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
    ) -> None:
        self.latest: dict[bytes, int] = {}
        self._name = name
        self._topic = topic
        self._ledger = ledger
        self._acks = acks
        self._is_idempotent = idempotent
        self._is_keyed = keyed
        self._producer_id = -1
        self._sequences: dict[int, int] = {}
        self._count = 0

    async def carry_out(self, step: Step, broker: SimulatedBroker) -> None:
        partition, size = step.number % PARTITIONS, 1 + step.number // PARTITIONS % 40
        numbers = range(self._count, self._count + size)
        self._count += size
        while True:
            try:
                published = await self._send(broker, partition, numbers)
            except Disconnected:
                published = None
            if published is not None and published.error is None:
                return self._acknowledged(partition, numbers, published.base_offset)
            if not self._goes_on(published):
                return
            await asyncio.sleep(_PAUSE_S)

    def _goes_on(self, published: Published | None) -> bool:
        """Whether to send the batch again."""
        kind = None if published is None or published.error is None else published.error.kind
        if kind in (ErrorKind.OUT_OF_ORDER_SEQUENCE, ErrorKind.INVALID_PRODUCER_EPOCH):
            if self._acks == ACKS_ALL:
                raise InvariantBroken("NoAcknowledgedLoss", f"{self._topic} does not know the sequence of {self._name}")
            self._producer_id = -1  # A power cut took records that acks=1 did not promise: begin anew.
        return self._is_idempotent

    def _acknowledged(self, partition: int, numbers: Sequence[int], base_offset: int) -> None:
        if self._is_idempotent:
            self._sequences[partition] = self._sequences.get(partition, 0) + len(numbers)
        if self._acks == ACKS_ALL and not self._is_keyed:
            self._ledger.acknowledge((self._topic, partition), base_offset, [self._value(each) for each in numbers])
        if self._is_keyed:
            self.latest |= {_key(partition, number): number for number in numbers}

    async def _send(self, broker: SimulatedBroker, partition: int, numbers: Sequence[int]) -> Published | None:
        if self._is_idempotent and self._producer_id < 0:
            try:
                self._producer_id = await broker.ask(lambda inside: inside.producer_ids.allocate())
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
    """Reads the partitions of the plain topic, from its own positions on; sometimes once more from the start."""

    def __init__(self, ledger: LogLedger) -> None:
        self._ledger = ledger
        self._positions: dict[Place, int] = {}

    async def carry_out(self, step: Step, broker: SimulatedBroker) -> None:
        place = (LOG_TOPIC, step.number % PARTITIONS)
        if step.number % 5 == 0:
            self._positions[place] = 0
        start = max(self._positions.get(place, 0), self._ledger.of(place).readable_from)
        try:
            records, fetched = await read(broker, place, start, wait_ms=step.number % 2_000)
        except _NO_REPLY:
            return
        if fetched.error is not None:
            if fetched.error.kind is ErrorKind.OFFSET_OUT_OF_RANGE:
                self._ledger.check_end(place, start)
            return
        values = [(record.offset, record.value or b"") for record in records]
        self._ledger.read(place, start, values, fetched.high_watermark)
        if records:
            self._positions[place] = records[-1].offset + 1


class Committer:
    """A consumer group that commits rising offsets, and asks for what it has committed."""

    def __init__(self, ledger: OffsetLedger) -> None:
        self._ledger = ledger
        self._next = 0

    async def carry_out(self, step: Step, broker: SimulatedBroker) -> None:
        await (self._commit(broker) if step.action == "commit" else self._fetch(broker))

    async def _commit(self, broker: SimulatedBroker) -> None:
        offset, self._next = self._next, self._next + 1
        wanted = OffsetToCommit(topic=LOG_TOPIC, partition=0, offset=offset, leader_epoch=-1, metadata="")
        command = CommitOffsets(group_id=GROUP, generation_id=-1, member_id="", offsets=(wanted,))
        self._ledger.attempt(offset)
        try:
            reply = await broker.ask(lambda inside: _submit(inside, command))
        except _NO_REPLY:
            return
        assert isinstance(reply, Committed)
        if reply.errors == (None,):
            self._ledger.confirm(offset)

    async def _fetch(self, broker: SimulatedBroker) -> None:
        command = FetchOffsets(group_id=GROUP, partitions=((LOG_TOPIC, 0),))
        try:
            reply = await broker.ask(lambda inside: _submit(inside, command))
        except _NO_REPLY:
            return
        assert isinstance(reply, FetchedOffsets)
        self._ledger.check(reply.offsets[0].offset)


class QueuePublisher:
    """Publishes messages to the queue's topic, some of them delayed."""

    def __init__(self, ledger: QueueLedger) -> None:
        self._ledger = ledger
        self._count = 0

    async def carry_out(self, step: Step, broker: SimulatedBroker) -> None:
        partition, size = step.number % PARTITIONS, 1 + step.number // PARTITIONS % 10
        delay_ms = step.number % 20_000 if step.action == "produce_delayed" else 0
        now_ms = broker.clock.now_ms()
        headers = ((DELAY_MS, b"%d" % delay_ms),) if delay_ms else ()
        batch = encode_batch([(now_ms, None, b"%d" % (self._count + each), headers) for each in range(size)])
        self._count += size
        try:
            published = (await publish(broker, QUEUE_TOPIC, [(partition, batch)], ACKS_ALL))[0]
        except Disconnected:
            return
        if published.error is None:
            ids = [f"{partition}-{published.base_offset + each}" for each in range(size)]
            self._ledger.published |= dict.fromkeys(ids, now_ms + delay_ms)


class DelayPublisher:
    """Publishes records to the topic with `delay.enable`; one that got no reply may come or not."""

    def __init__(self, ledger: DelayLedger) -> None:
        self._ledger = ledger
        self._count = 0

    async def carry_out(self, step: Step, broker: SimulatedBroker) -> None:
        size, delay_ms, now_ms = 1 + step.number % 5, step.number % 20_000, broker.clock.now_ms()
        values = [b"%d" % (self._count + each) for each in range(size)]
        self._count += size
        self._ledger.due_ms |= dict.fromkeys(values, now_ms + delay_ms)
        headers = ((DELAY_MS, b"%d" % delay_ms),)
        batch = encode_batch([(now_ms, None, value, headers) for value in values])
        try:
            published = (await publish(broker, DELAY_TOPIC, [(0, batch)], ACKS_ALL))[0]
        except Disconnected:
            return
        if published.error is None:
            self._ledger.acknowledged |= set(values)


class Worker:
    """Leases messages of the subscription, and settles those that it holds: ack, nack, or extend."""

    def __init__(self, ledger: QueueLedger) -> None:
        self._ledger = ledger
        self._held: list[Lease] = []

    async def carry_out(self, step: Step, broker: SimulatedBroker) -> None:
        await (self.lease(broker, step.number) if step.action == "lease" else self._settle(broker, step.number))

    async def lease(self, broker: SimulatedBroker, number: int) -> int:
        """Lease up to a few messages; returns how many there were."""
        visibility_ms, wait_ms = 1_000 + number % 20_000, number % 3_000

        async def leased(inside: Broker) -> list[Lease]:
            found = await inside.queues.lease(SUBSCRIPTION, 1 + number % 8, wait_ms, visibility_ms)
            for lease in found:
                clock = broker.clock
                self._ledger.lease(
                    lease.message.message_id, clock.latest_ms(), clock.steady_ms(), visibility_ms, broker.starts
                )
            return found

        try:
            leases = await broker.ask(leased)
        except _NO_REPLY:
            return 0
        self._held += leases
        return len(leases)

    async def settle_all(self, broker: SimulatedBroker) -> None:
        """Ack everything that is held."""
        while self._held:
            await self._ack(broker, len(self._held))

    async def _settle(self, broker: SimulatedBroker, number: int) -> None:
        count = 1 + number % 4
        if number % 3:
            return await self._ack(broker, count)
        chosen, self._held = self._held[:count], self._held[count:]
        for lease in chosen:
            self._ledger.release(lease.message.message_id)
        ack_ids = [lease.ack_id for lease in chosen]
        try:
            await broker.ask(lambda inside: inside.queues.nack(SUBSCRIPTION, ack_ids, number % 5_000))
        except _NO_REPLY:
            return

    async def _ack(self, broker: SimulatedBroker, count: int) -> None:
        chosen, self._held = self._held[:count], self._held[count:]
        if not chosen:
            return
        for lease in chosen:
            self._ledger.release(lease.message.message_id)
        ack_ids = [lease.ack_id for lease in chosen]
        try:
            results = await broker.ask(lambda inside: inside.queues.ack(SUBSCRIPTION, ack_ids))
        except _NO_REPLY:
            return
        for lease, error in zip(chosen, results, strict=True):
            if error is None:
                self._ledger.ack(lease.message.message_id)


async def publish(
    broker: SimulatedBroker, topic: str, batches: Sequence[tuple[int, bytes]], acks: int
) -> Sequence[Published]:
    """Publish to partitions of a topic. Raises Disconnected."""

    def request(inside: Broker) -> Awaitable[Sequence[Published]]:
        done: asyncio.Future[Sequence[Published]] = asyncio.get_running_loop().create_future()
        inside.publisher.publish([(topic, *each) for each in batches], acks, _setter(done))
        return done

    return await broker.ask(request)


async def read(broker: SimulatedBroker, place: Place, start: int, *, wait_ms: int) -> tuple[list[Record], Fetched]:
    """The records of a partition from an offset on, as many as one fetch brings. Raises Disconnected."""

    async def request(inside: Broker) -> tuple[list[Record], Fetched]:
        done: asyncio.Future[Sequence[Fetched]] = asyncio.get_running_loop().create_future()
        position = FetchPosition(*place, start, _READ_BYTES)
        inside.fetcher.fetch([position], FetchWait(wait_ms, 1, _READ_BYTES), _setter(done))
        fetched = (await done)[0]
        content = b"" if fetched.records is None else _stored(fetched)
        return [record for record in _records(content) if record.offset >= start], fetched

    return await broker.ask(request)


def _stored(fetched: Fetched) -> bytes:
    assert fetched.records is not None
    return fetched.records.file.read(fetched.records.position, fetched.records.length)


def _records(content: bytes) -> list[Record]:
    return [
        record
        for position, header in iterate_batches(content)
        if header.records_count
        for record in decode_records(content[position : position + header.size])
    ]


async def _submit(inside: Broker, command: CommitOffsets | FetchOffsets) -> object:
    reply: asyncio.Future[object] = asyncio.get_running_loop().create_future()
    inside.groups.submit(command, _setter(reply))
    found = await reply
    if isinstance(found, RequestError):
        raise found
    return found


def _setter(done: "asyncio.Future[Reply]") -> Callable[[Reply], None]:
    return lambda value: None if done.done() else done.set_result(value)


def _key(partition: int, number: int) -> bytes:
    return b"%d-%d" % (partition, number % _KEYS)
