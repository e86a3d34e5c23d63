"""Hosts of state machines: a machine is loaded once, runs while its partition is led, and is loaded again when
required.
"""

import asyncio
from collections.abc import Callable, Coroutine
from typing import TypeVar

import pytest

from conveyor.broker.coordinators.coordinators import MARKER_PATIENCE_MS, Host
from conveyor.broker.tasks import Tasks
from conveyor.kernel.errors import ErrorKind, NotLeader, RequestError
from conveyor.kernel.ids import LeaderEpoch, NodeId
from conveyor.replication.partition import Partition
from conveyor.replication.roles import Follower
from conveyor.testing import ManualClock
from tests.unit.replication.parts import EPOCH, IDENTITY, Owner, batch

Result = TypeVar("Result")
RETRY_MS = 1_000


class Machine:
    """A running machine, as a host sees it."""

    def __init__(self, partition: Partition) -> None:
        self.partition = partition
        self.is_stopped = False

    def stop(self) -> None:
        self.is_stopped = True


class Kind:
    """Loads a machine when the test permits it."""

    name = "machine"

    def __init__(self) -> None:
        self.loads: list[asyncio.Future[None]] = []
        self.made: list[Machine] = []
        self.may_go_on = False
        self.has_checks = False

    def logs(self, partition: Partition) -> tuple[Partition]:
        return (partition,)

    async def load(self, partition: Partition, check_wanted: Callable[[], None]) -> Machine:
        self.loads.append(asyncio.get_running_loop().create_future())
        await self.loads[-1]
        if self.has_checks:
            check_wanted()
        self.made.append(Machine(partition))
        return self.made[-1]

    def try_continue(self, machine: Machine, partition: Partition) -> bool:
        return machine.partition is partition or self.may_go_on


class Stage:
    """A host, and the partition whose machine it loads."""

    def __init__(self, retry_ms: int | None = RETRY_MS) -> None:
        self.kind = Kind()
        self.clock = ManualClock()
        self.owner = Owner()
        self.partition = self.owner.partition
        self.bugs: list[BaseException] = []
        self.host = Host(self.kind, self.clock, Tasks(self.bugs.append), retry_ms)

    async def finish(self, number: int, error: RequestError | None = None) -> None:
        """End a load, and run its callbacks."""
        if error is None:
            self.kind.loads[number].set_result(None)
        else:
            self.kind.loads[number].set_exception(error)
        await rest()
        assert not self.bugs


async def rest() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def begun(work: Coroutine[None, None, Result]) -> "asyncio.Task[Result]":
    task = asyncio.ensure_future(work)
    await rest()
    return task


def refusal(text: str) -> RequestError:
    return RequestError(ErrorKind.PARTITION_OFFLINE, text)


async def test_machine_is_loaded_once_however_many_ask_for_it() -> None:
    stage = Stage()
    first, second = await begun(stage.host.loaded(stage.partition)), await begun(stage.host.loaded(stage.partition))
    assert (len(stage.kind.loads), stage.host.running(IDENTITY)) == (1, None)
    await stage.finish(0)
    assert await first is await second is stage.host.running(IDENTITY)
    assert list(stage.host.all_running()) == stage.kind.made
    assert await stage.host.loaded(stage.partition) is stage.kind.made[0]


@pytest.mark.parametrize("patience", [(), (MARKER_PATIENCE_MS,)])
async def test_nobody_waits_for_ever(patience: tuple[int, ...]) -> None:
    stage = Stage()
    waiting = await begun(stage.host.loaded(stage.partition, *patience))
    stage.clock.advance(ms=sum(patience) or 30_000)
    with pytest.raises(RequestError, match="t-0 is being read") as refused:
        await waiting
    assert refused.value.kind is ErrorKind.COORDINATOR_LOADING
    await stage.finish(0)
    assert stage.host.running(IDENTITY) is stage.kind.made[0]


async def test_partition_that_is_gained_twice_at_once_is_read_once() -> None:
    stage = Stage()
    stage.host.gained(stage.partition)
    stage.host.gained(stage.partition)
    await rest()
    assert len(stage.kind.loads) == 1


async def test_failure_is_told_to_those_who_wait_and_the_next_who_asks_tries_again() -> None:
    stage = Stage(retry_ms=None)
    waiting = await begun(stage.host.loaded(stage.partition))
    await stage.finish(0, refusal("the disk is gone"))
    with pytest.raises(RequestError, match="the disk is gone"):
        await waiting
    stage.clock.advance(seconds=1000)
    again = await begun(stage.host.loaded(stage.partition))
    await stage.finish(1)
    assert (await again, stage.host.failure(IDENTITY)) == (stage.kind.made[0], None)


