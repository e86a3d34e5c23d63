"""Flush rounds: every requested flush happens, however busy the threads are."""

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future
from typing import Any

import pytest

from conveyor.broker.partitions.flusher import Flusher
from conveyor.kernel.errors import RequestError, StorageFailure
from conveyor.kernel.ports import File
from conveyor.records.checked_batch import own_batch
from conveyor.replication.partition import Partition
from conveyor.settings.tree import TopicSettings
from tests.unit.broker.parts import BATCH, NOW_MS
from tests.unit.replication.parts import Owner


class HeldThreads(Executor):
    """Runs submitted work when the test permits it."""

    def __init__(self) -> None:
        self.held: list[Callable[[], None]] = []

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> "Future[Any]":
        done: Future[Any] = Future()

        def run() -> None:
            try:
                done.set_result(fn(*args, **kwargs))
            except StorageFailure as failure:
                done.set_exception(failure)

        self.held.append(run)
        return done

    def run_all(self) -> None:
        held, self.held = self.held, []
        for job in held:
            job()


class HeldSyncs:
    """Accepts a limited number of syncs, and ends them when the test permits it."""

    def __init__(self, room: int) -> None:
        self._room = room
        self.held: list[tuple[File, Callable[[StorageFailure | None], None]]] = []

    def begin(self, wanted: Sequence[tuple[File, Callable[[StorageFailure | None], None]]]) -> int:
        taken = wanted[: self._room]
        self.held += taken
        return len(taken)

    def end_all(self) -> None:
        held, self.held = self.held, []
        for file, done in held:
            file.sync()
            done(None)


async def turns(count: int = 5) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


SOFT = TopicSettings(flush_policy="os")


def with_something_to_flush(topic: TopicSettings | None = None) -> Partition:
    partition = Owner(topic).partition
    partition.append(own_batch(BATCH), NOW_MS)
    partition.write()
    return partition


async def test_log_that_is_wanted_while_a_round_ends_is_flushed() -> None:
    """The request comes between the end of a round, which occupies the free thread, and the start requested before."""
    loop, threads = asyncio.get_running_loop(), HeldThreads()
    flusher = Flusher(loop, threads, 1)
    first, second, third = (with_something_to_flush() for _ in range(3))

    def committed(error: RequestError | None) -> None:
        loop.call_soon(flusher.want, third)
        flusher.want(second)

    first.term.when_committed(1, committed)
    flusher.want(first)
    for _ in range(4):
        await turns()
        threads.run_all()
    await asyncio.wait_for(flusher.drain(), 5)
    assert [partition.log.flushes.flushed_offset for partition in (first, second, third)] == [1, 1, 1]


def with_a_plain_flush() -> Partition:
    """A new log's first flush does more than one sync."""
    partition = with_something_to_flush()
    job = partition.begin_flush()
    assert job is not None
    job.run()
    partition.complete_flush(job, None)
    partition.append(own_batch(BATCH), NOW_MS)
    partition.write()
    return partition


async def test_system_takes_what_is_only_to_be_synced() -> None:
    threads, syncs = HeldThreads(), HeldSyncs(room=2)
    flusher = Flusher(asyncio.get_running_loop(), threads, 1)
    flusher.use(syncs)
    new, *others = with_something_to_flush(), with_a_plain_flush(), with_a_plain_flush(), with_a_plain_flush()
    for partition in (new, *others):
        flusher.want(partition)
    await turns()
    assert (len(syncs.held), len(threads.held)) == (2, 1)
    syncs.end_all()
    await turns()
    assert [partition.log.flushes.flushed_offset for partition in (new, *others)] == [0, 2, 2, 1]
    threads.run_all()
    await asyncio.wait_for(flusher.drain(), 5)
    assert [partition.log.flushes.flushed_offset for partition in (new, *others)] == [1, 2, 2, 2]


async def test_what_is_wanted_during_a_sync_is_one_flush_after_it() -> None:
    threads, syncs = HeldThreads(), HeldSyncs(room=2)
    flusher = Flusher(asyncio.get_running_loop(), threads, 1)
    flusher.use(syncs)
    partition = with_a_plain_flush()
    flusher.want(partition)
    await turns()
    for _ in range(3):
        partition.append(own_batch(BATCH), NOW_MS)
        partition.write()
        flusher.want(partition)
        await turns()
    assert (len(syncs.held), len(threads.held)) == (1, 0)
    syncs.end_all()
    await turns()
    assert (partition.log.flushes.flushed_offset, len(syncs.held)) == (2, 1)
    syncs.end_all()
    await asyncio.wait_for(flusher.drain(), 5)
    assert partition.log.flushes.flushed_offset == 5


