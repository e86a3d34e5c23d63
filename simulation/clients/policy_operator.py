"""Changes the settings by which replicas must agree: of topics, of all brokers, and, in vain, of single brokers."""

import asyncio
from collections.abc import Collection
from contextlib import suppress

from conveyor.cluster.topic_change import ConfigChange, Operation
from conveyor.kernel.errors import RequestError
from conveyor.kernel.ids import NodeId
from simulation.cluster.fault_counts import FaultCounts
from simulation.cluster.machines import SESSION_TIMEOUT_MS
from simulation.cluster.simulated_cluster import SimulatedCluster
from simulation.doors.client_door import BrokerDoor, ClientDoor
from simulation.doors.client_network import Disconnected
from simulation.doors.kafka_requests import BROKER_RESOURCE, TOPIC_RESOURCE, change_config
from simulation.story_schedule import Step

_FLUSH_POLICIES, _MINIMUMS = ("os", "ack"), ("1", "2")
_FLUSH_POLICY, _MINIMUM = "flush.policy", "min.insync.replicas"
_DEFAULTS = {"topics.flush_policy": _FLUSH_POLICIES, _MINIMUM: _MINIMUMS, "unclean.leader.election.enable": ("true",)}


class PolicyOperator:
    """See the module's docstring. topics: whose settings it changes."""

    def __init__(self, cluster: SimulatedCluster, topics: Collection[str], counts: FaultCounts) -> None:
        self._cluster = cluster
        self._topics = sorted(topics)
        self._counts = counts

    async def execute(self, step: Step, door: ClientDoor) -> None:
        self._counts.note(step.action)
        number = step.number // len(self._topics)
        with suppress(Disconnected, RequestError):
            if step.action == "set_flush_policy":
                await self._change_topic(door, step.number, _change(_FLUSH_POLICY, _FLUSH_POLICIES, number))
            elif step.action == "set_minimum":
                await self._change_topic(door, step.number, _change(_MINIMUM, _MINIMUMS, number))
            elif step.action == "set_default_flush_policy":
                await self._change_default(door, None, _change("topics.flush_policy", _FLUSH_POLICIES, number))
            elif step.action == "set_default_minimum":
                await self._change_default(door, None, _change(_MINIMUM, _MINIMUMS, number))
            else:
                name = sorted(_DEFAULTS)[number % len(_DEFAULTS)]
                await self._change_own(door, number, _change(name, _DEFAULTS[name], number // len(_DEFAULTS)))

    async def _change_topic(self, door: ClientDoor, number: int, change: ConfigChange) -> None:
        await change_config(door.any(), (TOPIC_RESOURCE, self._topics[number % len(self._topics)]), change)

    async def _change_own(self, door: ClientDoor, number: int, change: ConfigChange) -> None:
        """Change a default for one broker, which is to refuse it."""
        node_ids = sorted(self._cluster.brokers)
        await self._change_default(door, node_ids[number % len(node_ids)], change)

    async def _change_default(self, door: ClientDoor, node_id: NodeId | None, change: ConfigChange) -> None:
        broker = door.any() if node_id is None else door.broker(node_id)
        await change_config(broker, (BROKER_RESOURCE, "" if node_id is None else str(node_id)), change)


class LateHardening:
    """Lets `flush.policy=ack` take effect while a broker is away whose power was cut under `flush.policy=os`.

    Another broker is away, too, so that the first one is eligible when it returns. topics: whose policy changes.
    """

    def __init__(self, cluster: SimulatedCluster, topics: Collection[str], counts: FaultCounts) -> None:
        self._cluster = cluster
        self._topics = sorted(topics)
        self._counts = counts
        self._door = cluster.clients.client("hardening")

    async def execute(self, step: Step) -> None:
        topic, number = self._topics[step.number % len(self._topics)], step.number // len(self._topics)
        self._counts.note(step.action)
        await self._set(self._door.any(), topic, "os")
        await asyncio.sleep(number % 3_000 / 1000)
        async with self._cluster.control_all() as brokers:
            first = number % len(brokers)
            away, other, *_ = [*brokers[first:], *brokers[:first]]
            remaining = sorted(self._cluster.brokers)[(first + 2) % len(brokers)]
            if not all(broker.is_ready for broker in brokers):
                return
            away.cut_power()
            other.crash()
            await asyncio.sleep((SESSION_TIMEOUT_MS + number % 1_000) / 1000)
            await self._set(self._door.broker(remaining), topic, "ack")
            await asyncio.gather(away.start(), other.start())

    async def _set(self, broker: BrokerDoor, topic: str, policy: str) -> None:
        change = ConfigChange(name=_FLUSH_POLICY, operation=Operation.SET, value=policy)
        with suppress(Disconnected, RequestError):
            await change_config(broker, (TOPIC_RESOURCE, topic), change)


def _change(name: str, values: tuple[str, ...], number: int) -> ConfigChange:
    """Return the change to one of these values, or, more rarely, to none."""
    if number % (2 * len(values) + 1) == 0:
        return ConfigChange(name=name, operation=Operation.DELETE, value=None)
    return ConfigChange(name=name, operation=Operation.SET, value=values[number % len(values)])
