"""The kernel's queue of syncs, on real files."""

import asyncio
import errno
import logging
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from conveyor.adapters.disk import RealDisk, RealFile
from conveyor.kernel.errors import StorageFailure

pytest.importorskip("caio", reason="there is no such queue but on Linux")

from conveyor.adapters.kernel_syncs import KernelSyncs, error_number


@pytest.fixture
async def syncs() -> AsyncIterator[KernelSyncs]:
    opened = KernelSyncs(asyncio.get_running_loop())
    yield opened
    opened.close()


class Ends:
    """How syncs have ended, in their order."""

    def __init__(self, count: int) -> None:
        self._left = count
        self._all = asyncio.get_running_loop().create_future()
        self.failures: list[StorageFailure | None] = []

    def note(self, failure: StorageFailure | None) -> None:
        self.failures.append(failure)
        self._left -= 1
        if not self._left:
            self._all.set_result(None)

    async def wait(self) -> None:
        await self._all


def written(disk: RealDisk, name: str) -> RealFile:
    file = disk.open(name, create=True)
    file.append([b"something"])
    return file


async def test_syncs_end_on_the_loop(tmp_path: Path, syncs: KernelSyncs) -> None:
    disk, ends = RealDisk(tmp_path, 1000), Ends(100)
    files = [written(disk, f"{number}.log") for number in range(100)]
    assert syncs.begin([(each, ends.note) for each in files]) == 100
    assert ends.failures == []
    await ends.wait()
    assert ends.failures == [None] * 100
    assert all(each.evictable for each in files)


async def test_file_that_has_grown_meanwhile_keeps_its_descriptor(tmp_path: Path, syncs: KernelSyncs) -> None:
    file, ends = written(RealDisk(tmp_path, 1000), "a.log"), Ends(1)
    syncs.begin([(file, ends.note)])
    file.append([b"more"])
    await ends.wait()
    assert not file.evictable


async def test_file_that_cannot_be_synced_is_not_taken(tmp_path: Path, syncs: KernelSyncs) -> None:
    """Nor what comes after it: a thread finds out what is wrong."""
    disk, ends = RealDisk(tmp_path, 1000), Ends(1)
    good, bad, last = (written(disk, name) for name in ("good.log", "bad.log", "last.log"))
    reading, writing = os.pipe()
    os.dup2(writing, bad.begin_sync()[0].number)
    assert syncs.begin([(each, ends.note) for each in (good, bad, last)]) == 1
    await ends.wait()
    with pytest.raises(StorageFailure, match=r"bad\.log"):
        bad.sync()
    for each in (reading, writing):
        os.close(each)


def test_failure_names_the_file(tmp_path: Path) -> None:
    file = written(RealDisk(tmp_path, 1000), "a.log")
    _, mark = file.begin_sync()
    with pytest.raises(StorageFailure, match=r"a\.log: Input/output error"):
        file.end_sync(mark, errno.EIO)
    assert not file.evictable


def test_error_numbers_come_out_of_unsigned_results() -> None:
    assert [error_number(each) for each in (0, 2**64 - errno.EIO)] == [0, errno.EIO]


class UnreadableQueue:
    """The kernel's queue of syncs, from which no event can be read."""

    def __init__(self, context: Any) -> None:
        self.fileno = context.fileno
        self._context = context

    def submit(self, *operations: Any) -> int:
        taken: int = self._context.submit(*operations)
        return taken

    def poll(self) -> int:
        count: int = self._context.poll()
        return count

    def process_events(self, _: int) -> int:
        raise SystemError(errno.EINVAL, os.strerror(errno.EINVAL))


async def test_queue_that_cannot_be_read_fails_its_syncs(
    tmp_path: Path, syncs: KernelSyncs, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A repeated sync would succeed although an error of the first one was lost. What comes is not taken."""
    disk, ends = RealDisk(tmp_path, 1000), Ends(10)
    monkeypatch.setattr(syncs, "_context", UnreadableQueue(syncs._context))
    files = [written(disk, f"{number}.log") for number in range(10)]
    assert syncs.begin([(each, ends.note) for each in files]) == 10
    with caplog.at_level(logging.ERROR):
        await ends.wait()
    assert ["the result of a sync is lost" in str(failure) for failure in ends.failures] == [True] * 10
    assert not any(each.evictable for each in files)
    assert syncs.begin([(written(disk, "more.log"), ends.note)]) == 0
    [line] = caplog.records
    assert line.message.startswith("the kernel's sync queue cannot be read")
