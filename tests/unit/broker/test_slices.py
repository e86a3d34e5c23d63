"""One slice runs in each turn of the event loop, in the order in which the slices were asked for."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from threading import get_ident

from conveyor.broker.slices import Slices
from conveyor.broker.tasks import Tasks


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
