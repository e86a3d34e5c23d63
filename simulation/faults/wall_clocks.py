"""The wall clocks of the brokers: each is set forward and back by itself, as NTP or an operator does.

All invariants hold: no duration depends on a wall clock, and a message is due once the clock of the broker that leads
its partition shows so. At the end of the story all clocks agree again.
"""

from conveyor.kernel.ids import NodeId
from simulation.cluster.fault_counts import FaultCounts
from simulation.cluster.simulated_cluster import SimulatedCluster
from simulation.story_schedule import Step

_SMALL_MS, _LARGE_MS = 3_000, 120_000
"""The largest errors of a clock."""


class ClockFaults:
    """Sets the wall clock of one broker's machine, whether the broker runs or not."""

    def __init__(self, cluster: SimulatedCluster, node_id: NodeId, counts: FaultCounts) -> None:
        self._cluster = cluster
        self._node_id = node_id
        self._counts = counts

    async def execute(self, step: Step) -> None:
        """Give the clock another error; every third one is large."""
        self._counts.note(step.action)
        longest_ms = _SMALL_MS if step.number % 3 else _LARGE_MS
        error_ms = step.number // 3 % (2 * longest_ms) - longest_ms
        broker = self._cluster.brokers[self._node_id]
        broker.set_wall_clock(error_ms - broker.clock.error_ms)
