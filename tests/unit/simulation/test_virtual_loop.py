"""The processes of the loop with virtual time: killed ones stop, paused ones continue where they were."""

import asyncio
from random import Random

from simulation.simulated_threads import SimulatedThreads
from simulation.virtual_loop import Process, VirtualLoop


def test_a_paused_process_runs_its_due_callbacks_in_order_when_it_continues() -> None:
    loop, process = VirtualLoop(), Process("broker")
    ran: list[tuple[int, float]] = []
    for delay_s in (3, 1, 2, 9):
        loop.call_later(delay_s, lambda due_s: ran.append((due_s, loop.time())), delay_s, context=process.context)

    process.pause()
    loop.call_later(5, process.resume)
    loop.run_until_complete(asyncio.sleep(10))
    loop.end()

    assert ran == [(1, 5), (2, 5), (3, 5), (9, 9)]


def test_a_callback_that_is_cancelled_during_a_pause_does_not_run() -> None:
    loop, process = VirtualLoop(), Process("broker")
    ran: list[str] = []
    process.pause()
    timer = loop.call_later(1, lambda: ran.append("timer"), context=process.context)

    loop.run_until_complete(asyncio.sleep(2))
    timer.cancel()
    process.resume()
    loop.run_until_complete(asyncio.sleep(2))
    loop.end()

    assert ran == []


def test_a_process_that_is_killed_during_a_pause_never_continues() -> None:
    loop, process = VirtualLoop(), Process("broker")
    ran: list[str] = []
    process.pause()
    loop.call_soon(lambda: ran.append("callback"), context=process.context)

    loop.run_until_complete(asyncio.sleep(1))
    process.kill()
    process.resume()
    loop.run_until_complete(asyncio.sleep(1))
    loop.end()

    assert ran == []


def test_held_jobs_of_threads_end_with_their_process() -> None:
    loop, process = VirtualLoop(), Process("broker")
    ran: list[str] = []
    threads = process.context.run(SimulatedThreads, loop, Random(0))
    threads.hang()
    process.context.run(threads.submit, ran.append, "job")
    loop.run_until_complete(asyncio.sleep(1))

    process.kill()
    threads.go_on()
    loop.run_until_complete(asyncio.sleep(1))
    loop.end()

    assert ran == []
