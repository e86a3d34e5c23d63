"""A real broker for tests: `Broker`, the `conveyor_broker` fixture, a manual clock, a memory disk with faults.

The names are loaded when they are first used: pytest imports this package in every run, for the plugin's sake.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from conveyor.testing.broker_clock import BrokerClock
    from conveyor.testing.embedded_broker import Broker
    from conveyor.testing.manual_clock import ManualClock
    from conveyor.testing.memory_disk import MemoryDisk

__all__ = ["Broker", "BrokerClock", "ManualClock", "MemoryDisk"]

_MODULES = {
    "Broker": "embedded_broker",
    "BrokerClock": "broker_clock",
    "ManualClock": "manual_clock",
    "MemoryDisk": "memory_disk",
}


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
