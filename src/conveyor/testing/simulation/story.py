"""Playing a schedule: one story of a broker and its clients, and how it ends.

After the last step the disk is healed, the broker is started once more, and everything is read to its end: what was
acknowledged is there, every delayed record has come, the queue is drained.
"""

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256

from conveyor.broker.broker_node import Broker
from conveyor.broker.produce.publish import ACKS_LEADER
from conveyor.cluster.topic_creation import TopicRequest
from conveyor.kernel.errors import ErrorKind, RequestError
from conveyor.queues.subscription.policy import Start
from conveyor.testing.simulation.actors import (
    DELAY_TOPIC,
    LOG_TOPIC,
    PARTITIONS,
    QUEUE_TOPIC,
    SUBSCRIPTION,
    TABLE_TOPIC,
    Actor,
    Committer,
    DelayPublisher,
    Producer,
    QueuePublisher,
    Reader,
    Worker,
    read,
)
from conveyor.testing.simulation.ledger import (
    DelayLedger,
    InvariantBroken,
    LogLedger,
    OffsetLedger,
    QueueLedger,
    check_latest_survives,
    check_ordered_once,
)
from conveyor.testing.simulation.operator import Operator
from conveyor.testing.simulation.simulated_broker import Disconnected, SimulatedBroker
from conveyor.testing.simulation.story_schedule import Schedule, Step
from conveyor.testing.simulation.virtual_loop import VirtualLoop

