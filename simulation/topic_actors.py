"""Actors that repeatedly create, change and delete topics under a few names, and that use these topics meanwhile."""

from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import replace

from conveyor.broker.broker_node import BrokerNode
from conveyor.broker.produce.publish import ACKS_ALL, ACKS_LEADER, Published
from conveyor.cluster.topic_change import ConfigChange, Operation
from conveyor.cluster.topic_creation import TopicRequest
from conveyor.kernel.errors import RequestError
from conveyor.queues.subscription.policy import StartPosition
from conveyor.records.message_attributes import DELAY_MS
from conveyor.records.record import encode_batch
from conveyor.schedules.definition import Schedule
from simulation.actors import PARTITIONS, append, note_leases, read
from simulation.callers import CALLER
from simulation.ledger import DelayLedger, QueueLedger
from simulation.simulated_broker import Disconnected, SimulatedBroker
from simulation.story_schedule import Step
from simulation.topic_ledger import Effect, Instance, Possible, TopicLedger, TopicState

PLAIN, QUEUED, DELAYED = "churn-plain", "churn-queue", "churn-delay"
CHURNED = (PLAIN, QUEUED, DELAYED)
CHURNED_TARGET = "churn-due"
"""The target of DELAYED. It stays, and has PARTITIONS partitions."""

_NO_REPLY = (Disconnected, RequestError)
_MAX_PARTITIONS = 4
_VISIBILITY_MS = 30_000