async def test_sync_that_failed_takes_its_partition_offline() -> None:
    syncs = HeldSyncs(room=1)
    flusher = Flusher(asyncio.get_running_loop(), HeldThreads(), 1)
    flusher.use(syncs)
    partition = with_a_plain_flush()
    flusher.want(partition)
    await turns()
    syncs.held[0][1](StorageFailure("the disk is gone"))
    await asyncio.wait_for(flusher.drain(), 5)
    assert partition.offline.reason is not None


async def test_bug_at_the_end_of_a_flush_is_told_and_holds_up_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    loop, syncs, bugs = asyncio.get_running_loop(), HeldSyncs(room=2), []
    loop.set_exception_handler(lambda _, context: bugs.append(context["exception"]))
    flusher = Flusher(loop, HeldThreads(), 1)
    flusher.use(syncs)
    broken, sound = with_a_plain_flush(), with_a_plain_flush()
    monkeypatch.setattr(broken.log.flushes, "complete", lambda *_: 1 / 0)
    flusher.want(broken)
    flusher.want(sound)
    await turns()
    syncs.end_all()
    await asyncio.wait_for(flusher.drain(), 5)
    assert [type(bug) for bug in bugs] == [ZeroDivisionError]
    assert sound.log.flushes.flushed_offset == 2


async def test_busy_threads_hold_up_no_sync() -> None:
    threads, syncs = HeldThreads(), HeldSyncs(room=2)
    flusher = Flusher(asyncio.get_running_loop(), threads, 1)
    flusher.use(syncs)
    slow, waiting, plain = with_something_to_flush(), with_something_to_flush(), with_a_plain_flush()
    for partition in (slow, waiting, plain):
        flusher.want(partition)
        await turns()
    assert (len(threads.held), len(syncs.held)) == (1, 1)
    syncs.end_all()
    await turns()
    assert plain.log.flushes.flushed_offset == 2
    threads.run_all()
    await turns()
    threads.run_all()
    await asyncio.wait_for(flusher.drain(), 5)
    assert [partition.log.flushes.flushed_offset for partition in (slow, waiting)] == [1, 1]


async def test_flushes_for_which_no_reply_waits_take_one_thread() -> None:
    """Each of them may have a whole segment to write."""
    threads = HeldThreads()
    flusher = Flusher(asyncio.get_running_loop(), threads, 2)
    soft = [with_something_to_flush(SOFT) for _ in range(3)]
    for partition in soft:
        flusher.want(partition)
    await turns()
    assert len(threads.held) == 1
    awaited = with_something_to_flush()
    flusher.want(awaited)
    await turns()
    assert list(flusher.pending) == [awaited]
    first, others = threads.held[0], threads.held[1:]
    threads.held = [first]
    [flush] = others
    flush()
    await turns()
    assert (awaited.log.flushes.flushed_offset, flusher.is_idle) == (1, False)
    for flushed in ([1, 0, 0], [1, 1, 0], [1, 1, 1]):
        assert len(threads.held) == 1
        threads.run_all()
        await turns()
        assert [partition.log.flushes.flushed_offset for partition in soft] == flushed
    await asyncio.wait_for(flusher.drain(), 5)


async def test_one_busy_thread_is_shared_by_all_flushes() -> None:
    threads = HeldThreads()
    flusher = Flusher(asyncio.get_running_loop(), threads, 1)
    partitions = [with_something_to_flush(topic) for topic in (None, SOFT, None, SOFT)]
    for partition in partitions:
        flusher.want(partition)
    for _ in partitions:
        await turns()
        threads.run_all()
    await asyncio.wait_for(flusher.drain(), 5)
    assert [partition.log.flushes.flushed_offset for partition in partitions] == [1, 1, 1, 1]


async def test_log_whose_replies_begin_to_wait_is_flushed_at_once() -> None:
    """Its topic gets `flush.policy=ack` while its flush waits for another one in the background."""
    threads = HeldThreads()
    flusher = Flusher(asyncio.get_running_loop(), threads, 2)
    slow, hardened = with_something_to_flush(SOFT), with_something_to_flush(SOFT)
    for partition in (slow, hardened):
        flusher.want(partition)
    await turns()
    hardened.use(TopicSettings())
    flusher.want(hardened)
    await turns()
    assert len(threads.held) == 2
    threads.run_all()
    await asyncio.wait_for(flusher.drain(), 5)
    assert [partition.log.flushes.flushed_offset for partition in (slow, hardened)] == [1, 1]
