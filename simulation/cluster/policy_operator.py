"""Changes the settings by which replicas must agree: of topics, of all brokers, and, in vain, of single brokers."""

import asyncio
from collections.abc import Collection
from contextlib import suppress

from conveyor.cluster.topic_change import ConfigChange, Operation
from conveyor.kernel.errors import RequestError
from conveyor.kernel.ids import NodeId
from simulation.callers import CALLER
from simulation.cluster.fault_counts import FaultCounts
from simulation.cluster.simulated_cluster import SESSION_TIMEOUT_MS, SimulatedCluster
from simulation.simulated_broker import Disconnected, SimulatedBroker
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

    async def execute(self, step: Step, _: object) -> None:
        self._counts.note(step.action)
        number = step.number // len(self._topics)
        with suppress(Disconnected, RequestError):
            if step.action == "set_flush_policy":
                await self._change_topic(step.number, _change(_FLUSH_POLICY, _FLUSH_POLICIES, number))
            elif step.action == "set_minimum":
                await self._change_topic(step.number, _change(_MINIMUM, _MINIMUMS, number))
            elif step.action == "set_default_flush_policy":
                await self._change_default(None, _change("topics.flush_policy", _FLUSH_POLICIES, number))
            elif step.action == "set_default_minimum":
                await self._change_default(None, _change(_MINIMUM, _MINIMUMS, number))
            else:
                name = sorted(_DEFAULTS)[number % len(_DEFAULTS)]
                await self._change_own(number, _change(name, _DEFAULTS[name], number // len(_DEFAULTS)))

    async def _change_topic(self, number: int, change: ConfigChange) -> None:
        broker, name = await self._cluster.any(), self._topics[number % len(self._topics)]
        await broker.ask(lambda inside: inside.topics.change_config(CALLER, name, [change]))

    async def _change_own(self, number: int, change: ConfigChange) -> None:
        """Change a default for one broker, which is to refuse it."""
        node_ids = sorted(self._cluster.brokers)
        await self._change_default(node_ids[number % len(node_ids)], change)

    async def _change_default(self, node_id: NodeId | None, change: ConfigChange) -> None:
        broker = await self._cluster.any() if node_id is None else self._cluster.brokers[node_id]
        await broker.ask(lambda inside: inside.cluster.dynamic_settings.change_broker(CALLER, node_id, [change]))


class LateHardening:
    """Lets `flush.policy=ack` take effect while a broker is away whose power was cut under `flush.policy=os`.

    Another broker is away, too, so that the first one is eligible when it returns. topics: whose policy changes.
    """

    def __init__(self, cluster: SimulatedCluster, topics: Collection[str], counts: FaultCounts) -> None:
        self._cluster = cluster
        self._topics = sorted(topics)
        self._counts = counts

    async def execute(self, step: Step) -> None:
        topic, number = self._topics[step.number % len(self._topics)], step.number // len(self._topics)
        self._counts.note(step.action)
        await self._set(await self._cluster.any(), topic, "os")
        await asyncio.sleep(number % 3_000 / 1000)
        async with self._cluster.control_all() as brokers:
            first = number % len(brokers)
            away, other, *rest = [*brokers[first:], *brokers[:first]]
            if not all(broker.is_ready for broker in brokers):
                return
            away.cut_power()
            other.crash()
            await asyncio.sleep((SESSION_TIMEOUT_MS + number % 1_000) / 1000)
            await self._set(rest[0], topic, "ack")
            await asyncio.gather(away.start(), other.start())

    async def _set(self, broker: SimulatedBroker, topic: str, policy: str) -> None:
        change = ConfigChange(name=_FLUSH_POLICY, operation=Operation.SET, value=policy)
        with suppress(Disconnected, RequestError):
            await broker.ask(lambda inside: inside.topics.change_config(CALLER, topic, [change]))


def _change(name: str, values: tuple[str, ...], number: int) -> ConfigChange:
    """Return the change to one of these values, or, more rarely, to none."""
    if number % (2 * len(values) + 1) == 0:
        return ConfigChange(name=name, operation=Operation.DELETE, value=None)
    return ConfigChange(name=name, operation=Operation.SET, value=values[number % len(values)])
