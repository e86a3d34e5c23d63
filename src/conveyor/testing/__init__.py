"""Real brokers for tests: `Broker` and `Cluster`, their fixtures, a manual clock, and a memory disk with faults.

The classes are imported on the first use of any of them, because pytest imports this package for the plugin in every
run.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from conveyor.testing.broker_clock import BrokerClock
    from conveyor.testing.embedded_broker import Broker
    from conveyor.testing.embedded_cluster import Cluster, ClusterBroker
    from conveyor.testing.manual_clock import ManualClock
    from conveyor.testing.memory_disk import MemoryDisk

__all__ = ["Broker", "BrokerClock", "Cluster", "ClusterBroker", "ManualClock", "MemoryDisk"]


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
    if name.startswith("Cluster"):
        from conveyor.testing.embedded_cluster import Cluster, ClusterBroker

        globals().update(Cluster=Cluster, ClusterBroker=ClusterBroker)
        return globals()[name]
    from conveyor.testing.broker_clock import BrokerClock
    from conveyor.testing.embedded_broker import Broker
    from conveyor.testing.manual_clock import ManualClock
    from conveyor.testing.memory_disk import MemoryDisk

    globals().update(Broker=Broker, BrokerClock=BrokerClock, ManualClock=ManualClock, MemoryDisk=MemoryDisk)
    return globals()[name]


def __dir__() -> list[str]:
    return sorted(__all__)
