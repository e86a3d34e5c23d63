"""A real broker for tests: `Broker`, the `conveyor_broker` fixture, a manual clock, a memory disk with faults."""

from conveyor.testing.broker import Broker
from conveyor.testing.manual_clock import ManualClock
from conveyor.testing.memory_disk import MemoryDisk

__all__ = ["Broker", "ManualClock", "MemoryDisk"]
