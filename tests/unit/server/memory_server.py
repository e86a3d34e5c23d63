"""A server with its listeners, on the test's own event loop, on free ports."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from conveyor.kernel.ports import Disk, MetadataStore
from conveyor.server.server import Server
from conveyor.settings.tree import from_sources
from conveyor.testing import MemoryDisk
from conveyor.testing.memory_store import MemoryStore

FREE_PORTS = {"network.kafka": "127.0.0.1:0", "network.http": "127.0.0.1:0"}


def server(storage: Path | tuple[Disk, MetadataStore] | None = None, **settings: object) -> Server:
    """Return a server on free ports. settings: `network__kafka` is `network.kafka`."""
    given = {name.replace("__", "."): value for name, value in settings.items()}
    return Server(from_sources(given, FREE_PORTS), storage or (MemoryDisk(), MemoryStore()))


@asynccontextmanager
async def running(made: Server) -> AsyncIterator[Server]:
    await made.start()
    yield made
    await made.stop()
