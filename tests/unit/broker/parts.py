"""A broker without doors on the test's event loop: memory disk, memory store, manual clock."""

import asyncio
import sys
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import asynccontextmanager
from random import Random
from types import FrameType
from typing import Any
from uuid import uuid4

from conveyor.adapters.compactor import ThreadCompactor
from conveyor.broker.broker_node import BrokerNode
from conveyor.broker.broker_ports import BrokerPorts
from conveyor.broker.clients.bearer_tokens import KeySource
from conveyor.broker.metadata.metadata import Changed, Decide, Metadata
from conveyor.broker.produce.publisher import ACKS_ALL, Published
from conveyor.cluster.changes import Change
from conveyor.cluster.image import BrokerEndpoint, BrokerImage, ClusterImage
from conveyor.kernel.access.caller import PLAINTEXT
from conveyor.kernel.ids import NodeId
from conveyor.kernel.ports import MetadataStore
from conveyor.records.record import encode_batch
from conveyor.settings.tree import from_sources
from conveyor.testing import ManualClock, MemoryDisk
from conveyor.testing.memory_store import MemoryStore
from tests.callers import CALLER

NOW_MS = 1_700_000_000_000
BATCH = encode_batch([(NOW_MS, b"key", b"value", [])])


class LosesAll(Random):
    """Unflushed data is lost."""

    def random(self) -> float:
        return 0.0

    def getrandbits(self, k: int) -> int:
        return 0


class LosesNothing(Random):
    """All written data survives, as after a kill of the process."""

    def random(self) -> float:
        return 1.0

    def randint(self, a: int, b: int) -> int:
        return b


class ThreadlessExecutor(Executor):
    """Runs work immediately on the caller's thread."""

    def submit(self, work: Callable[..., Any], /, *arguments: Any, **named: Any) -> Future[Any]:
        done: Future[Any] = Future()
        done.set_result(work(*arguments, **named))
        return done


THIS_BROKER = BrokerImage(node_id=NodeId(1), host="broker.example", port=9092)


async def loaded_metadata(store: MetadataStore, *listeners: Changed, broker: BrokerImage = THIS_BROKER) -> Metadata:
    """Return the metadata of a broker that has started on this store."""
    metadata = unloaded_metadata(store)
    for listener in listeners:
        metadata.listen(listener)
    await metadata.load(broker)
    return metadata


def _failed(error: BaseException) -> None:
    raise error


def unloaded_metadata(store: MetadataStore) -> Metadata:
    return Metadata(store, ThreadlessExecutor(), uuid4, ManualClock(NOW_MS), _failed)


class Storage:
    """The storage that outlives a broker: its disk, metadata store and clock."""

    def __init__(self) -> None:
        self.disk = MemoryDisk()
        self.store = MemoryStore()
        self.clock = ManualClock(NOW_MS)


@asynccontextmanager
async def running_parts(
    settings: Mapping[str, object] | None = None,
    storage: Storage | None = None,
    cache_id: str = "",
    key_source: KeySource | None = None,
) -> AsyncIterator[BrokerNode]:
    """Run a broker, and stop it at the end; a bug in one of its tasks fails the test."""
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
            cache_id=cache_id,
            key_source=key_source,
        )
        broker = BrokerNode(from_sources(settings or {}), ports)
        await broker.start({PLAINTEXT: BrokerEndpoint("broker.example", 9092)})
        yield broker
        await broker.finish_requests()
        await broker.stop()
    assert not bugs


async def propose(broker: BrokerNode, *changes: Change) -> ClusterImage:
    """Change the cluster as another broker would. Returns once this broker has applied the change."""
    image = await broker.metadata.propose(lambda _: changes)
    await broker.metadata.applied.settled(image.seq)
    return image


async def rewrite(storage: Storage, decide: Decide) -> ClusterImage:
    """Change the stored metadata while no broker runs."""
    return await (await loaded_metadata(storage.store)).propose(decide)


async def stored_image(storage: Storage) -> ClusterImage:
    """Return the image with which a broker would start now."""
    return (await loaded_metadata(storage.store)).image


async def publish(
    broker: BrokerNode, *where: tuple[str, int], acks: int = ACKS_ALL, batch: bytes = BATCH
) -> Sequence[Published]:
    """Publish one batch to each partition, and wait for the results."""
    done: asyncio.Future[Sequence[Published]] = asyncio.get_running_loop().create_future()
    broker.produce.publisher.publish(CALLER, [(*place, batch) for place in where], acks, done.set_result)
    return await done


async def calls_of(work: Coroutine[Any, Any, object]) -> int:
    """Return the number of function calls on the event loop until the work is done."""
    calls = 0

    def count(_frame: FrameType, event: str, _argument: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        await work
    finally:
        sys.setprofile(None)
    return calls
