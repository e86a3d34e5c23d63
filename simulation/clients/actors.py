"""The clients of a simulated broker. Each executes its steps in order and reports to the ledgers.

On a missing reply a client does what a careful program would. An idempotent producer resends the batch until it is
acknowledged; all other clients continue and treat the outcome as unknown.
"""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from typing import Protocol

from conveyor.broker.produce.publisher import ACKS_ALL
from conveyor.cluster.image import OFFSETS_TOPIC
from conveyor.kernel.errors import ErrorKind, RequestError
from conveyor.records.compression import NONE, ZSTD
from conveyor.records.message_attributes import DELAY_MS
from conveyor.records.record import Header, encode_batch
from simulation.doors.client_door import BrokerDoor, ClientDoor
from simulation.doors.client_network import Disconnected
from simulation.doors.kafka_requests import (
    PublishedAt,
    commit_offset,
    committed_offset,
    fetch,
    new_producer_id,
    publish,
)
from simulation.ledger import DelayLedger, InvariantBroken, LogLedger, OffsetLedger, Place
from simulation.story_schedule import Step
from simulation.story_topics import DELAY_TOPIC, DUE_TOPIC, LOG_TOPIC, PARTITIONS, QUEUE_TOPIC

_GROUP = "readers"
_PAUSE_S = 0.2
_NO_REPLY = (Disconnected, RequestError)


class Producer:
    """Sends batches of `<name>:<number>` values to both partitions of a topic in turn.

    acks: ACKS_ALL or ACKS_LEADER. pauses_s: before a retry; the step chooses one.
    An idempotent producer resends a batch until it is acknowledged.
    """

    def __init__(
        self,
        name: str,
        topic: str,
        ledger: LogLedger,
        *,
        acks: int = ACKS_ALL,
        idempotent: bool = True,
        pauses_s: Sequence[float] = (_PAUSE_S,),
    ) -> None:
        self._name = name
        self._topic = topic
        self._ledger = ledger
        self._acks = acks
        self._is_idempotent = idempotent
        self._pauses_s = pauses_s
        self._producer_id = -1
        self._sequences: dict[int, int] = {}
        self._count = 0

    async def execute(self, step: Step, door: ClientDoor) -> None:
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

    def _retries(self, published: PublishedAt | None) -> bool:
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
        if self._acks == ACKS_ALL:
            self._ledger.acknowledge((self._topic, partition), base_offset, [self._value(number) for number in numbers])

    async def _send(self, door: BrokerDoor, partition: int, numbers: Sequence[int]) -> PublishedAt | None:
        if self._is_idempotent and self._producer_id < 0:
            try:
                self._producer_id = await new_producer_id(door)
            except RequestError:
                return None
            self._sequences = {}
        batch = self._batch(partition, numbers, door.clock.now_ms())
        return (await publish(door, self._topic, [(partition, batch)], self._acks))[0]

    def _batch(self, partition: int, numbers: Sequence[int], now_ms: int) -> bytes:
        records: list[tuple[int, bytes | None, bytes | None, Sequence[Header]]] = [
            (now_ms, None, self._value(number), ()) for number in numbers
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

    async def execute(self, step: Step, door: ClientDoor) -> None:
        place = (LOG_TOPIC, step.number % PARTITIONS)
        if step.number % 5 == 0:
            self._positions[place] = 0
        start = max(self._positions.get(place, 0), self._ledger.of(place).readable_from)
        try:
            fetched = await fetch(await door.leader(place), place, start, wait_ms=step.number % 2_000)
        except _NO_REPLY:
            return
        if fetched.error is not None:
            if fetched.error.kind is ErrorKind.OFFSET_OUT_OF_RANGE and not self._has_failovers:
                self._ledger.check_end(place, start)
            return
        values = [(record.offset, record.value or b"") for record in fetched.records(start)]
        self._ledger.read(place, start, values, fetched.high_watermark)
        if values:
            self._positions[place] = values[-1][0] + 1


class Committer:
    """A consumer group that commits rising offsets and fetches its committed offset."""

    def __init__(self, ledger: OffsetLedger) -> None:
        self._ledger = ledger
        self._next = 0

    async def execute(self, step: Step, door: ClientDoor) -> None:
        broker = await door.leader((OFFSETS_TOPIC, 0))
        with suppress(*_NO_REPLY):
            await (self._commit(broker) if step.action == "commit" else self._fetch(broker))

    async def _commit(self, broker: BrokerDoor) -> None:
        offset, self._next = self._next, self._next + 1
        self._ledger.attempt(offset)
        await commit_offset(broker, _GROUP, (LOG_TOPIC, 0), offset)
        self._ledger.confirm(offset)

    async def _fetch(self, broker: BrokerDoor) -> None:
        self._ledger.check(await committed_offset(broker, _GROUP, (LOG_TOPIC, 0)))


class PublishedMessages(Protocol):
    published: dict[str, int]


class QueuePublisher:
    """Publishes messages to the queue's topic, some of them delayed.

    ledger: takes the due times of the acknowledged messages, 0 without a delay, by message id, into `published`.
    """

    def __init__(self, ledger: PublishedMessages) -> None:
        self._ledger = ledger
        self._count = 0

    async def execute(self, step: Step, door: ClientDoor) -> None:
        partition, size = step.number % PARTITIONS, 1 + step.number // PARTITIONS % 10
        delay_ms = step.number % 20_000 if step.action == "produce_delayed" else 0
        now_ms = door.clock.now_ms()
        headers = ((DELAY_MS, b"%d" % delay_ms),) if delay_ms else ()
        batch = encode_batch([(now_ms, None, b"%d" % (self._count + index), headers) for index in range(size)])
        self._count += size
        try:
            broker = await door.leader((QUEUE_TOPIC, partition))
            (published,) = await publish(broker, QUEUE_TOPIC, [(partition, batch)])
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

    async def execute(self, step: Step, door: ClientDoor) -> None:
        size, delay_ms, now_ms = 1 + step.number % 5, step.number % 20_000, door.clock.now_ms()
        values = [b"%d" % (self._count + index) for index in range(size)]
        self._count += size
        topic = DUE_TOPIC if step.number % 4 == 0 else DELAY_TOPIC
        self._ledger.due_ms |= dict.fromkeys(values, 0 if topic == DUE_TOPIC else now_ms + delay_ms)
        headers = ((DELAY_MS, b"%d" % delay_ms),)
        batch = encode_batch([(now_ms, None, value, headers) for value in values])
        try:
            broker = await door.leader((topic, 0))
            (published,) = await publish(broker, topic, [(0, batch)])
        except Disconnected:
            return
        if published.error is None:
            self._ledger.acknowledged |= set(values)
