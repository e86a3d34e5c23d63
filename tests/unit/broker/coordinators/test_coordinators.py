"""Coordinators: a machine is loaded once, runs while its partition is led, and is loaded again when
required.
"""

import asyncio
from collections.abc import Coroutine
from typing import TypeVar, cast

import pytest

from conveyor.broker.coordinators.coordinators import MARKER_PATIENCE_MS, Coordinators
from conveyor.broker.coordinators.hosted_machine import HostedMachine
from conveyor.broker.partitions.partition_table import PartitionTable
from conveyor.broker.tasks import Tasks
from conveyor.kernel.errors import ErrorKind, NotLeader, RequestError
from conveyor.kernel.ids import LeaderEpoch, NodeId
from conveyor.replication.partition import Partition
from conveyor.replication.roles import Follower
from conveyor.testing import ManualClock
from tests.unit.broker.room_services import room_services
from tests.unit.replication.parts import EPOCH, IDENTITY, Owner, batch
from tests.unit.replication.test_machine_runner import Counter

Result = TypeVar("Result")
RETRY_MS = 1_000


class Runner(HostedMachine):
    """The runner of a machine that decides nothing."""

    def __init__(self, partition: Partition, clock: ManualClock) -> None:
        super().__init__(partition, Counter(), clock)


class Machines(Coordinators[Runner]):
    """Loads a machine when the test permits it."""

    name = "machine"

    def __init__(self, clock: ManualClock, tasks: Tasks, retry_ms: int | None) -> None:
        super().__init__(room_services(clock, tasks), cast("PartitionTable", None))
        self.retry_ms = retry_ms  # type: ignore[misc]
        self.loads: list[asyncio.Future[None]] = []
        self.made: list[Runner] = []
        self.begun: list[Runner] = []
        self.may_go_on = False
        self._clock = clock

    async def load(self, partition: Partition) -> Runner:
        self.loads.append(asyncio.get_running_loop().create_future())
        await self.loads[-1]
        self.made.append(Runner(partition, self._clock))
        return self.made[-1]

    async def begin(self, runner: Runner) -> None:
        self.begun.append(runner)

    def try_continue(self, runner: Runner, partition: Partition) -> bool:
        return super().try_continue(runner, partition) or self.may_go_on


class Stage:
    """Coordinators, and the partition whose machine they load."""

    def __init__(self, retry_ms: int | None = RETRY_MS) -> None:
        self.clock = ManualClock()
        self.owner = Owner()
        self.partition = self.owner.partition
        self.bugs: list[BaseException] = []
        self.machines = Machines(self.clock, Tasks(self.bugs.append), retry_ms)

    async def finish(self, number: int, error: RequestError | None = None) -> None:
        """End a load, and run its callbacks."""
        if error is None:
            self.machines.loads[number].set_result(None)
        else:
            self.machines.loads[number].set_exception(error)
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
    first, second = (
        await begun(stage.machines.loaded(stage.partition)),
        await begun(stage.machines.loaded(stage.partition)),
    )
    assert (len(stage.machines.loads), stage.machines.find(IDENTITY)) == (1, None)
    await stage.finish(0)
    assert await first is await second is stage.machines.find(IDENTITY)
    assert stage.machines.list() == stage.machines.made
    assert await stage.machines.loaded(stage.partition) is stage.machines.made[0]


@pytest.mark.parametrize("patience", [(), (MARKER_PATIENCE_MS,)])
async def test_nobody_waits_for_ever(patience: tuple[int, ...]) -> None:
    stage = Stage()
    waiting = await begun(stage.machines.loaded(stage.partition, *patience))
    stage.clock.advance(ms=sum(patience) or 30_000)
    with pytest.raises(RequestError, match="t-0 is being read") as refused:
        await waiting
    assert refused.value.kind is ErrorKind.COORDINATOR_LOADING
    await stage.finish(0)
    assert stage.machines.find(IDENTITY) is stage.machines.made[0]


async def test_partition_that_is_gained_twice_at_once_is_read_once() -> None:
    stage = Stage()
    stage.machines.gained(stage.partition)
    stage.machines.gained(stage.partition)
    await rest()
    assert len(stage.machines.loads) == 1


async def test_failure_is_told_to_those_who_wait_and_the_next_who_asks_tries_again() -> None:
    stage = Stage(retry_ms=None)
    waiting = await begun(stage.machines.loaded(stage.partition))
    await stage.finish(0, refusal("the disk is gone"))
    with pytest.raises(RequestError, match="the disk is gone"):
        await waiting
    stage.clock.advance(seconds=1000)
    again = await begun(stage.machines.loaded(stage.partition))
    await stage.finish(1)
    assert (await again, stage.machines.failure(IDENTITY)) == (stage.machines.made[0], None)


