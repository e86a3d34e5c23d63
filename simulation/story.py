"""Plays a schedule: one story of a broker and its clients, with its final checks.

After the last step the disk is healed, the broker is restarted, and everything is read to its end: acknowledged records
exist, every delayed record has arrived, and the queue is drained.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Protocol, TypeVar

from conveyor.broker.broker_node import BrokerNode
from conveyor.broker.produce.publish import ACKS_LEADER
from conveyor.cluster.topic_creation import TopicRequest
from conveyor.kernel.errors import ErrorKind, RequestError
from conveyor.queues.subscription.policy import StartPosition
from simulation.actors import (
    DELAY_TOPIC,
    DUE_TOPIC,
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
from simulation.callers import CALLER
from simulation.image_ledger import unreconciled
from simulation.ledger import (
    DelayLedger,
    InvariantBroken,
    LogLedger,
    OffsetLedger,
    QueueLedger,
    check_latest_survives,
    check_ordered_once,
)
from simulation.operator import Operator
from simulation.simulated_broker import Disconnected, SimulatedBroker
from simulation.story_schedule import Step, StorySchedule
from simulation.topic_actors import CHURNED, CHURNED_TARGET, DELAYED, QUEUED, TopicAdmin, TopicUser
from simulation.topic_ledger import TopicLedger
from simulation.virtual_loop import VirtualLoop

Reply = TypeVar("Reply")

_SETTINGS: dict[str, object] = {
    "groups.offsets_partitions": 1,
    "topics.segment_bytes": 16_384,
    "topics.index_interval_bytes": 512,
}
_TOPICS: tuple[tuple[str, int, dict[str, str]], ...] = (
    (LOG_TOPIC, PARTITIONS, {}),
    (TABLE_TOPIC, PARTITIONS, {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01"}),
    (QUEUE_TOPIC, PARTITIONS, {}),
    (DUE_TOPIC, 1, {}),
    (DELAY_TOPIC, 1, {"delay.target": DUE_TOPIC}),
    (CHURNED_TARGET, PARTITIONS, {}),
)
_SETTLES_WITHIN_S = 60.0
_LONGEST_STORY_S = 4 * 3_600.0
_LONGEST_DELAY_S = 2 * 3_600.0
_RETRY_S = 0.5


@dataclass(frozen=True, slots=True)
class StoryOutcome:
    """The result of a story. failure: None if every invariant held. digest: of everything that was read at the end."""

    failure: BaseException | None
    happened: dict[str, int]
    digest: str


class Playable(Protocol):
    """One story. bugs: the exceptions that escaped from its brokers."""

    @property
    def bugs(self) -> list[BaseException]: ...

    @property
    def happened(self) -> Mapping[str, int]: ...

    @property
    def text_digest(self) -> str: ...

    async def run(self) -> None: ...


def play(schedule: StorySchedule) -> StoryOutcome:
    """Play a schedule on a new event loop."""
    return play_story(lambda loop: _Story(loop, schedule), _LONGEST_STORY_S)


def play_story(make: Callable[[VirtualLoop], Playable], longest_s: float) -> StoryOutcome:
    """Play a story on a new event loop. longest_s: in virtual time."""
    loop = VirtualLoop()
    story = make(loop)

    def note_bug(_: asyncio.AbstractEventLoop, context: dict[str, object]) -> None:
        """Record an exception that escaped from a callback."""
        error = context.get("exception")
        if isinstance(error, BaseException):
            story.bugs.append(error)

    loop.set_exception_handler(note_bug)
    failure: BaseException | None = None
    try:
        loop.run_until_complete(asyncio.wait_for(story.run(), longest_s))
    except Exception as error:  # noqa: BLE001 - any exception that ends a story early is its failure
        failure = error
    finally:
        loop.end()
    return StoryOutcome(failure, dict(story.happened), story.text_digest)


def steps_by_actor(schedule: StorySchedule) -> dict[str, list[Step]]:
    """Return the steps of each actor, in order."""
    by_actor: dict[str, list[Step]] = {}
    for step in schedule.steps:
        by_actor.setdefault(step.actor, []).append(step)
    return by_actor


class _Story:
    def __init__(self, loop: VirtualLoop, schedule: StorySchedule) -> None:
        self.log, self.offsets, self.queue, self.delays = LogLedger(), OffsetLedger(), QueueLedger(), DelayLedger()
        self.operator = Operator(self.log)
        self.digest = sha256()
        self._schedule = schedule
        self._broker = SimulatedBroker(loop, schedule.seed, _SETTINGS)
        self._table = Producer("table", TABLE_TOPIC, self.log, keyed=True)
        self._worker = Worker(self.queue)
        self.topics = TopicLedger(CHURNED)
        self._topic_user = TopicUser(self.topics)
        self._broker.watch = lambda image, is_first: self.topics.observe(image, is_first=is_first)
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
            "topic-admin": TopicAdmin(self.topics),
            "topic-user": self._topic_user,
            "operator": self.operator,
        }

    @property
    def bugs(self) -> list[BaseException]:
        return self._broker.bugs

    @property
    def happened(self) -> Mapping[str, int]:
        return self.operator.happened

    @property
    def text_digest(self) -> str:
        return self.digest.hexdigest()

    async def run(self) -> None:
        await self._broker.start()
        await self._repeat_until_success(_prepare)
        parts = [
            asyncio.ensure_future(self._perform(self._actors[name], steps))
            for name, steps in steps_by_actor(self._schedule).items()
        ]
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
            await actor.execute(step, self._broker)
            self._raise_bugs()

    async def _check_the_end(self) -> None:
        self._broker.disk.heal()
        self._broker.store.heal()
        await self._check_settled()
        self._broker.crash()
        await self._broker.start()
        await self._check_settled()
        await self._check_logs()
        await self._check_delays()
        await self._drain_queue()
        await self._check_topics()

    async def _check_settled(self) -> None:
        deadline_s = asyncio.get_running_loop().time() + _SETTLES_WITHIN_S
        while differences := await self._repeat_until_success(_unreconciled):
            if asyncio.get_running_loop().time() > deadline_s:
                raise InvariantBroken("ReconcilerSettles", f"after {_SETTLES_WITHIN_S} s: {', '.join(differences)}")
            await asyncio.sleep(_RETRY_S)

    async def _check_topics(self) -> None:
        """Check the topics once all delays have passed."""
        for name in CHURNED:
            instance, by_partition = self.topics.instance(name), await self._topic_user.read_all(self._broker, name)
            self.digest.update(repr(by_partition).encode())
            if instance is not None and name == DELAYED and instance.topic_id in self.topics.delays:
                ledger = self.topics.delays[instance.topic_id]
                forwarded = [await self._read_all((CHURNED_TARGET, number)) for number in range(PARTITIONS)]
                values = [value for found in forwarded for _, value in found if value in ledger.due_ms]
                ledger.check(values, self._broker.clock.latest_ms())
                ledger.check_all(values)
        queued = self.topics.instance(QUEUED)
        for subscription, topic_id in self.topics.subscriptions.items():
            while queued is not None and queued.topic_id == topic_id:
                if not await self._topic_user.drain(self._broker, subscription):
                    break

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
        values = [value for _, value in await self._read_all((DUE_TOPIC, 0))]
        self.delays.check(values, self._broker.clock.latest_ms())
        await asyncio.sleep(_LONGEST_DELAY_S)
        values = [value for _, value in await self._read_all((DUE_TOPIC, 0))]
        self.delays.check(values, self._broker.clock.latest_ms())
        self.delays.check_all(values)

    async def _drain_queue(self) -> None:
        while await self._repeat_until_success(_count_unsettled):
            await self._worker.lease(self._broker, 7)
            await self._worker.settle_all(self._broker)
            await asyncio.sleep(_RETRY_S)
        self.queue.check_drained()

    async def _read_all(self, place: tuple[str, int]) -> list[tuple[int, bytes]]:
        return [(offset, value) for offset, _, value in await self._read_records(place)]

    async def _read_records(self, place: tuple[str, int]) -> list[tuple[int, bytes, bytes]]:
        """Return every record of a partition: offset, key, value."""
        found_records: list[tuple[int, bytes, bytes]] = []
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
                position += 1  # Compaction has removed these offsets.
                continue
            found_records += [(record.offset, record.key or b"", record.value or b"") for record in records]
            position = records[-1].offset + 1
        if place[0] == LOG_TOPIC:
            self.log.check_end(place, position)
        self.digest.update(repr(found_records).encode())
        return found_records

    async def _repeat_until_success(self, request: Callable[[BrokerNode], Awaitable[Reply]]) -> Reply:
        while True:
            try:
                return await self._broker.ask(request)
            except (Disconnected, RequestError) as error:
                logging.getLogger(__name__).debug("request repeated reason=%s", error)
                await asyncio.sleep(_RETRY_S)

    def _raise_bugs(self) -> None:
        if self._broker.bugs:
            raise self._broker.bugs[0]


async def _prepare(broker: BrokerNode) -> int:
    for name, partitions, config in _TOPICS:
        await broker.topics.ensure(CALLER, TopicRequest(name=name, partitions=partitions, config=config))
    if SUBSCRIPTION not in {subscription.name for subscription in broker.cluster.subscriptions.all()}:
        await broker.queues.lifecycle.create(
            CALLER, QUEUE_TOPIC, SUBSCRIPTION, StartPosition(kind="earliest"), {"max_deliveries": 0}
        )
    return 0


async def _unreconciled(broker: BrokerNode) -> list[str]:
    return unreconciled(broker)


async def _count_unsettled(broker: BrokerNode) -> int:
    return (await broker.queues.statistics.stats(CALLER, SUBSCRIPTION)).unsettled
