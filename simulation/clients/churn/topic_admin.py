"""Creates, grows, configures and deletes topics, and creates subscriptions and schedules on them."""

from collections.abc import Mapping
from contextlib import suppress

from conveyor.cluster.topic_change import ConfigChange, Operation
from conveyor.kernel.errors import RequestError
from simulation.clients.churn.churn_ledger import CHURNED, DELAYED, DUE, PLAIN, QUEUED, SETTING, ChurnLedger
from simulation.cluster.fault_counts import FaultCounts
from simulation.doors.client_door import ClientDoor
from simulation.doors.client_network import Disconnected
from simulation.doors.kafka_requests import (
    TOPIC_RESOURCE,
    change_config,
    create_topic,
    delete_topic,
    grow_topic,
    show_topic,
)
from simulation.doors.rest_requests import create_schedule, create_subscription
from simulation.story_schedule import Step
from simulation.story_topics import PARTITIONS

MOST_PARTITIONS = 4

_NO_REPLY = (Disconnected, RequestError)


class TopicAdmin:
    """See the module's docstring. replicas: of each topic."""

    def __init__(self, ledger: ChurnLedger, replicas: int, counts: FaultCounts) -> None:
        self._ledger = ledger
        self._replicas = replicas
        self._counts = counts
        self._count = 0

    async def execute(self, step: Step, door: ClientDoor) -> None:
        self._count += 1
        action = {
            "create": self._create,
            "grow": self._grow,
            "configure": self._configure,
            "delete": self._delete,
            "recreate": self._recreate,
            "subscribe": self._subscribe,
            "add_schedule": self._add_schedule,
        }[step.action]
        with suppress(*_NO_REPLY):
            await action(door, CHURNED[step.number % len(CHURNED)], step.number // len(CHURNED))

    async def _create(self, door: ClientDoor, name: str, number: int) -> None:
        config: Mapping[str, str] = {}
        partitions = 1 + number % 2
        if name == DELAYED:
            config, partitions = {"delay.target": DUE}, PARTITIONS
        topic_id = await create_topic(door.any(), name, partitions, self._replicas, config)
        self._ledger.keep(name, topic_id, partitions)
        self._counts.note("topic made")

    async def _grow(self, door: ClientDoor, name: str, number: int) -> None:
        """Add partitions. A delayed topic grows only with its target."""
        name, count = PLAIN if name == DELAYED else name, 2 + number % (MOST_PARTITIONS - 1)
        await grow_topic(door.any(), name, count)
        shown = await show_topic(door.any(), name)
        if len(shown.leaders) >= count:  # Another broker may not know it yet.
            self._ledger.keep(name, shown.topic_id, count)
            self._counts.note("topic grown")

    async def _configure(self, door: ClientDoor, name: str, number: int) -> None:
        value = str(1_000_000 + self._count)
        self._ledger.attempt_setting(name, value)
        change = ConfigChange(name=SETTING, operation=Operation.SET, value=value)
        await change_config(door.any(), (TOPIC_RESOURCE, name), change)
        self._ledger.confirm_setting(name, value)

    async def _delete(self, door: ClientDoor, name: str, number: int) -> None:
        topic_id = (await show_topic(door.any(), name)).topic_id
        self._ledger.attempt_deletion(name, topic_id)
        await delete_topic(door.any(), topic_id)
        self._ledger.confirm_deletion(topic_id)
        self._counts.note("topic deleted")

    async def _recreate(self, door: ClientDoor, name: str, number: int) -> None:
        with suppress(*_NO_REPLY):
            await self._delete(door, name, number)
        await self._create(door, name, number)

    async def _subscribe(self, door: ClientDoor, name: str, number: int) -> None:
        subscription = f"workers-{self._count}"
        await create_subscription(door.any(), QUEUED, subscription)
        self._ledger.own(self._ledger.subscriptions, subscription, QUEUED)

    async def _add_schedule(self, door: ClientDoor, name: str, number: int) -> None:
        schedule = f"minutely-{self._count}"
        await create_schedule(door.any(), schedule, name, "* * * * *", "?|schedule")
        self._ledger.own(self._ledger.schedules, schedule, name)
