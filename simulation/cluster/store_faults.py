"""The faults between one broker and the metadata store. The broker may be stopped or break meanwhile."""

import asyncio
from collections.abc import Awaitable, Callable

from conveyor.kernel.ids import NodeId
from simulation.cluster.cluster_faults import duration_s
from simulation.cluster.cluster_store import ClusterStore
from simulation.cluster.fault_counts import FaultCounts
from simulation.cluster.simulated_cluster import SESSION_TIMEOUT_MS, SimulatedCluster
from simulation.flaky_store import StoreFault
from simulation.story_schedule import Step

STORE_FAULTS = ("cut_store", "expire_session", "lose_store_replies", "fail_store_reads", "slow_store")

_SLOWEST_HOP_S = 0.6


class StoreFaults:
    """Executes the faults of one broker's session. Each of them ends with the session's process at the latest."""

    def __init__(self, cluster: SimulatedCluster, node_id: NodeId, counts: FaultCounts) -> None:
        self._cluster = cluster
        self._node_id = node_id
        self._counts = counts
        self._actions: dict[str, Callable[[ClusterStore, int], Awaitable[None]]] = {
            "cut_store": self._cut,
            "expire_session": self._expire,
            "lose_store_replies": self._lose_replies,
            "fail_store_reads": self._fail_reads,
            "slow_store": self._slow,
        }

    async def execute(self, step: Step) -> None:
        if self._cluster.brokers[self._node_id].is_running:
            self._counts.note(step.action)
            await self._actions[step.action](self._cluster.machines[self._node_id].store, step.number)

    async def _cut(self, store: ClusterStore, number: int) -> None:
        store.lose_contact("cut", is_noticed=True)
        await asyncio.sleep(duration_s(number))
        store.regain_contact("cut")

    async def _expire(self, store: ClusterStore, number: int) -> None:
        """Cut the connection until the session has just ended: the next one begins within one watch delay."""
        store.lose_contact("cut", is_noticed=number % 2 == 0)
        await asyncio.sleep((SESSION_TIMEOUT_MS + number % 64) / 1000)
        store.regain_contact("cut")

    async def _lose_replies(self, store: ClusterStore, number: int) -> None:
        lost_before = store.lost_replies
        store.fail(StoreFault.REPLY_LOST)
        await asyncio.sleep(duration_s(number))
        store.heal()
        if store.lost_replies > lost_before:
            self._counts.note("reply lost")

    async def _fail_reads(self, store: ClusterStore, number: int) -> None:
        store.fail(StoreFault.READ_FAILS)
        await asyncio.sleep(duration_s(number))
        store.heal()

    async def _slow(self, store: ClusterStore, number: int) -> None:
        usual_s, store.longest_hop_s = store.longest_hop_s, _SLOWEST_HOP_S
        await asyncio.sleep(duration_s(number))
        store.longest_hop_s = usual_s
