"""The services of machines that read a log of messages: queues and forwarders."""

import asyncio
from collections.abc import Callable
from typing import TypeVar

import msgspec

from conveyor.broker.partitions.disk_room import DiskRoom
from conveyor.broker.partitions.retention import Retention
from conveyor.broker.services import Services
from conveyor.kernel.errors import StorageFailure
from conveyor.log.cache_share import CacheShare

Result = TypeVar("Result")


class Turns:
    """The event loop as a machine uses it: later turns, and threads whose results come back in a turn."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._loop = asyncio.get_running_loop()

    def call_soon(self, work: Callable[[], None]) -> None:
        """Do work in a later turn."""
        self._loop.call_soon(work)

    def off_loop(self, work: Callable[[], Result], done: Callable[[Result | StorageFailure], None]) -> None:
        """Do work on a thread. `done` is called with its result or its failure."""

        async def run() -> None:
            result: Result | StorageFailure
            try:
                result = await self._loop.run_in_executor(self._services.threads, work)
            except StorageFailure as failure:
                result = failure
            done(result)

        self._services.tasks.start(run())


class MachineServices(msgspec.Struct, frozen=True, kw_only=True):
    """See the module's docstring. common: the services of all rooms."""

    common: Services
    cache: CacheShare
    room: DiskRoom
    retention: Retention
    turns: Turns
