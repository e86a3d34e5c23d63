"""The end of a tick: all writes and outputs run, even if one of them raises an exception."""

import asyncio
from collections.abc import Callable
from typing import cast

import pytest

from conveyor.broker.partitions.loop_tick import LoopTick
from conveyor.records.checked_batch import own_batch
from conveyor.replication.partition import Partition
from tests.unit.broker.parts import BATCH, NOW_MS
from tests.unit.replication.parts import Owner


class Loop:
    """Runs callbacks when the test permits it, and stores reported bugs."""

    def __init__(self) -> None:
        self.soon: list[Callable[[], None]] = []
        self.bugs: list[BaseException] = []
        self.loop_tick = LoopTick(cast("asyncio.AbstractEventLoop", self), self.bugs.append)

    def call_soon(self, callback: Callable[[], None]) -> None:
        self.soon.append(callback)

    def run_tick(self) -> None:
        soon, self.soon[:] = list(self.soon), []
        for callback in soon:
            callback()


@pytest.fixture
def loop() -> Loop:
    return Loop()


def raising(*_: object) -> None:
    raise AssertionError("a bug")


def partition_with_batch() -> tuple[Partition, list[object]]:
    """A partition with a batch, and the results that the batch's waiter receives."""
    partition, results = Owner().partition, list[object]()
    partition.append(own_batch(BATCH), NOW_MS)
    partition.term.when_written(1, results.append)
    return partition, results


def test_a_bug_in_one_write_loses_no_other_write_and_no_answer(loop: Loop, monkeypatch: pytest.MonkeyPatch) -> None:
    (broken, _), (sound, results) = partition_with_batch(), partition_with_batch()
    monkeypatch.setattr(broken, "write", raising)
    answered: list[str] = []
    loop.loop_tick.add_output(lambda: answered.append("answer"))
    loop.loop_tick.add_write(broken)
    loop.loop_tick.add_write(sound)
    loop.run_tick()
    assert (results, answered, [str(bug) for bug in loop.bugs]) == ([None], ["answer"], ["a bug"])


def test_a_bug_in_one_waiter_loses_no_other_partition_its_waiters(loop: Loop) -> None:
    (broken, _), (sound, results) = partition_with_batch(), partition_with_batch()
    broken.term.when_written(1, raising)
    for partition in (broken, sound):
        loop.loop_tick.add_write(partition)
    loop.run_tick()
    assert (results, len(loop.bugs)) == ([None], 1)


def test_a_bug_in_one_output_loses_no_other_output(loop: Loop) -> None:
    answered: list[str] = []
    loop.loop_tick.add_output(raising)
    loop.loop_tick.add_output(lambda: answered.append("answer"))
    loop.run_tick()
    assert (answered, len(loop.bugs)) == (["answer"], 1)


def test_turns_go_on_after_a_bug(loop: Loop) -> None:
    loop.loop_tick.add_output(raising)
    loop.run_tick()
    sound, results = partition_with_batch()
    loop.loop_tick.add_write(sound)
    loop.run_tick()
    assert results == [None]


async def test_a_task_that_is_cancelled_while_it_waits_for_the_end_is_no_bug(loop: Loop) -> None:
    waiting = asyncio.ensure_future(loop.loop_tick.end())
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.wait([waiting])
    loop.run_tick()
    assert loop.bugs == []
