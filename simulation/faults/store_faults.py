"""The faults between one broker and the metadata store. The broker may be stopped or break meanwhile.

A broker that embeds its metadata has a store of its own, and no session: LONE_STORE_FAULTS.
"""

import asyncio
from collections.abc import Awaitable, Callable

from conveyor.kernel.ids import NodeId
from simulation.cluster.fault_counts import FaultCounts
from simulation.cluster.flaky_store import FlakyStore, StoreFault
from simulation.cluster.machines import SESSION_TIMEOUT_MS, Machine
from simulation.cluster.simulated_cluster import SimulatedCluster
from simulation.faults.cluster_faults import duration_s
from simulation.story_schedule import Step

LONE_STORE_FAULTS = ("fail_store_reads", "fail_store_commits", "lose_store_replies", "fill_store")
STORE_FAULTS = ("cut_store", "expire_session", "lose_store_replies", "fail_store_reads", "slow_store")

_SLOWEST_HOP_S = 0.6


class StoreFaults:
    """Executes the faults of one broker's session. Each of them ends with the session's process at the latest."""

    def __init__(self, cluster: SimulatedCluster, node_id: NodeId, counts: FaultCounts) -> None:
        self._cluster = cluster
        self._node_id = node_id
        self._counts = counts
        self._actions: dict[str, Callable[[Machine, int], Awaitable[None]]] = {
            "cut_store": self._cut,
            "expire_session": self._expire,
            "lose_store_replies": self._lose_replies,
            "fail_store_reads": self._fail_reads,
            "slow_store": self._slow,
            "fail_store_commits": self._fail_commits,
            "fill_store": self._fill,
        }

    async def execute(self, step: Step) -> None:
        if self._cluster.brokers[self._node_id].is_running:
            self._counts.note(step.action)
            await self._actions[step.action](self._cluster.machines[self._node_id], step.number)

    async def _cut(self, machine: Machine, number: int) -> None:
        session = machine.session
        session.lose_contact("cut", is_noticed=True)
        await asyncio.sleep(duration_s(number))
        session.regain_contact("cut")

    async def _expire(self, machine: Machine, number: int) -> None:
        """Cut the connection until the session has just ended: the next one begins within one watch delay."""
        session = machine.session
        session.lose_contact("cut", is_noticed=number % 2 == 0)
        await asyncio.sleep((SESSION_TIMEOUT_MS + number % 64) / 1000)
        session.regain_contact("cut")

    async def _lose_replies(self, machine: Machine, number: int) -> None:
        store, lost_before = machine.store, machine.store.lost_replies
        store.fail(StoreFault.REPLY_LOST)
        await self._heal(store, number)
        if store.lost_replies > lost_before:
            self._counts.note("reply lost")

    async def _fail_reads(self, machine: Machine, number: int) -> None:
        machine.store.fail(StoreFault.READ_FAILS)
        await self._heal(machine.store, number)

    async def _fail_commits(self, machine: Machine, number: int) -> None:
        machine.store.fail(StoreFault.COMMIT_FAILS)
        await self._heal(machine.store, number)

    async def _fill(self, machine: Machine, number: int) -> None:
        machine.store.is_full = True
        await self._heal(machine.store, number)

    async def _heal(self, store: FlakyStore, number: int) -> None:
        await asyncio.sleep(duration_s(number))
        store.heal()

    async def _slow(self, machine: Machine, number: int) -> None:
        session = machine.session
        usual_s, session.longest_hop_s = session.longest_hop_s, _SLOWEST_HOP_S
        await asyncio.sleep(duration_s(number))
        session.longest_hop_s = usual_s
