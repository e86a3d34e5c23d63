"""Faults that wait for an event of the cluster, and strike within milliseconds of it.

    at_join        a replica joins an ISR
    at_leave       a replica leaves an ISR
    at_election    a leader is elected
    at_return      a broker is live again
    at_begin       a partition has joined a transaction
    at_end         a client is about to commit or abort a transaction

By chance alone a fault would hardly ever meet the few milliseconds in which brokers disagree about such an event.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator
from typing import NamedTuple

from conveyor.cluster.image import NO_LEADER, ClusterImage
from conveyor.kernel.ids import NodeId
from simulation.cluster.fault_counts import FaultCounts
from simulation.cluster.simulated_cluster import SimulatedCluster
from simulation.story_schedule import Step

_LONGEST_WAIT_S = 5.0
_LONGEST_DELAY_MS = 40
_STRIKES = ("crash", "cut_power", "pause", "isolate", "cut_store", "expire_session", "lose_store_replies", "slow_store")

Strike = Callable[[NodeId, str, int], Awaitable[None]]
"""Executes the fault of this name on a broker. The number parameterises it."""


def number_of(strike: str, delay_ms: int, strength: int) -> int:
    """Return the number of an ambush on the first broker of its event. strength: 0 to 100; how long a fault lasts."""
    return 2 * (delay_ms + _LONGEST_DELAY_MS * (_STRIKES.index(strike) + len(_STRIKES) * strength))


class _Event(NamedTuple):
    """kind: the action of the ambushes that wait for it. first: the broker that joins, leaves, leads, returns or
    coordinates. second: the leader or the leader before; or the same.
    """

    kind: str
    first: NodeId
    second: NodeId


class Ambushes:
    def __init__(self, cluster: SimulatedCluster, strike: Strike, counts: FaultCounts) -> None:
        self._strike = strike
        self._counts = counts
        self._waiting: list[tuple[str, asyncio.Future[_Event]]] = []
        cluster.tree.observe(self._stored)

    async def execute(self, step: Step) -> None:
        event: asyncio.Future[_Event] = asyncio.get_running_loop().create_future()
        self._waiting.append((step.action, event))
        try:
            async with asyncio.timeout(_LONGEST_WAIT_S):
                _, first, second = await event
        except TimeoutError:
            return
        number, victim = step.number >> 1, second if step.number & 1 else first
        number, delay_ms = divmod(number, _LONGEST_DELAY_MS)
        await asyncio.sleep(delay_ms / 1000)
        self._counts.note(step.action)
        await self._strike(victim, _STRIKES[number % len(_STRIKES)], step.number)

    def notice(self, kind: str, first: NodeId, second: NodeId) -> None:
        """Let the ambushes of this kind strike, if both brokers are known."""
        if self._waiting and NO_LEADER not in (first, second):
            self._begin([_Event(kind, first, second)])

    def _stored(self, old: ClusterImage, new: ClusterImage) -> None:
        if self._waiting:
            self._begin(_events(old, new))

    def _begin(self, events: Iterable[_Event]) -> None:
        for event in events:
            for kind, waiting in self._waiting:
                if kind == event.kind and not waiting.done():
                    waiting.set_result(event)
        self._waiting = [(kind, waiting) for kind, waiting in self._waiting if not waiting.done()]


def _events(old: ClusterImage, new: ClusterImage) -> Iterator[_Event]:
    for node_id, broker in new.brokers.items():
        before = old.brokers.get(node_id)
        if before is not None and before.is_fenced and not broker.is_fenced:
            yield _Event("at_return", node_id, node_id)
    for name, topic in new.topics.items():
        former = old.topics.get(name)
        present = () if former is None else former.partitions
        for before_change, after in zip(present, topic.partitions, strict=False):
            if after is before_change or after.leader == NO_LEADER:
                continue
            for node_id in sorted({*after.isr} - {*before_change.isr}):
                yield _Event("at_join", node_id, after.leader)
            for node_id in sorted({*before_change.isr} - {*after.isr}):
                yield _Event("at_leave", node_id, after.leader)
            if after.leader != before_change.leader:
                former_leader = before_change.leader if before_change.leader != NO_LEADER else after.leader
                yield _Event("at_election", after.leader, former_leader)
