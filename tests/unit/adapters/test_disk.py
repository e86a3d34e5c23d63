"""The real disk, in a temporary directory: the port's promises, whole writes, descriptors, and failures with names."""

import contextlib
import errno
import os
import stat
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier, Event

import pytest

from conveyor.adapters.disk import RealDisk, RealFile
from conveyor.kernel.errors import DiskFull, StorageFailure, TransientFailure
from conveyor.kernel.ports import Bytes, Disk


@pytest.fixture
def disk(tmp_path: Path) -> RealDisk:
    return RealDisk(tmp_path, max_open_files=100)


def open_descriptors(root: Path) -> int:
    """How many files of a directory this process has open."""
    wanted = {each.stat().st_ino for each in root.iterdir()}
    count = 0
    for descriptor in Path("/dev/fd").iterdir():
        with contextlib.suppress(OSError):
            count += os.fstat(int(descriptor.name)).st_ino in wanted
    return count


def test_real_disk_is_a_disk(disk: RealDisk) -> None:
    port: Disk = disk
    assert port.list(".") == []


def test_file_appends_and_reads(disk: RealDisk) -> None:
    file = disk.open("a.log", create=True)
    file.append([b"abc", memoryview(b"def"), bytearray(b"g")])
    file.append([b"h"])
    assert file.size == 8
    assert (file.read(0, 8), file.read(2, 3), file.read(6, 100), file.read(8, 1)) == (b"abcdefgh", b"cde", b"gh", b"")


def test_file_opened_again_goes_on_at_its_end(disk: RealDisk) -> None:
    disk.open("a.log", create=True).append([b"abc"])
    again = disk.open("a.log", create=True)
    assert again.size == 3
    again.append([b"d"])
    assert disk.read("a.log") == b"abcd"


def test_file_truncate_cuts_and_goes_on_there(disk: RealDisk) -> None:
    file = disk.open("a.log", create=True)
    file.append([b"abcdef"])
    file.truncate(2)
    file.append([b"X"])
    file.sync()
    assert (file.size, disk.read("a.log")) == (3, b"abX")


@pytest.mark.parametrize(
    "buffers", [[b"x"] * 3000, [b"y" * 1000] * 2100, [b"z" * (1 << 19)] * 3, []], ids=["many", "more", "large", "none"]
)
def test_file_writes_everything_however_much(disk: RealDisk, buffers: Sequence[Bytes]) -> None:
    file = disk.open("a.log", create=True)
    file.append(buffers)
    assert disk.read("a.log") == b"".join(buffers)
    assert file.size == sum(map(len, buffers))


