"""A directory that is held: what is done through it happens there, whatever its name was given to."""

from pathlib import Path

import pytest

from conveyor.adapters.disk import RealDisk
from conveyor.kernel.errors import StorageFailure
from conveyor.kernel.ports import Directory, Disk
from conveyor.testing import MemoryDisk

OLD, NEW = "logs/t-0.deleted", "logs/t-0"


@pytest.fixture(params=["real", "memory"])
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> Disk:
    """With one directory, `logs/t-0`, and a file `a` in it."""
    made: Disk = RealDisk(tmp_path, 100) if request.param == "real" else MemoryDisk()
    made.make_directory(NEW)
    made.open(f"{NEW}/a", create=True).append([b"old"])
    return made


@pytest.fixture
def held(disk: Disk) -> Directory:
    """The first directory, whose name another one has by now; that one has a file `a`, too."""
    held = disk.hold(NEW)
    disk.rename(NEW, OLD)
    disk.make_directory(NEW)
    disk.open(f"{NEW}/a", create=True).append([b"new"])
    return held


def test_held_directory_is_read_whatever_its_name_was_given_to(disk: Disk, held: Directory) -> None:
    disk.open(f"{NEW}/b", create=True)
    assert held.list(NEW) == ["a"]
    assert (held.exists(f"{NEW}/a"), held.exists(f"{NEW}/b")) == (True, False)
    assert held.read(f"{NEW}/a") == held.open(f"{NEW}/a").read(0, 10) == b"old"


def test_held_directory_is_changed_and_no_other(disk: Disk, held: Directory) -> None:
    held.write_atomic(f"{NEW}/b", b"written")
    held.open(f"{NEW}/c", create=True).append([b"made"])
    held.rename(f"{NEW}/b", f"{NEW}/d")
    held.remove(f"{NEW}/a")
    held.sync_directory(NEW)
    assert disk.list(OLD) == ["c", "d"]
    assert (disk.read(f"{OLD}/c"), disk.read(f"{OLD}/d")) == (b"made", b"written")
    assert disk.list(NEW) == ["a"]
    assert disk.read(f"{NEW}/a") == b"new"


def test_held_directory_that_was_removed_takes_nothing_more(disk: Disk, held: Directory) -> None:
    disk.remove_tree(OLD)
    with pytest.raises(StorageFailure):
        held.write_atomic(f"{NEW}/b", b"written")
    with pytest.raises(StorageFailure):
        held.open(f"{NEW}/b", create=True)
    assert disk.list(NEW) == ["a"]


def test_directory_that_is_not_there_cannot_be_held(disk: Disk) -> None:
    with pytest.raises(StorageFailure, match="nothing-0"):
        disk.hold("logs/nothing-0")


def test_opening_makes_no_file_unless_it_is_asked_to(disk: Disk) -> None:
    with pytest.raises(StorageFailure, match="logs/t-0/b"):
        disk.open(f"{NEW}/b")
    assert disk.list(NEW) == ["a"]
