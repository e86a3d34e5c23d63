"""A disk that fails on request, and loses unsynced data at a power cut."""

from collections.abc import Callable
from random import Random

import pytest

from conveyor.kernel.errors import ReadLater, StorageFailure
from conveyor.testing import MemoryDisk


def written(disk: MemoryDisk, path: str, *contents: bytes) -> None:
    disk.open(path, create=True).append(contents)


def test_a_file_keeps_appended_bytes() -> None:
    disk = MemoryDisk()
    written(disk, "d/file", b"ab", b"cd")
    file = disk.open("d/file", create=True)
    assert (file.size, file.read(1, 2), file.read(3, 10), file.read(9, 1)) == (4, b"bc", b"d", b"")
    file.truncate(1)
    assert disk.read("d/file") == b"a"
    file.close()


def test_names_are_listed_one_level_deep() -> None:
    disk = MemoryDisk()
    for path in ("a/x", "a/b/y", "a/b/z", "c"):
        written(disk, path, b"")
    assert (disk.list("a"), disk.list("a/b"), disk.list("nothing")) == (["b", "x"], ["y", "z"], [])
    assert (disk.exists("a/b"), disk.exists("a/b/y"), disk.exists("a/y")) == (True, True, False)


def test_a_directory_is_renamed_and_removed_with_its_content() -> None:
    disk = MemoryDisk()
    written(disk, "a/b/file", b"x")
    kept = disk.open("a/b/file", create=True)
    disk.rename("a", "new")
    assert disk.read("new/b/file") == kept.read(0, 1) == b"x"
    disk.remove_tree("new")
    disk.remove("new/nothing")
    assert not disk.exists("new")
    with pytest.raises(StorageFailure, match="No such file"):
        disk.read("new/b/file")


OPERATIONS: dict[str, Callable[[MemoryDisk], object]] = {
    "read": lambda disk: disk.open("d/f", create=True).read(0, 1),
    "append": lambda disk: disk.open("d/f", create=True).append([b"x"]),
    "truncate": lambda disk: disk.open("d/f", create=True).truncate(0),
    "sync": lambda disk: disk.open("d/f", create=True).sync(),
    "rename": lambda disk: disk.rename("d/f", "d/g"),
    "write_atomic": lambda disk: disk.write_atomic("d/f", b"x"),
    "sync_directory": lambda disk: disk.sync_directory("d"),
}


@pytest.mark.parametrize("operation", OPERATIONS)
def test_an_operation_fails_until_the_disk_is_healed(operation: str) -> None:
    disk = MemoryDisk()
    written(disk, "d/f", b"abc")
    disk.faults.fail(operation)
    with pytest.raises(StorageFailure, match=f"{operation} failed"):
        OPERATIONS[operation](disk)
    assert disk.open("d/f", create=True).size == 3
    disk.faults.heal()
    OPERATIONS[operation](disk)


def test_a_full_disk_writes_nothing_of_a_write_that_does_not_fit() -> None:
    disk = MemoryDisk(free_bytes=5)
    written(disk, "f", b"abc")
    with pytest.raises(StorageFailure, match="No space left"):
        written(disk, "f", b"de", b"f")
    with pytest.raises(StorageFailure, match="No space left"):
        disk.write_atomic("g", b"defg")
    assert (disk.read("f"), disk.exists("g")) == (b"abc", False)
    written(disk, "f", b"de")
    disk.faults.heal()
    written(disk, "f", b"more than five")


@pytest.mark.parametrize("seed", range(20))
def test_a_power_cut_keeps_synced_bytes_and_tears_the_rest(seed: int) -> None:
    disk = MemoryDisk()
    written(disk, "d/f", b"synced")
    disk.open("d/f", create=True).sync()
    disk.sync_directory("d")
    written(disk, "d/f", b"-torn-anywhere")
    found = disk.power_cut(Random(seed)).read("d/f")
    assert b"synced-torn-anywhere".startswith(found)
    assert found.startswith(b"synced")


def test_a_power_cut_tears_and_loses_bytes_by_chance() -> None:
    disk = MemoryDisk()
    written(disk, "d/f", b"0123456789")
    after = [disk.power_cut(Random(seed)) for seed in range(200)]
    kept = [disk.read("d/f") for disk in after if disk.exists("d/f")]
    assert 50 < len(kept) < 150
    assert {len(content) for content in kept} == set(range(11))
    assert disk.read("d/f") == b"0123456789"


def test_a_power_cut_is_the_same_for_the_same_chance() -> None:
    disk = MemoryDisk()
    for number in range(20):
        written(disk, f"d/{number}", bytes(number))
    first, second = (disk.power_cut(Random(5)) for _ in range(2))
    assert first.list("d") == second.list("d")
    assert [first.read(f"d/{name}") for name in first.list("d")] == [
        second.read(f"d/{name}") for name in first.list("d")
    ]


def test_an_atomically_written_file_survives() -> None:
    disk = MemoryDisk()
    disk.write_atomic("d/f", b"old")
    disk.write_atomic("d/f", b"new")
    assert {disk.power_cut(Random(seed)).read("d/f") for seed in range(20)} == {b"new"}


def test_fenced_file_never_shows_what_is_appended_after_the_cut() -> None:
    disk = MemoryDisk()
    old = disk.open("d/a", create=True)
    old.append([b"keptcut"])
    old.sync()
    old.fence(4)
    new = disk.open("d/a")
    new.truncate(4)
    new.append([b"NEW"])
    assert old.read(0, 4) == b"kept"
    with pytest.raises(ReadLater, match="truncated"):
        old.read(0, 5)
    assert new.read(0, 10) == b"keptNEW"
    assert new.synced_bytes == 4


def test_an_observer_meets_no_fault_and_is_no_operation() -> None:
    disk, ended = MemoryDisk(), []
    written(disk, "d/file", b"x")
    disk.faults.fail("read")
    disk.faults.call_after(0, lambda: ended.append("power"))

    with disk.faults.observed():
        assert disk.read("d/file") == b"x"
    assert ended == []
    with pytest.raises(StorageFailure):
        disk.read("d/file")

    assert ended == ["power"]