_SETTINGS: dict[str, object] = {
    "groups.offsets_partitions": 1,
    "topics.segment_bytes": 16_384,
    "topics.index_interval_bytes": 512,
}
_TOPICS: tuple[tuple[str, int, dict[str, str]], ...] = (
    (LOG_TOPIC, PARTITIONS, {}),
    (TABLE_TOPIC, PARTITIONS, {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01"}),
    (QUEUE_TOPIC, PARTITIONS, {}),
    (DELAY_TOPIC, 1, {"delay.enable": "true"}),
)
_LONGEST_STORY_S = 4 * 3_600.0
_LONGEST_DELAY_S = 2 * 3_600.0
_RETRY_S = 0.5


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a story ended. failure: None if every invariant held. digest: of what was read at the end."""

    failure: BaseException | None
    happened: dict[str, int]
    digest: str


def play(schedule: Schedule) -> Outcome:
    """Play a schedule on a loop of its own."""
    loop = VirtualLoop()
    story = _Story(loop, schedule)
    loop.set_exception_handler(lambda _, context: story.note_bug(context))
    failure: BaseException | None = None
    try:
        loop.run_until_complete(asyncio.wait_for(story.tell(), _LONGEST_STORY_S))
    except Exception as error:  # noqa: BLE001 - whatever ends a story early is what the seed has found
        failure = error
    finally:
        loop.end()
    return Outcome(failure, dict(story.operator.happened), story.digest.hexdigest())


class _Story:
    def __init__(self, loop: VirtualLoop, schedule: Schedule) -> None:
        self.log, self.offsets, self.queue, self.delays = LogLedger(), OffsetLedger(), QueueLedger(), DelayLedger()
        self.operator = Operator(self.log)
        self.digest = sha256()
        self._schedule = schedule
        self._broker = SimulatedBroker(loop, schedule.seed, _SETTINGS)
        self._table = Producer("table", TABLE_TOPIC, self.log, keyed=True)
        self._worker = Worker(self.queue)
        self._actors: dict[str, Actor] = {
            "producer-all": Producer("all", LOG_TOPIC, self.log),
            "producer-one": Producer("one", LOG_TOPIC, self.log, acks=ACKS_LEADER),
            "producer-plain": Producer("plain", LOG_TOPIC, self.log, idempotent=False),
            "producer-table": self._table,
            "producer-queue": QueuePublisher(self.queue),
            "producer-stream-delay": DelayPublisher(self.delays),
            "reader": Reader(self.log),
            "committer": Committer(self.offsets),
            "worker-1": self._worker,
            "worker-2": Worker(self.queue),
            "operator": self.operator,
        }

    def note_bug(self, context: dict[str, object]) -> None:
        """An exception that left a callback."""
        error = context.get("exception")
        if isinstance(error, BaseException):
            self._broker.bugs.append(error)

    async def tell(self) -> None:
        await self._broker.start()
        await self._until_it_succeeds(_prepare)
        by_actor: dict[str, list[Step]] = {}
        for step in self._schedule.steps:
            by_actor.setdefault(step.actor, []).append(step)
        parts = [asyncio.ensure_future(self._perform(self._actors[name], steps)) for name, steps in by_actor.items()]
        try:
            await asyncio.gather(*parts)
        finally:
            for part in parts:
                part.cancel()
        self._raise_bugs()
        await self._check_the_end()
        self._raise_bugs()

    async def _perform(self, actor: Actor, steps: Sequence[Step]) -> None:
        loop = asyncio.get_running_loop()
        for step in steps:
            await asyncio.sleep(max(0.0, step.at_ms / 1000 - loop.time()))
            await actor.carry_out(step, self._broker)
            self._raise_bugs()

    async def _check_the_end(self) -> None:
        self._broker.disk.heal()
        self._broker.crash()
        await self._broker.start()
        await self._check_logs()
        await self._check_delays()
        await self._drain_queue()

    async def _check_logs(self) -> None:
        for number in range(PARTITIONS):
            place = (LOG_TOPIC, number)
            check_ordered_once(place, await self._read_all(place))
        latest: dict[bytes, int] = {}
        for number in range(PARTITIONS):
            for _, key, value in await self._read_records((TABLE_TOPIC, number)):
                latest[key] = int(value.partition(b":")[2])
        check_latest_survives(self._table.latest, latest)

    async def _check_delays(self) -> None:
        values = [value for _, value in await self._read_all((DELAY_TOPIC, 0))]
        self.delays.check(values, self._broker.clock.latest_ms())
        await asyncio.sleep(_LONGEST_DELAY_S)
        values = [value for _, value in await self._read_all((DELAY_TOPIC, 0))]
        self.delays.check(values, self._broker.clock.latest_ms())
        self.delays.check_all(values)

    async def _drain_queue(self) -> None:
        while await self._until_it_succeeds(_count_unsettled):
            await self._worker.lease(self._broker, 7)
            await self._worker.settle_all(self._broker)
            await asyncio.sleep(_RETRY_S)
        self.queue.check_drained()

    async def _read_all(self, place: tuple[str, int]) -> list[tuple[int, bytes]]:
        return [(offset, value) for offset, _, value in await self._read_records(place)]

    async def _read_records(self, place: tuple[str, int]) -> list[tuple[int, bytes, bytes]]:
        """Every record of a partition: offset, key, value."""
        found: list[tuple[int, bytes, bytes]] = []
        position = 0
        while True:
            try:
                records, fetched = await read(self._broker, place, position, wait_ms=0)
            except (Disconnected, RequestError):
                await asyncio.sleep(_RETRY_S)
                continue
            if fetched.error is not None:
                if fetched.error.kind is ErrorKind.OFFSET_OUT_OF_RANGE and position < fetched.log_start_offset:
                    position = fetched.log_start_offset
                    continue
                raise InvariantBroken("NoAcknowledgedLoss", f"{place} cannot be read: {fetched.error}")
            if place[0] == LOG_TOPIC:
                values = [(record.offset, record.value or b"") for record in records]
                self.log.read(place, position, values, fetched.high_watermark)
            if not records:
                if position >= fetched.high_watermark:
                    break
                position += 1  # Compaction has left nothing here.
                continue
            found += [(record.offset, record.key or b"", record.value or b"") for record in records]
            position = records[-1].offset + 1
        if place[0] == LOG_TOPIC:
            self.log.check_end(place, position)
        self.digest.update(repr(found).encode())
        return found

    async def _until_it_succeeds(self, request: object) -> int:
        while True:
            try:
                return await self._broker.ask(request)  # type: ignore[arg-type]
            except (Disconnected, RequestError) as error:
                logging.getLogger(__name__).debug("asked again reason=%s", error)
                await asyncio.sleep(_RETRY_S)

    def _raise_bugs(self) -> None:
        if self._broker.bugs:
            raise self._broker.bugs[0]


async def _prepare(broker: Broker) -> int:
    for name, partitions, config in _TOPICS:
        await broker.topics.ensure(TopicRequest(name=name, partitions=partitions, config=config))
    if SUBSCRIPTION not in {each.name for each in broker.queues.all()}:
        await broker.queues.create(QUEUE_TOPIC, SUBSCRIPTION, Start(kind="earliest"), {"max_deliveries": 0})
    return 0


async def _count_unsettled(broker: Broker) -> int:
    return (await broker.queues.stats(SUBSCRIPTION)).unsettled