class TopicAdmin:
    """Creates, grows, configures and deletes topics, and creates subscriptions and schedules on them."""

    def __init__(self, ledger: TopicLedger) -> None:
        self._ledger = ledger
        self._count = 0

    async def execute(self, step: Step, broker: SimulatedBroker) -> None:
        self._count += 1
        name = CHURNED[step.number % len(CHURNED)]
        action = {
            "create": self._create,
            "recreate": self._recreate,
            "grow": self._grow,
            "configure": self._configure,
            "delete": self._delete,
            "subscribe": self._subscribe,
            "add_schedule": self._add_schedule,
        }[step.action]
        with suppress(*_NO_REPLY):
            await action(broker, name, step.number // len(CHURNED))

    async def _create(self, broker: SimulatedBroker, name: str, number: int) -> None:
        config, partitions = {"max.message.bytes": str(1_000_000 + self._count)}, 1 + number % 2
        if name == DELAYED:
            config |= {"delay.target": CHURNED_TARGET, "flush.policy": "ack", "cleanup.policy": "delete"}
            partitions = PARTITIONS
        wanted = TopicRequest(name=name, partitions=partitions, config=config)
        made = TopicState(topic_id=None, partitions=wanted.partitions, config=tuple(sorted(config.items())))
        await self._change(
            broker,
            name,
            lambda state: [made] if state is None else [],
            lambda inside: inside.topics.create(CALLER, wanted),
        )

    async def _recreate(self, broker: SimulatedBroker, name: str, number: int) -> None:
        with suppress(*_NO_REPLY):
            await self._delete(broker, name, number)
        await self._create(broker, name, number)

    async def _grow(self, broker: SimulatedBroker, name: str, number: int) -> None:
        """Add partitions. A delayed topic grows only with its target."""
        name = PLAIN if name == DELAYED else name
        count = 2 + number % (_MAX_PARTITIONS - 1)

        def grown(state: TopicState | None) -> Possible:
            return [] if state is None or state.partitions >= count else [replace(state, partitions=count)]

        await self._change(broker, name, grown, lambda inside: inside.topics.add_partitions(CALLER, name, count, None))

    async def _configure(self, broker: SimulatedBroker, name: str, number: int) -> None:
        """Change a setting to a different value."""
        values = {"max.message.bytes": str(1_000_000 + self._count)}
        changes = [ConfigChange(name=key, operation=Operation.SET, value=value) for key, value in values.items()]

        def configured(state: TopicState | None) -> Possible:
            if state is None:
                return []
            return [replace(state, config=tuple(sorted((dict(state.config) | values).items())))]

        await self._change(broker, name, configured, lambda inside: inside.topics.change_config(CALLER, name, changes))

    async def _delete(self, broker: SimulatedBroker, name: str, number: int) -> None:
        await self._change(
            broker,
            name,
            lambda state: [] if state is None else [None],
            lambda inside: inside.topics.delete(CALLER, name),
        )

    async def _subscribe(self, broker: SimulatedBroker, name: str, number: int) -> None:
        subscription = f"workers-{self._count}"

        async def request(inside: BrokerNode) -> None:
            made = await inside.queues.lifecycle.create(
                CALLER, QUEUED, subscription, StartPosition(kind="earliest"), {"max_deliveries": 0}
            )
            self._ledger.subscriptions[subscription] = made.topic_id
            self._ledger.queues[subscription] = QueueLedger()

        await broker.ask(request)

    async def _add_schedule(self, broker: SimulatedBroker, name: str, number: int) -> None:
        schedule = Schedule(name=f"minutely-{self._count}", topic=name, cron="* * * * *", payload=b"?|schedule")

        async def request(inside: BrokerNode) -> None:
            await inside.schedules.add(CALLER, schedule)
            self._ledger.schedules[schedule.name] = inside.metadata.image.schedules[schedule.name].topic_id

        await broker.ask(request)

    async def _change(
        self, broker: SimulatedBroker, name: str, effect: Effect, change: Callable[[BrokerNode], Awaitable[object]]
    ) -> None:
        """Request a change, and note its possible effects in the ledger. Raises Disconnected, RequestError."""

        async def request(inside: BrokerNode) -> None:
            before = self._ledger.attempt(name, effect)
            try:
                await change(inside)
            except RequestError as error:
                self._ledger.refuse(name, before, error.kind)
                raise
            self._ledger.acknowledge(name, before, effect, inside.metadata.image)

        await broker.ask(request)


class TopicUser:
    """Publishes to those topics, reads them, and drains their subscriptions.

    A value names the topic that it is sent to; `?` if the topic is uncertain.
    """

    def __init__(self, ledger: TopicLedger) -> None:
        self._ledger = ledger
        self._count = 0

    async def execute(self, step: Step, broker: SimulatedBroker) -> None:
        name = CHURNED[step.number % len(CHURNED)]
        action = {"produce": self._produce, "read": self._read, "work": self._work}[step.action]
        with suppress(*_NO_REPLY):
            await action(broker, name, step.number // len(CHURNED))

    async def read_all(self, broker: SimulatedBroker, name: str) -> dict[int, list[bytes]]:
        """Return all values of a topic, by partition, after its ledgers have checked them. The topic must exist."""
        instance = self._ledger.instance(name)
        by_partition: dict[int, list[bytes]] = {}
        for number in range(0 if instance is None else instance.partitions):
            assert instance is not None
            by_partition[number], position = [], 0
            while values := await self._read_from(broker, instance, number, position):
                position += len(values)
                by_partition[number] += values
            self._ledger.logs.check_end(instance.place(number), position)
        return by_partition

    async def drain(self, broker: SimulatedBroker, subscription: str) -> bool:
        """Settle the messages of a subscription. Returns False if none was left and none is missing."""
        if await broker.ask(lambda inside: _unsettled(inside, subscription)):
            await self._lease_and_ack(broker, subscription, 0)
            return True
        self._ledger.queues[subscription].check_drained()
        return False

    async def _produce(self, broker: SimulatedBroker, name: str, number: int) -> None:
        size, acks = 1 + number % 7, ACKS_LEADER if number % 3 == 0 else ACKS_ALL
        delay_ms = number % 20_000 if name == DELAYED else 0

        async def request(inside: BrokerNode) -> None:
            instance, now_ms = self._ledger.instance(name), broker.clock.now_ms()
            partition = number % (1 if instance is None else instance.partitions)
            values = self._values(instance, size)
            if instance is not None:
                self._delays_of(instance).due_ms |= dict.fromkeys(values, now_ms + delay_ms)
            headers = ((DELAY_MS, b"%d" % delay_ms),) if delay_ms else ()
            batch = encode_batch([(now_ms, None, value, headers) for value in values])
            (published,) = await append(broker, inside, name, [(partition, batch)], acks)
            if instance is not None and acks == ACKS_ALL and self._is_still(instance):
                self._acknowledged(instance, partition, values, published)

        await broker.ask(request)

    def _acknowledged(self, instance: Instance, partition: int, values: Sequence[bytes], published: Published) -> None:
        if published.error is not None:
            return self._ledger.check_error(instance, published.error.kind)
        if instance.name == DELAYED:
            self._delays_of(instance).acknowledged |= set(values)
        self._ledger.logs.acknowledge(instance.place(partition), published.base_offset, values)
        ids = [f"{partition}-{published.base_offset + index}" for index in range(len(values))]
        for subscription, topic_id in self._ledger.subscriptions.items():
            if topic_id == instance.topic_id:
                self._ledger.queues[subscription].published |= dict.fromkeys(ids, 0)

    async def _read(self, broker: SimulatedBroker, name: str, number: int) -> None:
        instance = self._ledger.instance(name)
        if instance is not None:
            await self._read_from(broker, instance, number % instance.partitions, 0)

    async def _read_from(self, broker: SimulatedBroker, instance: Instance, partition: int, start: int) -> list[bytes]:
        records, fetched = await read(broker, (instance.name, partition), start, wait_ms=0)
        if fetched.error is not None or not self._is_still(instance):
            return []
        values = [(record.offset, record.value or b"") for record in records]
        for _, value in values:
            self._ledger.check_record(instance, value)
        self._ledger.logs.read(instance.place(partition), start, values, fetched.high_watermark)
        return [value for _, value in values]

    async def _work(self, broker: SimulatedBroker, name: str, number: int) -> None:
        if self._ledger.subscriptions:
            await self._lease_and_ack(broker, list(self._ledger.subscriptions)[-1], number % 2_000)

    async def _lease_and_ack(self, broker: SimulatedBroker, subscription: str, wait_ms: int) -> None:
        """Lease some messages and acknowledge them."""
        ledger = self._ledger.queues[subscription]

        async def leased(inside: BrokerNode) -> list[str]:
            leases = await inside.queues.leases.lease(CALLER, subscription, 20, wait_ms, _VISIBILITY_MS)
            ids = [lease.message.message_id for lease in leases]
            note_leases(ledger, broker, inside, leases, _VISIBILITY_MS)
            instance = self._ledger.instance(QUEUED)
            if instance is not None and instance.topic_id == self._ledger.subscriptions[subscription]:
                for lease in leases:
                    self._ledger.check_record(instance, lease.message.value or b"")
            errors = await inside.queues.settlements.ack(CALLER, subscription, [lease.ack_id for lease in leases])
            for ack_id, error in zip(ids, errors, strict=True):
                if error is None:
                    ledger.ack(ack_id)
            return ids

        await broker.ask(leased)

    def _values(self, instance: Instance | None, size: int) -> list[bytes]:
        numbers = range(self._count, self._count + size)
        self._count += size
        target = "?" if instance is None else str(instance.topic_id)
        return [f"{target}|{number}".encode() for number in numbers]

    def _delays_of(self, instance: Instance) -> DelayLedger:
        return self._ledger.delays.setdefault(instance.topic_id, DelayLedger())

    def _is_still(self, instance: Instance) -> bool:
        now = self._ledger.instance(instance.name)
        return now is not None and now.topic_id == instance.topic_id


async def _unsettled(inside: BrokerNode, subscription: str) -> int:
    return (await inside.queues.statistics.stats(CALLER, subscription)).unsettled
