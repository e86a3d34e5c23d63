"""A file that is detached while other threads open and close files keeps its own content.

The tests take the steps of the other threads at the only moments when these can run: around the critical sections, and
while a file is being opened.
"""

import errno
import os
from collections.abc import Callable
from pathlib import Path
from threading import Lock

import pytest

from conveyor.adapters.disk import Descriptor, OpenFiles, RealDisk, RealFile


class InterruptedLock:
    """A lock before whose first acquisition, or after whose first release, another thread takes a step."""

    def __init__(self, *, is_after: bool, step: Callable[[], None]) -> None:
        self.lock = Lock()
        self._is_after = is_after
        self._steps = [step]

    def __enter__(self) -> None:
        if not self._is_after:
            self._take_step()
        self.lock.acquire()

    def __exit__(self, *_: object) -> None:
        self.lock.release()
        if self._is_after:
            self._take_step()

    def _take_step(self) -> None:
        while self._steps:
            self._steps.pop()()


def idle_file(disk: RealDisk) -> RealFile:
    file = disk.open("a", create=True)
    file.append([b"old"])
    file.sync()
    return file


def replace_detached(disk: RealDisk, file: RealFile) -> None:
    """Detach a file and give its name to another one, as a compaction does."""
    file.detach()
    disk.write_atomic("a", b"new")


def open_above_the_limit(disk: RealDisk, _monkeypatch: pytest.MonkeyPatch) -> RealFile:
    return disk.open("b", create=True)


def open_without_a_free_descriptor(disk: RealDisk, monkeypatch: pytest.MonkeyPatch) -> RealFile:
    plain_open, failures = os.open, [OSError(errno.EMFILE, os.strerror(errno.EMFILE))]

    def failing_once(path: Path, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        if failures:
            raise failures.pop()
        return plain_open(path, flags, mode, dir_fd=dir_fd)

    monkeypatch.setattr(os, "open", failing_once)
    return disk.open("b", create=True)


@pytest.mark.parametrize("is_after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("open_another", [open_above_the_limit, open_without_a_free_descriptor])
def test_file_that_is_detached_while_another_is_opened_keeps_its_content(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    open_another: Callable[[RealDisk, pytest.MonkeyPatch], RealFile],
    is_after: bool,
) -> None:
    disk = RealDisk(tmp_path, max_open_files=1)
    file = idle_file(disk)
    lock = InterruptedLock(is_after=is_after, step=lambda: replace_detached(disk, file))
    monkeypatch.setattr(disk._open_files, "_lock", lock)
    another = open_another(disk, monkeypatch)
    assert disk.read("a") == b"new"
    assert (file.read(0, 10), another.read(0, 10)) == (b"old", b"")


@pytest.mark.parametrize("is_detached_first", [True, False])
def test_file_that_is_detached_while_a_reader_opens_it_keeps_its_content(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_detached_first: bool
) -> None:
    disk = RealDisk(tmp_path, max_open_files=1)
    file = idle_file(disk)
    file.close()
    descriptor = OpenFiles.descriptor

    def interrupted(self: OpenFiles, path: Path, flags: int, dir_fd: int | None = None) -> Descriptor:
        monkeypatch.setattr(OpenFiles, "descriptor", descriptor)
        if is_detached_first:
            replace_detached(disk, file)
        opened = descriptor(self, path, flags, dir_fd)
        if not is_detached_first:
            replace_detached(disk, file)
        return opened

    monkeypatch.setattr(OpenFiles, "descriptor", interrupted)
    assert file.read(0, 10) == b"old"
    assert disk.open("b", create=True).read(0, 10) == b""
    assert file.read(0, 10) == b"old"


def test_no_thread_waits_while_a_descriptor_is_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The close of a removed file may take long."""
    disk = RealDisk(tmp_path, max_open_files=1)
    lock, plain_close = disk._open_files._lock, os.close
    has_waiting: list[bool] = []

    def noted_close(number: int) -> None:
        has_waiting.append(lock.locked())
        plain_close(number)

    monkeypatch.setattr(os, "close", noted_close)
    file = idle_file(disk)
    open_above_the_limit(disk, monkeypatch)
    file.detach()
    file.close()
    assert has_waiting == [False] * 3, "each lost its descriptor to the other before the close"
    idle = idle_file(disk)
    open_without_a_free_descriptor(disk, monkeypatch)
    assert (idle.descriptor, has_waiting) == (None, [False] * 4)
