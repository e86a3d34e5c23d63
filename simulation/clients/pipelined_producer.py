"""An idempotent producer with several batches of a partition in flight, which does as librdkafka 2 does.

Once a batch fails, the producer sends no other one until all are answered. Then it sends those that failed again, in
order, with the same sequences. If another broker leads by then, a batch that was not sent before may overtake them: in
librdkafka, the thread of the new leader's connection may take it before that of the old one has put them back.
OUT_OF_ORDER_SEQUENCE for a batch other than the oldest lets the producer begin a new producer epoch, in which it sends
all batches again. No leader recognises those that were stored in the old epoch, so one of them may be stored twice.

Invariants, by the names that failures report, beside those of the ledger:

    KeepsItsEpoch       no producer has to begin a new producer epoch, unless records were lost
"""

import asyncio
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from random import Random
from typing import Any

from conveyor.broker.produce.publisher import ACKS_ALL
from conveyor.cluster.image import NO_EPOCH
from conveyor.kernel.errors import ErrorKind, RequestError
from conveyor.kernel.ids import ProducerEpoch, ProducerId, ProducerIdentity
from conveyor.records.record import encode_batch
from simulation.cluster.fault_counts import FaultCounts
from simulation.doors.client_door import BrokerDoor, ClientDoor
from simulation.doors.client_network import Disconnected
from simulation.doors.kafka_link import KafkaLink
from simulation.doors.kafka_requests import PublishedAt, new_producer_id, produce_body, published_at
from simulation.ledger import InvariantBroken, LogLedger, Place
from simulation.story_schedule import Step
from simulation.story_topics import LOG_TOPIC, PARTITIONS

_MOST_BATCHES, _MOST_RECORDS = 8, 3
_MOST_IN_FLIGHT = 5
_PACES_S = (0.0, 0.0, 0.05, 0.2)
"""Times from one new batch to the next."""
_OVERTAKING_SHARE = 0.5
_LONGEST_LEAD_S = 0.02
_BACK_OFFS_S = (0.05, 0.2, 1.0)
_LONGEST_S = 10.0
_IN_DOUBT = (ErrorKind.REQUEST_TIMED_OUT, ErrorKind.NOT_ENOUGH_REPLICAS_AFTER_APPEND)
"""The errors after which a batch may be stored, as librdkafka sees them."""
_OF_SEQUENCES = (ErrorKind.OUT_OF_ORDER_SEQUENCE, ErrorKind.INVALID_PRODUCER_EPOCH)


@dataclass(slots=True, eq=False)
class _Batch:
    """A batch that is not acknowledged. sent_to: the last broker that it was sent to."""

    values: Sequence[bytes]
    base_sequence: int
    sent_to: BrokerDoor | None = None
    is_in_doubt: bool = False


@dataclass(slots=True, eq=False)
class _Burst:
    """The batches of one step for one partition. waiting: those that are not acknowledged, in order.

    at_ms: the timestamp of the records. pace_s: from one new batch to the next. most_in_flight: without an answer.
    """

    place: Place
    at_ms: int
    waiting: list[_Batch]
    chance: Random
    pace_s: float
    most_in_flight: int


