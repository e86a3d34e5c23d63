"""Lanes keep the order within a partition, and do not order different partitions."""

import asyncio
from collections.abc import Awaitable, Callable

from conveyor.broker.produce.lanes import Lanes
from conveyor.broker.tasks import Tasks
from tests.unit.replication.parts import Owner


class Jobs:
    """Jobs that wait for their release, and record when they end."""

    def __init__(self) -> None:
        self.done: list[str] = []
        self.gates: dict[str, asyncio.Event] = {}

    def __call__(self, name: str) -> Callable[[], Awaitable[None]]:
        gate = self.gates[name] = asyncio.Event()

        async def job() -> None:
            await gate.wait()
            self.done.append(name)

        return job


async def test_jobs_of_a_partition_are_done_in_order_and_others_do_not_wait() -> None:
    bugs: list[BaseException] = []
    lanes, jobs = Lanes(Tasks(bugs.append)), Jobs()
    slow, quick = Owner().partition, Owner().partition
    for name in ("a", "b", "c"):
        lanes.add(slow, jobs(name))
    lanes.add(quick, jobs("d"))
    assert (lanes.has(slow), lanes.has(quick)) == (True, True)
    for name in ("d", "c", "b", "a"):
        jobs.gates[name].set()
    await lanes.drain()
    assert sorted(jobs.done) == ["a", "b", "c", "d"]
    assert [name for name in jobs.done if name != "d"] == ["a", "b", "c"]
    assert (lanes.has(slow), lanes.has(quick), bugs) == (False, False, [])


async def test_lane_that_was_emptied_can_be_entered_again() -> None:
    lanes, jobs = Lanes(Tasks(lambda _: None)), Jobs()
    partition = Owner().partition
    for name in ("a", "b"):
        lanes.add(partition, jobs(name))
        jobs.gates[name].set()
        await lanes.drain()
    assert jobs.done == ["a", "b"]


async def test_drain_of_nothing_returns_at_once() -> None:
    await Lanes(Tasks(lambda _: None)).drain()
