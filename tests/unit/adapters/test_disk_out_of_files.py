"""The real disk where the process may open no more files: idle ones make room, and what fails may be tried again."""

import contextlib
import gc
import os
import resource
from collections.abc import Iterator
from pathlib import Path

import pytest

from conveyor.adapters.disk import RealDisk
from conveyor.kernel.errors import OutOfFiles


@contextlib.contextmanager
def no_more_files() -> Iterator[None]:
    """Let this process open none beyond those that it has open."""
    gc.collect()
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = max(int(each.name) for each in Path("/dev/fd").iterdir())
    resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 1, limits[1]))
    taken = []
    with contextlib.suppress(OSError):
        while True:
            taken.append(os.dup(0))
    try:
        yield
    finally:
        for each in taken:
            os.close(each)
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def test_idle_files_make_room(tmp_path: Path) -> None:
    disk = RealDisk(tmp_path, max_open_files=100)
    idle, wanted = disk.open("idle", create=True), disk.open("wanted", create=True)
    wanted.append([b"here"])
    wanted.sync()
    wanted.close()
    with no_more_files():
        assert wanted.read(0, 4) == b"here"
    idle.append([b"opened again"])
    assert idle.size == 12


def test_file_that_cannot_be_opened_now_can_be_later(tmp_path: Path) -> None:
    disk = RealDisk(tmp_path, max_open_files=100)
    wanted = disk.open("wanted", create=True)
    wanted.close()
    with no_more_files(), pytest.raises(OutOfFiles, match="wanted: Too many open files"):
        wanted.read(0, 1)
    assert wanted.read(0, 1) == b""


def test_file_with_unflushed_writes_makes_no_room(tmp_path: Path) -> None:
    """Its descriptor is what will tell that the flush has failed."""
    disk = RealDisk(tmp_path, max_open_files=100)
    dirty = disk.open("dirty", create=True)
    dirty.append([b"x"])
    with no_more_files(), pytest.raises(OutOfFiles):
        disk.open("another", create=True)
    dirty.sync()