class PipelinedProducer:
    """See the module's docstring. Values are `<name>:<number>`."""

    def __init__(self, name: str, ledger: LogLedger, counts: FaultCounts) -> None:
        self._name = name
        self._ledger = ledger
        self._counts = counts
        self._identity: ProducerIdentity | None = None
        self._sequences: dict[Place, int] = {}
        self._count = 0
        self._implied: list[tuple[Place, bytes]] = []
        """The values without an answer that must be stored because a later batch is."""
        self._refusals: list[tuple[Place, RequestError]] = []
        """The reasons for new producer epochs."""

    async def execute(self, step: Step, door: ClientDoor) -> None:
        burst = self._burst(step.number, door.clock.now_ms())
        while True:
            with suppress(Disconnected, RequestError):
                broker = await door.leader(burst.place)
                if self._identity is None:
                    self._identity = ProducerIdentity(ProducerId(await new_producer_id(broker)), ProducerEpoch(0))
                if door.newest_epoch(burst.place) != NO_EPOCH:  # Otherwise no leader is known, and this is any broker.
                    await self._send_all(burst, broker)
            if not burst.waiting:
                return
            await asyncio.sleep(burst.chance.choice(_BACK_OFFS_S))

    async def check_the_end(self, _: ClientDoor) -> None:
        """Check what the answers imply, once everything has been read."""
        for place, value in self._implied:
            partition = self._ledger.of(place)
            if not (partition.is_excused or partition.readable_from or value in partition.seen.values()):
                raise InvariantBroken("NoAcknowledgedLoss", f"{place} lacks {value!r}, although a later batch is there")
        for place, refusal in self._refusals:
            if not self._ledger.of(place).is_excused:
                raise InvariantBroken("KeepsItsEpoch", f"{self._name} began a new epoch for {place}: {refusal}")

    def _burst(self, number: int, now_ms: int) -> _Burst:
        chance, place = Random(number), (LOG_TOPIC, number % PARTITIONS)
        waiting = []
        for _ in range(chance.randint(2, _MOST_BATCHES)):
            first, size = self._count, chance.randint(1, _MOST_RECORDS)
            self._count += size
            values = [b"%s:%d" % (self._name.encode(), first + index) for index in range(size)]
            waiting.append(_Batch(values, self._take_sequence(place, size)))
        return _Burst(place, now_ms, waiting, chance, chance.choice(_PACES_S), chance.randint(2, _MOST_IN_FLIGHT))

    def _take_sequence(self, place: Place, size: int) -> int:
        sequence = self._sequences.get(place, 0)
        self._sequences[place] = sequence + size
        return sequence

    async def _send_all(self, burst: _Burst, broker: BrokerDoor) -> None:
        """Send batches until one fails, and wait for all answers. Raises Disconnected if nothing was sent."""
        link = await broker.kafka_link()
        unsent, identity, has_failed = self._sending_order(burst, broker), self._identity, False
        in_flight: deque[tuple[_Batch, asyncio.Future[Any]]] = deque()
        while in_flight or (unsent and not has_failed):
            has_room = len(in_flight) < burst.most_in_flight
            is_answered = bool(in_flight) and in_flight[0][1].done()
            if unsent and has_room and not (has_failed or is_answered):
                batch = unsent.popleft()
                pause_s = burst.pace_s if batch.sent_to is None else 0
                if unsent and unsent[0].base_sequence < batch.base_sequence:
                    pause_s = burst.chance.uniform(0, _LONGEST_LEAD_S)
                batch.sent_to = broker
                in_flight.append((batch, self._write(burst, batch, link, broker)))
                await asyncio.sleep(pause_s)
                continue
            batch, reply = in_flight.popleft()
            published = await _answer(link, reply)
            if published.error is None:
                self._stored(burst, batch, published.base_offset)
                continue
            if batch not in burst.waiting:
                continue  # The answer to a later batch has implied that this one is stored.
            has_failed = True
            batch.is_in_doubt |= published.error.kind in _IN_DOUBT
            if published.error.kind in _OF_SEQUENCES:
                identity = self._renewed(burst.place, published.error, is_oldest=batch is burst.waiting[0])
        if identity != self._identity:
            self._begin(identity, burst)

    def _sending_order(self, burst: _Burst, broker: BrokerDoor) -> deque[_Batch]:
        """Return the batches to send. A new one may come first, once after each change of the leader."""
        order = deque(burst.waiting)
        moved = [batch for batch in order if batch.sent_to not in (None, broker)]
        new = next((batch for batch in order if batch.sent_to is None), None)
        if moved and new is not None and burst.chance.random() < _OVERTAKING_SHARE:
            self._counts.note("batch overtook another")
            order.remove(new)
            order.appendleft(new)
        for batch in moved:
            batch.sent_to = broker
        return order

    def _write(self, burst: _Burst, batch: _Batch, link: KafkaLink, broker: BrokerDoor) -> "asyncio.Future[Any]":
        assert self._identity is not None
        content = encode_batch(
            [(burst.at_ms, None, value, ()) for value in batch.values],
            producer_id=self._identity.producer_id,
            producer_epoch=self._identity.producer_epoch,
            base_sequence=batch.base_sequence,
        )
        topic, number = burst.place
        watch = broker.acknowledgements(topic, [number])
        return link.send(0, 12, produce_body(topic, number, content, ACKS_ALL), watch)

    def _stored(self, burst: _Burst, batch: _Batch, base_offset: int) -> None:
        """Note an answer, which implies that earlier batches are stored if that was in doubt."""
        self._ledger.acknowledge(burst.place, base_offset, batch.values)
        implied = [one for one in burst.waiting if one.is_in_doubt and one.base_sequence < batch.base_sequence]
        self._implied += [(burst.place, value) for one in implied for value in one.values]
        burst.waiting[:] = [one for one in burst.waiting if one not in (batch, *implied)]

    def _renewed(self, place: Place, refusal: RequestError, *, is_oldest: bool) -> ProducerIdentity | None:
        """Return the identity to go on with after a refusal; None for one with a new producer id."""
        assert self._identity is not None
        if refusal.kind is ErrorKind.OUT_OF_ORDER_SEQUENCE and not is_oldest:
            self._refusals.append((place, refusal))
            return self._identity._replace(producer_epoch=ProducerEpoch(self._identity.producer_epoch + 1))
        if not self._ledger.of(place).is_excused:
            raise InvariantBroken(
                "NoAcknowledgedLoss", f"{place} does not know the sequence of {self._name}: {refusal}"
            )
        return None

    def _begin(self, identity: ProducerIdentity | None, burst: _Burst) -> None:
        """Go on with a new identity, whose sequences begin at 0."""
        self._identity = identity
        self._sequences.clear()
        for batch in burst.waiting:
            batch.base_sequence, batch.is_in_doubt = self._take_sequence(burst.place, len(batch.values)), False


async def _answer(link: KafkaLink, reply: "asyncio.Future[Any]") -> PublishedAt:
    """Return the answer to a batch, or an error if none comes."""
    try:
        async with asyncio.timeout(_LONGEST_S):
            return published_at((await reply).responses[0].partition_responses[0])
    except TimeoutError:
        link.close()
    except Disconnected:
        pass
    return PublishedAt(RequestError(ErrorKind.REQUEST_TIMED_OUT, "no answer has come"), -1)
