"""A broker that is started with a copy of another one's data directory, while that one runs.

Invariants, by the names that failures report:

    OriginalStays    a registration that is kept up ends only with its process: no clone takes its place

Once the original is away, for whatever reason, its clone is killed: it would look like the original after a power cut.
"""

import asyncio

from conveyor.broker.metadata.broker_session import BROKERS_PATH
from conveyor.kernel.errors import StartupError, StorageFailure
from simulation.cluster.simulated_cluster import SimulatedCluster
from simulation.ledger import InvariantBroken
from simulation.simulated_broker import SimulatedBroker

_LONGEST_S = 6.0


async def run_beside(original: SimulatedBroker, clone: SimulatedBroker, cluster: SimulatedCluster) -> None:
    """Start a clone, and kill it when it has refused to start, when the original is away, or after some seconds.

    The original serves, and nothing stops it meanwhile except the store.
    """
    ended = asyncio.Event()

    def look() -> None:
        if _registration(original) not in cluster.tree.nodes and not ended.is_set():
            if _registration(clone) in cluster.tree.nodes:
                detail = f"{_registration(clone)} takes the place of {_registration(original)}"
                cluster.broken.append(InvariantBroken("OriginalStays", detail))
            ended.set()
            clone.crash()

    clone.may_fail_with = (StorageFailure, StartupError)
    with cluster.tree.observed_nodes(look):
        look()
        if ended.is_set():
            return
        start = asyncio.ensure_future(clone.try_to_start())
        start.add_done_callback(lambda _: ended.set())
        try:
            async with asyncio.timeout(_LONGEST_S):
                await ended.wait()
        except TimeoutError:
            pass
        ended.set()
        if clone.is_running:
            clone.crash()
        await start


def _registration(broker: SimulatedBroker) -> str:
    """Return the path of a broker's registration, whether it is registered or not."""
    inside = broker.node
    if inside is None:
        return ""
    return f"{BROKERS_PATH}/{inside.settings.broker.node_id}.{inside.metadata.session.incarnation}"
