"""The end of a broker: what its rooms have started is stopped."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from uuid import uuid4

import pytest

from conveyor.adapters.compactor import ThreadCompactor
from conveyor.broker.broker_node import BrokerNode
from conveyor.broker.broker_ports import BrokerPorts
from conveyor.broker.periodic import Periodic
from conveyor.broker.services import Services
from conveyor.cluster.image import BrokerEndpoint
from conveyor.cluster.topic_creation import TopicRequest
from conveyor.kernel.access.caller import PLAINTEXT
from conveyor.kernel.errors import DiskFull, StorageFailure
from conveyor.queues.subscription.policy import StartPosition
from conveyor.settings.tree import from_sources
from conveyor.testing import ManualClock
from tests.callers import CALLER
from tests.unit.broker.parts import Storage, publish, running_parts

HOURS_S = 100 * 3600


def has_timers(clock: ManualClock) -> bool:
    return clock.next_callback(clock.begin(seconds=HOURS_S)) is not None


async def test_a_broker_that_has_stopped_leaves_no_timer() -> None:
    storage = Storage()
    async with running_parts(storage=storage) as broker:
        await broker.topics.create(CALLER, TopicRequest(name="t", partitions=1))
        await broker.queues.lifecycle.create(CALLER, "t", "s", StartPosition(kind="earliest"), {})
        await publish(broker, ("t", 0))
        await broker.queues.leases.lease(CALLER, "s", 1, 0, None)
        waiting = asyncio.ensure_future(broker.queues.leases.lease(CALLER, "s", 1, 60_000, None))
        await broker.coordinators.groups.of_group("g")
        assert not waiting.done()
    assert await waiting == []
    assert not has_timers(storage.clock)


class _Work(Periodic):
    """Work that is in progress until `ends` is set."""

    interval_ms = 1_000

    def __init__(self, services: Services) -> None:
        super().__init__(services)
        self.ends = asyncio.Event()

    async def run_once(self) -> None:
        await self.ends.wait()


async def test_work_that_ends_after_the_broker_has_stopped_serving_is_not_repeated() -> None:
    storage = Storage()
    async with running_parts(storage=storage) as broker:
        work = _Work(broker.partitions.retention._services)
        work.start()
        storage.clock.advance(ms=1_000)
        await asyncio.sleep(0)
        assert not work.is_idle
        work.stop()
        work.ends.set()
        await work.drain()
        await asyncio.sleep(0)
        assert not work._alarm.is_set


async def test_a_broker_whose_start_has_failed_stops_what_it_has_started(monkeypatch: pytest.MonkeyPatch) -> None:
    storage, bugs = Storage(), list[BaseException]()
    with ThreadPoolExecutor(2) as threads:
        ports = BrokerPorts(
            disk=storage.disk, store=storage.store, clock=storage.clock, threads=threads, new_id=uuid4,
            failed=bugs.append, compactor=ThreadCompactor(storage.disk),
        )  # fmt: skip
        broker = BrokerNode(from_sources({}), ports)

        def fail() -> None:
            broker.partitions.table.went_offline.emit(DiskFull("meanwhile"))
            raise StorageFailure("the last room does not start")

        monkeypatch.setattr(broker.partitions.disk_watch, "start", fail)
        with pytest.raises(StorageFailure, match="the last room"):
            await broker.start({PLAINTEXT: BrokerEndpoint("broker.example", 9092)})
        assert broker.partitions.retention._alarm.is_set
        await broker.stop()
    assert not has_timers(storage.clock)
    assert not bugs
