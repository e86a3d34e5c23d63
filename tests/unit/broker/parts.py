"""A broker without doors, on the test's own event loop: memory disk, memory store, manual clock."""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from random import Random
from uuid import uuid4

from conveyor.adapters.compactor import ThreadCompactor
from conveyor.broker.broker_node import Broker, BrokerPorts
from conveyor.broker.produce.publish import ACKS_ALL, Published
from conveyor.records.record import encode_batch
from conveyor.settings.tree import from_sources
from conveyor.testing import ManualClock, MemoryDisk
from conveyor.testing.memory_store import MemoryStore

NOW_MS = 1_700_000_000_000
BATCH = encode_batch([(NOW_MS, b"key", b"value", [])])


class LosesAll(Random):
    """Nothing survives that was not flushed."""

    def random(self) -> float:
        return 0.0

    def getrandbits(self, k: int) -> int:
        return 0


class LosesNothing(Random):
    """All that was written survives, as after a kill of the process."""

    def random(self) -> float:
        return 1.0

    def randint(self, a: int, b: int) -> int:
        return b


class Storage:
    """What outlives a broker."""

    def __init__(self) -> None:
        self.disk = MemoryDisk()
        self.store = MemoryStore()
        self.clock = ManualClock(NOW_MS)


@asynccontextmanager
async def running_parts(
    settings: Mapping[str, object] | None = None, storage: Storage | None = None
) -> AsyncIterator[Broker]:
    """A started broker, stopped at the end; a bug in one of its tasks fails the test."""
    storage = storage or Storage()
    bugs: list[BaseException] = []
    with ThreadPoolExecutor(2) as threads:
        ports = BrokerPorts(
            disk=storage.disk,
            store=storage.store,
            clock=storage.clock,
            threads=threads,
            new_id=uuid4,
            failed=bugs.append,
            compactor=ThreadCompactor(storage.disk),
        )
        broker = Broker(from_sources(settings or {}), ports)
        await broker.start("broker.example", 9092)
        yield broker
        await broker.finish_requests()
        await broker.stop()
    assert not bugs


async def publish(broker: Broker, *where: tuple[str, int], acks: int = ACKS_ALL) -> Sequence[Published]:
    """Publish one batch to each partition, and wait for the results."""
    done: asyncio.Future[Sequence[Published]] = asyncio.get_running_loop().create_future()
    broker.publisher.publish([(*each, BATCH) for each in where], acks, done.set_result)
    return await done