def test_file_finishes_a_short_write(disk: RealDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    """The system may write less than it was given, of one buffer or of many."""
    write, writev = os.write, os.writev
    monkeypatch.setattr(os, "write", lambda descriptor, content: write(descriptor, content[:7]))
    monkeypatch.setattr(os, "writev", lambda descriptor, buffers: writev(descriptor, [buffers[0][:5]]))
    file = disk.open("a.log", create=True)
    file.append([b"short", b"writes"])
    file.append([bytes([number]) * 20_000 for number in range(20)])
    assert disk.read("a.log") == b"shortwrites" + b"".join(bytes([number]) * 20_000 for number in range(20))


def test_file_reads_no_less_than_it_has(disk: RealDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before a part of the disk that fails, the system returns what it could read, and the error only to a read that
    begins there. A short read would pass for the end of the file, and recovery cuts a log that ends within a batch.
    """
    file = disk.open("a.log", create=True)
    file.append([b"abcdefgh"])
    pread, bad = os.pread, 5

    def failing(descriptor: int, length: int, position: int) -> bytes:
        if position == bad:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return pread(descriptor, min(length, bad - position) if position < bad else length, position)

    monkeypatch.setattr(os, "pread", failing)
    assert (file.read(0, 5), file.read(6, 100)) == (b"abcde", b"gh")
    with pytest.raises(StorageFailure, match=r"a\.log: Input/output error"):
        file.read(2, 4)
    monkeypatch.setattr(os, "pread", lambda descriptor, length, position: pread(descriptor, min(length, 3), position))
    assert file.read(1, 100) == b"bcdefgh"


def test_file_that_was_cut_by_others_is_read_to_its_end(disk: RealDisk, tmp_path: Path) -> None:
    file = disk.open("a.log", create=True)
    file.append([b"abcdefgh"])
    os.truncate(tmp_path / "a.log", 3)
    assert (file.read(1, 7), file.read(3, 5)) == (b"bc", b"")


def test_file_that_cannot_be_written_is_as_before(disk: RealDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    file = disk.open("a.log", create=True)
    file.append([b"abc"])
    write, left = os.write, [4]

    def full(descriptor: int, content: Bytes) -> int:
        if not left[0]:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        written, left[0] = write(descriptor, content[: left[0]]), 0
        return written

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(StorageFailure, match=r"a\.log: No space left on device"):
        file.append([b"more than fits"])
    monkeypatch.undo()
    assert (file.size, disk.read("a.log")) == (3, b"abc")
    file.append([b"d"])
    assert disk.read("a.log") == b"abcd"


def test_disk_tells_where_it_is_and_how_large(disk: RealDisk, tmp_path: Path) -> None:
    volume = disk.volume("logs")
    assert volume.path == str(tmp_path / "logs")
    assert volume.total_bytes > volume.usable_bytes > 0


def test_disk_keeps_only_so_many_descriptors(tmp_path: Path) -> None:
    disk = RealDisk(tmp_path, max_open_files=3)
    files = [disk.open(f"{number}.log", create=True) for number in range(10)]
    assert open_descriptors(tmp_path) == 3
    for number, file in enumerate(files):
        file.append([b"%d" % number])
        file.sync()
    assert open_descriptors(tmp_path) == 3
    assert [file.read(0, 9) for file in files] == [b"%d" % number for number in range(10)]
    for file in files:
        file.close()
    assert open_descriptors(tmp_path) == 0


def test_file_with_unflushed_writes_keeps_its_descriptor(tmp_path: Path) -> None:
    """Its failure to reach the disk must be seen by its own sync, not lost with a close."""
    disk = RealDisk(tmp_path, max_open_files=1)
    first = disk.open("first.log", create=True)
    first.append([b"abc"])
    descriptor, _ = first.begin_sync()
    others = [disk.open(f"{number}.log", create=True) for number in range(3)]
    assert (first.evictable, first.begin_sync()[0]) == (False, descriptor)
    first.sync()
    assert first.evictable
    assert [other.read(0, 1) for other in others] == [b""] * 3
    assert first.read(0, 3) == b"abc"


def test_file_written_during_its_sync_stays_unflushed(disk: RealDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    file = disk.open("a.log", create=True)
    file.append([b"abc"])
    monkeypatch.setattr(os, "fdatasync", lambda _: file.append([b"d"]))
    file.sync()
    assert not file.evictable


def test_sync_that_began_during_a_write_leaves_the_file_unflushed(disk: RealDisk) -> None:
    """The write itself is what the monkey does here: a thread syncs while the loop is in the system."""
    file, begun = disk.open("a.log", create=True), []

    class Buffer(bytes):
        def __len__(self) -> int:
            begun.append(file.begin_sync())
            return super().__len__()

    file.append([Buffer(b"abc")])
    for _, mark in begun:
        file.end_sync(mark)
    assert begun
    assert not file.evictable


def test_descriptor_stays_open_while_somebody_holds_it(tmp_path: Path) -> None:
    disk = RealDisk(tmp_path, max_open_files=1)
    first = disk.open("first.log", create=True)
    held, _ = first.begin_sync()
    other = disk.open("other.log", create=True)
    assert other.read(0, 1) == b""
    assert open_descriptors(tmp_path) == 2
    assert os.fstat(held.number).st_ino == (tmp_path / "first.log").stat().st_ino
    del held
    assert open_descriptors(tmp_path) == 1


def test_threads_that_sync_and_read_take_no_file_from_another(tmp_path: Path) -> None:
    """Each opens what it needs, so that others have to be closed."""
    disk = RealDisk(tmp_path, max_open_files=3)
    files = [disk.open(f"{number}.log", create=True) for number in range(24)]
    is_over = Event()

    def keep_syncing(mine: Sequence[RealFile]) -> None:
        while not is_over.is_set():
            for each in mine:
                each.sync()
                each.read(0, 10)

    with ThreadPoolExecutor(3) as threads:
        running = [threads.submit(keep_syncing, files[number::3]) for number in range(3)]
        for turn in range(100):
            for number, file in enumerate(files):
                file.append([b"%02d:%03d;" % (number, turn)])
        is_over.set()
        for each in running:
            each.result()
    for number in range(24):
        expected = b"".join(b"%02d:%03d;" % (number, turn) for turn in range(100))
        assert disk.read(f"{number}.log") == expected


def test_file_stays_readable_after_its_name_is_gone(disk: RealDisk) -> None:
    file = disk.open("a.log", create=True)
    file.append([b"abc"])
    disk.remove("a.log")
    assert file.read(0, 3) == b"abc"


def test_disk_lists_sorted_names(disk: RealDisk) -> None:
    disk.make_directory("logs/t-0")
    for name in ("b", "a", "c"):
        disk.open(f"logs/t-0/{name}", create=True)
    assert (disk.list("logs/t-0"), disk.list("logs"), disk.list("nowhere")) == (["a", "b", "c"], ["t-0"], [])
    assert disk.exists("logs/t-0")
    assert not disk.exists("logs/t-1")
    assert not disk.exists("logs/t-0/a/below")
    with pytest.raises(StorageFailure):
        disk.exists("x" * 5_000)


def test_disk_makes_the_names_of_parents_durable(
    disk: RealDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise a power cut could remove all directories of partitions, whose own names are durable in vain."""
    synced: list[str] = []

    def note(descriptor: int) -> None:
        synced.append(str(Path(f"/proc/self/fd/{descriptor}").readlink().relative_to(tmp_path)))

    monkeypatch.setattr(os, "fsync", note)
    disk.make_directory("logs/t-0")
    assert synced == ["."]
    disk.make_directory("logs/t-1")
    assert synced == ["."], "the caller makes the last name durable, for many directories at once"
    disk.make_directory("a/b/c")
    assert synced == [".", ".", "a"]


def test_disk_write_atomic_replaces_whole(disk: RealDisk) -> None:
    disk.write_atomic("a.index", b"first")
    disk.write_atomic("a.index", b"second")
    assert (disk.read("a.index"), disk.list(".")) == (b"second", ["a.index"])


def test_disk_write_atomic_by_two_threads_at_the_same_time(disk: RealDisk) -> None:
    """As when two readers of a segment find its index missing."""
    barrier = Barrier(2)

    def replace(content: bytes) -> None:
        for _ in range(50):
            barrier.wait(60)
            disk.write_atomic("a.index", content)

    with ThreadPoolExecutor(2) as threads:
        for done in [threads.submit(replace, content) for content in (b"first", b"second")]:
            done.result()
    assert disk.read("a.index") in (b"first", b"second")
    assert disk.list("") == ["a.index"]


def test_disk_write_atomic_that_fails_leaves_the_old(disk: RealDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(descriptor: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    disk.write_atomic("a.index", b"first")
    monkeypatch.setattr(os, "fsync", broken)
    with pytest.raises(StorageFailure, match=r"a\.index: Input/output error"):
        disk.write_atomic("a.index", b"second")
    assert disk.read("a.index") == b"first"


@pytest.mark.parametrize("change", ["sync_directory", "write_atomic", "make_directory"])
def test_directory_that_cannot_be_synced_is_no_full_disk(
    disk: RealDisk, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    """As with a file: the names that were to be durable may be lost, although they are still seen."""
    changes = {
        "sync_directory": lambda: disk.sync_directory("logs"),
        "write_atomic": lambda: disk.write_atomic("logs/a.index", b"second"),
        "make_directory": lambda: disk.make_directory("logs/t/0"),
    }
    disk.make_directory("logs")
    fsync = os.fsync

    def full(descriptor: int) -> None:
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StorageFailure, match="No space left on device") as raised:
        changes[change]()
    assert not isinstance(raised.value, TransientFailure)


def test_disk_removes_and_renames(disk: RealDisk) -> None:
    disk.make_directory("logs/t-0")
    disk.open("logs/t-0/a", create=True).append([b"abc"])
    disk.rename("logs/t-0", "logs/t-0.deleted")
    disk.sync_directory("logs")
    assert disk.read("logs/t-0.deleted/a") == b"abc"
    for _ in range(2):
        disk.remove("logs/t-0.deleted/a")
        disk.remove_tree("logs/t-0.deleted")
    assert disk.list("logs") == []


@pytest.mark.parametrize("change", ["removed", "renamed"])
def test_disk_removes_a_tree_whose_files_other_threads_change(
    disk: RealDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    """As a compaction does that still runs when its topic is deleted. Each file is changed just before its turn."""
    tree = tmp_path / "t-0.deleted"
    (tree / "cut-1").mkdir(parents=True)
    for name in ("0.index.new", "0.log", "1.index.new", "1.log", "cut-1/0.log"):
        (tree / name).write_bytes(b"x")
    unlink = os.unlink

    def changed_first(name: str, *, dir_fd: int) -> None:
        if name.endswith(".new"):
            if change == "removed":
                unlink(name, dir_fd=dir_fd)
            else:
                os.rename(name, name.removesuffix(".new"), src_dir_fd=dir_fd, dst_dir_fd=dir_fd)
        unlink(name, dir_fd=dir_fd)

    monkeypatch.setattr(os, "unlink", changed_first)
    disk.remove_tree("t-0.deleted")
    assert not tree.exists()


def test_disk_says_why_a_tree_stays(disk: RealDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(name: str, *, dir_fd: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    disk.make_directory("t-0.deleted")
    disk.open("t-0.deleted/0.log", create=True)
    monkeypatch.setattr(os, "unlink", broken)
    with pytest.raises(StorageFailure, match=r"t-0\.deleted: Input/output error"):
        disk.remove_tree("t-0.deleted")
    assert (tmp_path / "t-0.deleted/0.log").exists()


@pytest.mark.parametrize("operation", ["open", "read", "rename", "sync_directory", "write_atomic", "list"])
def test_disk_failure_names_the_file(disk: RealDisk, tmp_path: Path, operation: str) -> None:
    (tmp_path / "plain").write_bytes(b"")
    operations: dict[str, Callable[[], object]] = {
        "open": lambda: disk.open("plain/a", create=True),
        "read": lambda: disk.read("plain/a"),
        "rename": lambda: disk.rename("plain/a", "b"),
        "sync_directory": lambda: disk.sync_directory("plain"),
        "write_atomic": lambda: disk.write_atomic("plain/a", b""),
        "list": lambda: disk.list("plain"),
    }
    with pytest.raises(StorageFailure, match=str(tmp_path / "plain")):
        operations[operation]()


def test_file_failure_names_the_file(disk: RealDisk) -> None:
    file: RealFile = disk.open("a.log", create=True)
    with pytest.raises(StorageFailure, match=r"a\.log: Invalid argument"):
        file.truncate(-1)


def test_a_full_disk_has_a_name_and_keeps_no_half_of_a_whole_write(disk: RealDisk, tmp_path: Path) -> None:
    """/dev/full finds no room for anything."""
    (tmp_path / "whole.new").symlink_to("/dev/full")
    with pytest.raises(DiskFull, match="No space left"):
        disk.write_atomic("whole", b"content")
    assert disk.list(".") == []
    (tmp_path / "log").symlink_to("/dev/full")
    with pytest.raises(DiskFull, match="No space left"):
        disk.open("log").append([b"content"])


def test_a_sync_that_finds_no_room_has_lost_what_was_written(disk: RealDisk) -> None:
    """It is no failure that passes: the system may have dropped the writes, and can still show them."""
    file = disk.open("log", create=True)
    file.append([b"content"])
    _, mark = file.begin_sync()
    with pytest.raises(StorageFailure, match="No space left") as failed:
        file.end_sync(mark, errno.ENOSPC)
    assert not isinstance(failed.value, TransientFailure)


def test_file_is_reloaded_from_the_disk_once_nothing_is_dirty(disk: RealDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[object] = []

    def advise(descriptor: int, offset: int, length: int, advice: int) -> None:
        calls.append((offset, length, advice))
        plain_advise(descriptor, offset, length, advice)

    def sync(descriptor: int) -> None:
        calls.append("sync")
        plain_sync(descriptor)

    plain_advise, plain_sync = os.posix_fadvise, os.fdatasync
    monkeypatch.setattr(os, "posix_fadvise", advise)
    monkeypatch.setattr(os, "fdatasync", sync)
    file = disk.open("a", create=True)
    file.append([b"content"])
    file.reload()
    assert calls == ["sync", (0, 0, os.POSIX_FADV_DONTNEED)]
    assert file.read(0, 7) == b"content"


def test_allocated_bytes_are_taken_from_the_disk(disk: RealDisk, tmp_path: Path) -> None:
    disk.allocate("reserve", 1 << 20)
    assert (tmp_path / "reserve").stat().st_blocks * 512 >= 1 << 20
