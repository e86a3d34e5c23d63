"""Flushes that do not end, as seen by checks one second apart."""

import asyncio

from conveyor.broker.partitions.flusher import Flusher
from conveyor.broker.replicas.flush_stalls import CHECK_MS, FlushStalls
from conveyor.records.checked_batch import own_batch
from conveyor.testing import ManualClock
from tests.unit.broker.partitions.test_flusher import SOFT, HeldThreads, turns, with_something_to_flush
from tests.unit.broker.parts import BATCH, NOW_MS


def checked(stalls: FlushStalls, clock: ManualClock, count: int = 1) -> int:
    for _ in range(count):
        clock.advance(ms=CHECK_MS)
        stalled_ms = stalls.longest_ms()
    return stalled_ms


async def test_a_flush_in_progress_and_one_that_waits_for_a_thread_are_seen() -> None:
    clock, threads = ManualClock(), HeldThreads()
    flusher = Flusher(asyncio.get_running_loop(), threads, 1)
    stalls = FlushStalls(flusher, clock)
    assert checked(stalls, clock) == 0
    flusher.want(with_something_to_flush())
    await turns()
    assert checked(stalls, clock, 4) == 3 * CHECK_MS
    flusher.want(with_something_to_flush())
    await turns()
    threads.run_all()
    await turns()
    assert checked(stalls, clock, 4) == 3 * CHECK_MS
    threads.run_all()
    await flusher.drain()
    assert checked(stalls, clock) == 0


async def test_flushes_that_follow_each_other_are_not_stalled() -> None:
    clock, threads = ManualClock(), HeldThreads()
    flusher = Flusher(asyncio.get_running_loop(), threads, 1)
    stalls, partition = FlushStalls(flusher, clock), with_something_to_flush()
    for _ in range(5):
        flusher.want(partition)
        await turns()
        assert checked(stalls, clock) == 0
        threads.run_all()
        await turns()
        partition.append(own_batch(BATCH), NOW_MS)
        partition.write()
    flusher.want(partition)
    await turns()
    threads.run_all()
    await flusher.drain()


async def test_a_pause_of_the_process_counts_as_two_checks() -> None:
    clock, threads = ManualClock(), HeldThreads()
    flusher = Flusher(asyncio.get_running_loop(), threads, 1)
    stalls = FlushStalls(flusher, clock)
    flusher.want(with_something_to_flush())
    await turns()
    assert checked(stalls, clock) == 0
    clock.advance(seconds=60)
    assert stalls.longest_ms() == 2 * CHECK_MS
    threads.run_all()
    await flusher.drain()


async def test_a_flush_for_which_no_reply_waits_may_take_its_time() -> None:
    clock, threads = ManualClock(), HeldThreads()
    flusher = Flusher(asyncio.get_running_loop(), threads, 1)
    stalls, partition = FlushStalls(flusher, clock), with_something_to_flush(SOFT)
    flusher.want(partition)
    await turns()
    assert checked(stalls, clock, 20) == 0
    threads.run_all()
    await flusher.drain()
    assert partition.log.flushes.flushed_offset == 1