async def test_host_that_retries_loads_again_after_pauses_that_double() -> None:
    stage = Stage()
    stage.machines.gained(stage.partition)
    await rest()
    for number, pause_ms in enumerate((RETRY_MS, 2 * RETRY_MS)):
        await stage.finish(number, refusal("not now"))
        failure = stage.machines.failure(IDENTITY)
        assert failure is not None
        assert failure.message == "not now"
        stage.clock.advance(ms=pause_ms - 1)
        await rest()
        assert len(stage.machines.loads) == number + 1
        stage.clock.advance(ms=1)
        await rest()
        assert len(stage.machines.loads) == number + 2
    await stage.finish(2)
    assert stage.machines.find(IDENTITY) is stage.machines.made[0]


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
async def test_load_that_is_overtaken_begins_no_machine(order: tuple[int, int]) -> None:
    stage = Stage()
    waiting = await begun(stage.machines.loaded(stage.partition))
    stage.machines.gained(stage.partition)
    await rest()
    for number in order:
        await stage.finish(number)
    assert [await waiting] == stage.machines.begun
    assert [machine.is_stopped for machine in stage.machines.made if machine not in stage.machines.begun] == [True]
    assert not stage.machines.begun[0].is_stopped


async def test_load_that_is_overtaken_is_thrown_away() -> None:
    stage = Stage()
    waiting = await begun(stage.machines.loaded(stage.partition))
    stage.machines.gained(stage.partition)
    await rest()
    await stage.finish(0)
    assert stage.machines.made[0].is_stopped
    assert not waiting.done()
    await stage.finish(1)
    assert await waiting is stage.machines.made[1]


@pytest.mark.parametrize("may_go_on", [False, True])
async def test_partition_that_was_opened_again_has_its_machine_loaded_unless_that_goes_on(may_go_on: bool) -> None:
    stage = Stage()
    stage.machines.gained(stage.partition)
    await rest()
    await stage.finish(0)
    reopened = Owner().partition
    stage.machines.may_go_on = may_go_on
    stage.machines.gained(reopened)
    await rest()
    assert stage.machines.made[0].is_stopped is not may_go_on
    assert len(stage.machines.loads) == (1 if may_go_on else 2)
    assert (stage.machines.has(stage.partition), stage.machines.has(reopened)) == (False, True)


async def test_lost_partition_has_its_machine_stopped_and_nobody_waits_for_it() -> None:
    stage = Stage()
    waiting = await begun(stage.machines.loaded(stage.partition))
    stage.machines.lost(stage.partition)
    with pytest.raises(RequestError, match="is being closed"):
        await waiting
    await stage.finish(0)
    assert stage.machines.made[0].is_stopped
    assert stage.machines.partitions() == []


async def test_partition_that_has_taken_the_place_is_not_lost_with_the_one_before() -> None:
    stage = Stage()
    reopened = Owner().partition
    stage.machines.gained(stage.partition)
    stage.machines.gained(reopened)
    stage.machines.lost(stage.partition)
    assert stage.machines.partitions() == [reopened]


async def test_machine_that_cannot_go_on_is_loaded_anew_after_a_pause() -> None:
    stage = Stage()
    stage.machines.gained(stage.partition)
    await rest()
    await stage.finish(0)
    stage.machines.failed(stage.partition, refusal("too many files are open"))
    assert stage.machines.made[0].is_stopped
    stage.clock.advance(ms=RETRY_MS)
    await rest()
    await stage.finish(1)
    assert stage.machines.find(IDENTITY) is stage.machines.made[1]


async def test_host_that_was_stopped_loads_nothing_any_more() -> None:
    stage = Stage()
    stage.machines.gained(stage.partition)
    await rest()
    await stage.finish(0)
    stage.machines.stop()
    assert stage.machines.made[0].is_stopped
    with pytest.raises(RequestError, match="is being closed"):
        await stage.machines.loaded(stage.partition)
    stage.machines.gained(stage.partition)
    await rest()
    assert (len(stage.machines.loads), stage.machines.partitions()) == (1, [])


async def test_every_change_of_what_runs_is_counted() -> None:
    stage = Stage()
    stage.machines.gained(stage.partition)
    await rest()
    before = stage.machines.changes_count
    await stage.finish(0)
    after = stage.machines.changes_count
    stage.machines.lost(stage.partition)
    assert before < after < stage.machines.changes_count


async def test_machine_is_loaded_once_all_records_of_its_log_are_committed() -> None:
    stage = Stage()
    stage.partition.append(batch(b"a"), now_ms=0)
    waiting = await begun(stage.machines.loaded(stage.partition))
    assert not stage.machines.loads
    stage.owner.flush()
    await rest()
    await stage.finish(0)
    assert await waiting is stage.machines.made[0]


async def test_load_of_a_partition_that_another_broker_leads_by_now_says_so() -> None:
    stage = Stage()
    stage.partition.append(batch(b"a"), now_ms=0)
    waiting = await begun(stage.machines.loaded(stage.partition))
    stage.partition.assume(Follower(leader=NodeId(2), epoch=LeaderEpoch(EPOCH + 1)))
    with pytest.raises(NotLeader) as refused:
        await waiting
    assert (refused.value.leader, refused.value.leader_epoch) == (2, EPOCH + 1)
    stage.clock.advance(ms=RETRY_MS)
    await rest()
    assert not stage.machines.partitions()
    assert not stage.machines.loads


async def test_load_during_which_leadership_is_lost_is_discarded() -> None:
    stage = Stage()
    waiting = await begun(stage.machines.loaded(stage.partition))
    stage.partition.assume(Follower(leader=None, epoch=EPOCH))
    stage.machines.lost(stage.partition)
    await stage.finish(0)
    with pytest.raises(NotLeader):
        await waiting
    assert stage.machines.made[0].is_stopped
