"""One slice runs in each turn of the event loop, in the order in which the slices were asked for. In the same turn, the
machines share a number of items.
"""

import asyncio
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from threading import get_ident
from unittest.mock import Mock

import pytest

from conveyor.broker import slices as slices_module
from conveyor.broker.slices import SLICE_ASKS, Slices
from conveyor.broker.tasks import Tasks
from conveyor.kernel.errors import ErrorKind, RequestError, StorageFailure


async def slices_of(bugs: list[BaseException]) -> Slices:
    return Slices(ThreadPoolExecutor(2), Tasks(bugs.append))


async def test_each_turn_runs_one_slice_however_many_wait() -> None:
    slices, done = await slices_of([]), list[str]()
    for name in ("a", "b", "c"):
        slices.later(partial(done.append, name))
    assert done == []
    for count in (1, 2, 3, 3):
        await asyncio.sleep(0)
        assert done == ["a", "b", "c"][:count]


async def test_work_that_goes_on_lets_others_go_first() -> None:
    slices, done = await slices_of([]), list[str]()

    def long(left: int) -> None:
        done.append("long")
        if left:
            slices.later(lambda: long(left - 1))

    slices.later(lambda: long(2))
    slices.later(lambda: done.append("short"))
    await slices.turn()
    assert done == ["long", "short"]
    await slices.turn()
    assert done == ["long", "short", "long"]


async def test_bug_in_a_slice_is_reported_and_the_others_run() -> None:
    bugs, done = list[BaseException](), list[str]()
    slices = await slices_of(bugs)
    slices.later(lambda: done.remove("nothing"))
    slices.later(lambda: done.append("other"))
    await slices.turn()
    assert done == ["other"]
    assert len(bugs) == 1


async def test_long_work_is_done_in_a_thread() -> None:
    slices = await slices_of([])
    first, second = await asyncio.gather(slices.in_thread(get_ident), slices.in_thread(get_ident))
    assert get_ident() not in (first, second)


async def test_time_of_a_thread_is_counted() -> None:
    slices, meter = await slices_of([]), Mock()
    assert await slices.in_thread(lambda: sum(range(100_000)), meter) == 4_999_950_000
    with pytest.raises(StorageFailure):
        await slices.in_thread(fail_slowly, meter)
    assert all(counted.args[0] > 0 for counted in meter.worked.call_args_list)
    assert meter.worked.call_count == 2


def fail_slowly() -> None:
    raise StorageFailure(str(sum(range(100_000))))


class Machine:
    """Has parts of work to do, of some items each."""

    def __init__(self, name: str, slices: Slices, done: list[str], parts: int = 1, items: int = 10) -> None:
        self.name = name
        self.work_count = 0
        self.then: Callable[[], None] = lambda: None
        self._slices = slices
        self._done = done
        self._parts = parts
        self._items = items

    def ask(self) -> None:
        self._slices.soon(self.work, self)

    def work(self) -> None:
        self._done.append(self.name)
        self.work_count += self._items
        self._parts -= 1
        if self._parts > 0:
            self.ask()
        self.then()


@pytest.fixture(autouse=True)
def small_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slices_module, "TURN_ITEMS", 30)
    monkeypatch.setattr(slices_module, "_LEAST_ITEMS", 1)


async def turns(slices: Slices, done: list[str]) -> list[str]:
    """Return the parts of work that are done in each turn, until none is done."""
    found = ["".join(done)]
    while found[-1]:
        before = len(done)
        await asyncio.sleep(0)
        found.append("".join(done[before:]))
    return found[:-1]


async def test_machine_that_works_alone_works_at_once() -> None:
    slices, done = await slices_of([]), list[str]()
    for _ in range(20):
        machine = Machine("a", slices, done)
        machine.ask()
        assert done == ["a"]
        await asyncio.sleep(0)
        done.clear()


async def test_machines_of_all_partitions_share_the_items_of_a_turn_in_order() -> None:
    slices, done = await slices_of([]), list[str]()
    for name in "abcdefgh":
        Machine(name, slices, done).ask()
    assert await turns(slices, done) == ["abc", "def", "gh"]


async def test_machine_with_much_work_lets_the_others_work_between_its_parts() -> None:
    slices, done = await slices_of([]), list[str]()
    for name, parts in (("a", 6), ("b", 1), ("c", 3)):
        Machine(name, slices, done, parts).ask()
    assert await turns(slices, done) == ["aaa", "abc", "aca", "c"]