async def test_host_that_retries_loads_again_after_pauses_that_double() -> None:
    stage = Stage()
    stage.host.gained(stage.partition)
    await rest()
    for number, pause_ms in enumerate((RETRY_MS, 2 * RETRY_MS)):
        await stage.finish(number, refusal("not now"))
        failure = stage.host.failure(IDENTITY)
        assert failure is not None
        assert failure.message == "not now"
        stage.clock.advance(ms=pause_ms - 1)
        await rest()
        assert len(stage.kind.loads) == number + 1
        stage.clock.advance(ms=1)
        await rest()
        assert len(stage.kind.loads) == number + 2
    await stage.finish(2)
    assert stage.host.running(IDENTITY) is stage.kind.made[0]


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
async def test_load_that_is_overtaken_starts_no_machine(order: tuple[int, int]) -> None:
    stage = Stage()
    stage.kind.has_checks = True
    waiting = await begun(stage.host.loaded(stage.partition))
    stage.host.gained(stage.partition)
    await rest()
    for number in order:
        await stage.finish(number)
    assert [await waiting] == stage.kind.made
    assert not stage.kind.made[0].is_stopped


async def test_load_that_is_overtaken_is_thrown_away() -> None:
    stage = Stage()
    waiting = await begun(stage.host.loaded(stage.partition))
    stage.host.gained(stage.partition)
    await rest()
    await stage.finish(0)
    assert stage.kind.made[0].is_stopped
    assert not waiting.done()
    await stage.finish(1)
    assert await waiting is stage.kind.made[1]


@pytest.mark.parametrize("may_go_on", [False, True])
async def test_partition_that_was_opened_again_has_its_machine_loaded_unless_that_goes_on(may_go_on: bool) -> None:
    stage = Stage()
    stage.host.gained(stage.partition)
    await rest()
    await stage.finish(0)
    reopened = Owner().partition
    stage.kind.may_go_on = may_go_on
    stage.host.gained(reopened)
    await rest()
    assert stage.kind.made[0].is_stopped is not may_go_on
    assert len(stage.kind.loads) == (1 if may_go_on else 2)
    assert (stage.host.has(stage.partition), stage.host.has(reopened)) == (False, True)


async def test_lost_partition_has_its_machine_stopped_and_nobody_waits_for_it() -> None:
    stage = Stage()
    waiting = await begun(stage.host.loaded(stage.partition))
    stage.host.lost(stage.partition)
    with pytest.raises(RequestError, match="is being closed"):
        await waiting
    await stage.finish(0)
    assert stage.kind.made[0].is_stopped
    assert stage.host.partitions() == []


async def test_partition_that_has_taken_the_place_is_not_lost_with_the_one_before() -> None:
    stage = Stage()
    reopened = Owner().partition
    stage.host.gained(stage.partition)
    stage.host.gained(reopened)
    stage.host.lost(stage.partition)
    assert stage.host.partitions() == [reopened]


async def test_machine_that_cannot_go_on_is_loaded_anew_after_a_pause() -> None:
    stage = Stage()
    stage.host.gained(stage.partition)
    await rest()
    await stage.finish(0)
    stage.host.failed(stage.partition, refusal("too many files are open"))
    assert stage.kind.made[0].is_stopped
    stage.clock.advance(ms=RETRY_MS)
    await rest()
    await stage.finish(1)
    assert stage.host.running(IDENTITY) is stage.kind.made[1]


async def test_host_that_was_stopped_loads_nothing_any_more() -> None:
    stage = Stage()
    stage.host.gained(stage.partition)
    await rest()
    await stage.finish(0)
    stage.host.stop()
    assert stage.kind.made[0].is_stopped
    with pytest.raises(RequestError, match="is being closed"):
        await stage.host.loaded(stage.partition)
    stage.host.gained(stage.partition)
    await rest()
    assert (len(stage.kind.loads), stage.host.partitions()) == (1, [])


async def test_every_change_of_what_runs_is_counted() -> None:
    stage = Stage()
    stage.host.gained(stage.partition)
    await rest()
    before = stage.host.changes_count
    await stage.finish(0)
    after = stage.host.changes_count
    stage.host.lost(stage.partition)
    assert before < after < stage.host.changes_count


async def test_machine_is_loaded_once_all_records_of_its_log_are_committed() -> None:
    stage = Stage()
    stage.partition.append(batch(b"a"), now_ms=0)
    waiting = await begun(stage.host.loaded(stage.partition))
    assert not stage.kind.loads
    stage.owner.flush()
    await rest()
    await stage.finish(0)
    assert await waiting is stage.kind.made[0]


async def test_load_of_a_partition_that_another_broker_leads_by_now_says_so() -> None:
    stage = Stage()
    stage.partition.append(batch(b"a"), now_ms=0)
    waiting = await begun(stage.host.loaded(stage.partition))
    stage.partition.assume(Follower(leader=NodeId(2), epoch=LeaderEpoch(EPOCH + 1)))
    with pytest.raises(NotLeader) as refused:
        await waiting
    assert (refused.value.leader, refused.value.leader_epoch) == (2, EPOCH + 1)
    stage.clock.advance(ms=RETRY_MS)
    await rest()
    assert not stage.host.partitions()
    assert not stage.kind.loads


async def test_load_during_which_leadership_is_lost_is_discarded() -> None:
    stage = Stage()
    waiting = await begun(stage.host.loaded(stage.partition))
    stage.partition.assume(Follower(leader=None, epoch=EPOCH))
    stage.host.lost(stage.partition)
    await stage.finish(0)
    with pytest.raises(NotLeader):
        await waiting
    assert stage.kind.made[0].is_stopped