async def test_part_that_exceeds_a_turn_ends_it() -> None:
    slices, done = await slices_of([]), list[str]()
    Machine("a", slices, done, items=1_000).ask()
    Machine("b", slices, done).ask()
    assert await turns(slices, done) == ["a", "b"]


async def test_work_without_items_fills_a_turn_all_the_same() -> None:
    slices, done = await slices_of([]), list[str]()
    Machine("a", slices, done, parts=70, items=0).ask()
    assert list(map(len, await turns(slices, done))) == [30, 30, 10]


async def test_work_that_waits_keeps_its_place_and_is_done_once() -> None:
    slices, done = await slices_of([]), list[str]()
    Machine("a", slices, done, items=30).ask()
    first, second = Machine("b", slices, done, items=20), Machine("c", slices, done, items=20)
    for machine in (first, second, first, second):
        machine.ask()
    assert await turns(slices, done) == ["a", "bc"]


async def test_work_that_is_forgotten_is_not_done_and_not_kept() -> None:
    slices, done = await slices_of([]), list[str]()
    machines = [Machine(name, slices, done, items=30) for name in "abc"]
    for machine in machines:
        machine.ask()
    slices.forget(machines[1].work)
    slices.forget(machines[0].work)
    assert await turns(slices, done) == ["a", "c"]


async def test_work_that_work_causes_waits_until_that_is_done() -> None:
    slices, done = await slices_of([]), list[str]()
    first, second = Machine("a", slices, done), Machine("b", slices, done)
    seen: list[list[str]] = []

    def ask_second() -> None:
        second.ask()
        seen.append(done.copy())

    first.then = ask_second
    first.ask()
    assert (seen, done) == ([["a"]], ["a", "b"])


async def test_bug_in_the_work_of_a_machine_is_reported_and_the_others_work() -> None:
    bugs, done = list[BaseException](), list[str]()
    slices = await slices_of(bugs)
    broken = Machine("a", slices, done)
    broken.then = lambda: done.remove("nothing")
    broken.ask()
    Machine("b", slices, done).ask()
    assert (done, len(bugs)) == (["a", "b"], 1)


async def test_long_requests_and_machines_do_not_wait_for_each_other() -> None:
    slices, done = await slices_of([]), list[str]()
    for name in "123":
        slices.later(partial(done.append, name))
    for name in "ab":
        Machine(name, slices, done, parts=4).ask()
    assert await turns(slices, done) == ["aaa", "1abb", "2bb", "3"]


async def test_logs_are_read_off_the_loop_and_the_failure_comes_back() -> None:
    slices = await slices_of([])
    results: asyncio.Queue[int | StorageFailure] = asyncio.Queue()

    def fail() -> int:
        raise failure

    failure = StorageFailure("the disk is gone")
    slices.off_loop(get_ident, results.put_nowait)
    assert await results.get() != get_ident()
    slices.off_loop(fail, results.put_nowait)
    assert await results.get() is failure


async def test_many_are_asked_in_portions_and_answer_in_their_order() -> None:
    """All portions begin, in one turn each, also after an error and before the answers of the earlier ones."""
    slices, turn, turns = await slices_of([]), 0, list[int]()
    answers: dict[int, asyncio.Future[int]] = {number: asyncio.Future() for number in range(3 * SLICE_ASKS - 1)}

    def next_turn() -> None:
        nonlocal turn
        turn += 1
        if len(turns) < len(answers):
            asyncio.get_running_loop().call_soon(next_turn)

    async def ask(number: int) -> int:
        turns.append(turn)
        return await answers[number]

    next_turn()
    asked = asyncio.ensure_future(slices.ask_each(ask, list(answers)))
    while len(turns) < len(answers):
        await slices.turn()
    assert sorted(Counter(turns).values()) == [SLICE_ASKS - 1, SLICE_ASKS, SLICE_ASKS]
    for number in reversed(answers):
        answers[number].set_result(-number)
    assert await asked == [-number for number in answers]


async def test_the_first_error_of_many_is_raised_once_all_are_asked() -> None:
    slices, asked = await slices_of([]), list[int]()

    async def ask(number: int) -> int:
        asked.append(number)
        if number == 0:
            raise RequestError(ErrorKind.PARTITION_OFFLINE, "gone")
        return number

    with pytest.raises(RequestError, match="gone"):
        await slices.ask_each(ask, range(2 * SLICE_ASKS))
    for _ in range(3):
        await slices.turn()
    assert asked == list(range(2 * SLICE_ASKS))
