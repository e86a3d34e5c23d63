"""A disk in memory that can inject faults, and that loses unsynced data when its power is cut.

It keeps two states of every file, written and synced; and two of every directory, its current names and those made
durable by `sync_directory`. A directory whose name is not durable may be lost with all that is in it. All random
choices come from a `random.Random` that is passed in. A failed sync loses what it did not write; as on Linux, readers
see it all the same until the power is cut or the file is reloaded.
"""

from collections.abc import Sequence
from copy import copy
from random import Random
from threading import RLock
from typing import Self
from weakref import WeakSet

import msgspec

from conveyor.kernel.errors import ReadLater, StorageFailure
from conveyor.kernel.ports import Bytes, Volume
from conveyor.testing.disk_faults import DiskFaults

_PAGE_BYTES = 512
"""A disk writes pages in any order: a lost page reads as zeros even if a later one was kept."""


class _Stored(msgspec.Struct):
    """The state that all owners of an open file share, apart from its content."""

    path: str
    synced_bytes: int = 0
    fence: int | None = None
    lost: list[tuple[int, int]] = []
    """The ranges whose sync has failed: the system shows them, counts them as synced, and never writes them again."""


class MemoryFile:
    """One append-only file, as one owner has opened it. Readers see `written`; its first `synced_bytes` survive a power
    cut.
    """

    def __init__(self, path: str, disk: "MemoryDisk") -> None:
        self.written = bytearray()
        self._stored = _Stored(path)
        self._disk = disk
        self._is_released = self._is_closed = False

    def opened(self) -> Self:
        """Return the file as another owner opens it."""
        return copy(self)

    @property
    def path(self) -> str:
        return self._stored.path

    @path.setter
    def path(self, path: str) -> None:
        self._stored.path = path

    @property
    def synced_bytes(self) -> int:
        return self._stored.synced_bytes

    @synced_bytes.setter
    def synced_bytes(self, synced_bytes: int) -> None:
        self._stored.synced_bytes = synced_bytes

    @property
    def size(self) -> int:
        return len(self.written)

    def read(self, position: int, length: int) -> bytes:
        self._check("read")
        fence = self._stored.fence
        if fence is not None and position + length > fence:
            raise ReadLater(f"{self.path}: the records beyond {fence} were truncated")
        return bytes(self.written[position : position + length])

    def read_cached(self, position: int, length: int) -> bytes:
        return self.read(position, length)

    def append(self, buffers: Sequence[Bytes]) -> None:
        self._check("append")
        self._disk.faults.use_space(sum(map(len, buffers)), self.path)
        for buffer in buffers:
            self.written += buffer

    def truncate(self, size: int) -> None:
        self._check("truncate")
        self._disk.faults.free_space(self.size - size)
        del self.written[size:]
        self.synced_bytes = min(self.synced_bytes, size)
        self._stored.lost = [(start, min(end, size)) for start, end in self._stored.lost if start < size]

    def sync(self) -> None:
        if self._disk.faults.is_failing("sync"):
            self.lose(self.synced_bytes)
        if self._disk.faults.drops_writes:
            self.lose(self.synced_bytes)
            self.drop_lost()
        self._check("sync")
        self.synced_bytes = self.size

    def reload(self) -> None:
        self.sync()
        self.drop_lost()

    def lose(self, start: int) -> None:
        """Fail to write the bytes from a position on, and count them as written."""
        self._stored.lost.append((start, self.size))
        self.synced_bytes = self.size

    def drop_lost(self) -> None:
        """Show what the disk has."""
        for start, end in self._stored.lost:
            self.written[start:end] = bytes(end - start)
        self._stored.lost = []

    def copied(self, disk: "MemoryDisk") -> "MemoryFile":
        """Return a file with the same content, seen and on the disk."""
        copied = MemoryFile(self.path, disk)
        copied.written += self.written
        copied.synced_bytes, copied._stored.lost = self.synced_bytes, list(self._stored.lost)
        return copied

    def detach(self) -> None:
        """Nothing to do: this object holds the content."""

    def fence(self, size: int) -> None:
        """The disk continues with a copy; this object keeps the present content."""
        self._disk.copy_open_file(self)
        self._stored.fence = size

    def release(self) -> None:
        self._is_released = True

    def close(self) -> None:
        self._is_closed = True

    def _check(self, operation: str) -> None:
        if self._is_closed and self._is_released:
            raise ReadLater(f"{self.path} no longer belongs to this log")
        self._disk.check(operation, self.path)


class HeldMemory:
    """A directory of a `MemoryDisk` that stays accessible when it is renamed. See `conveyor.kernel.ports.Directory`."""

    def __init__(self, disk: "MemoryDisk", directory: str, lock: RLock) -> None:
        self.directory: str | None = directory
        """Its current name; None after its removal."""
        self._disk, self._lock = disk, lock
        self._first_name = directory

    def open(self, path: str, *, create: bool = False) -> MemoryFile:
        with self._lock:
            return self._disk.open(self._current_path(path), create=create)

    def exists(self, path: str) -> bool:
        with self._lock:
            return self._disk.exists(self._current_path(path))

    def list(self, directory: str) -> list[str]:
        with self._lock:
            return self._disk.list(self._current_path(directory))

    def read(self, path: str) -> bytes:
        with self._lock:
            return self._disk.read(self._current_path(path))

    def write_atomic(self, path: str, content: bytes) -> None:
        with self._lock:
            self._disk.write_atomic(self._current_path(path), content)

    def remove(self, path: str) -> None:
        with self._lock:
            self._disk.remove(self._current_path(path))

    def rename(self, old: str, new: str) -> None:
        with self._lock:
            self._disk.rename(self._current_path(old), self._current_path(new))

    def sync_directory(self, path: str) -> None:
        with self._lock:
            self._disk.sync_directory(self._current_path(path))

    def _current_path(self, path: str) -> str:
        if self.directory is None:
            raise StorageFailure(f"{path}: No such file or directory")
        return self.directory + path.removeprefix(self._first_name)


class MemoryDisk:
    """See `conveyor.kernel.ports.Disk`. free_bytes: the free space; see `DiskFaults`."""

    def __init__(self, free_bytes: int | None = None) -> None:
        self.faults = DiskFaults(free_bytes)
        self._files: dict[str, MemoryFile] = {}
        self._durable_names: set[str] = set()
        self._directories: dict[str, None] = {}
        """Those that were made. Other directories exist as long as they have files."""
        self._held: WeakSet[HeldMemory] = WeakSet()
        self._lock = RLock()

    def check(self, operation: str, path: str) -> None:
        """Raise the failure of an operation that is about to begin; see `DiskFaults`."""
        self.faults.check(operation, path)

    def process_crash(self) -> "MemoryDisk":
        """Return the disk as the next process finds it: with everything written, synced or not."""
        survivor = MemoryDisk(self.faults.free_bytes)
        survivor.faults = self.faults.copy()
        for path, file in self._files.items():
            survivor._files[path] = file.copied(survivor)
        survivor._durable_names = set(self._durable_names)
        survivor._directories = dict(self._directories)
        return survivor

    def power_cut(self, chance: Random) -> "MemoryDisk":
        """Return the disk after a power cut: everything synced, and randomly some of the rest, torn anywhere."""
        survivor = MemoryDisk()
        lost = tuple(
            f"{path}/" for path in self._directories if path not in self._durable_names and chance.random() < 0.5
        )
        survivor._directories = {path: None for path in self._directories if not f"{path}/".startswith(lost)}
        survivor._durable_names |= survivor._directories.keys()
        for path, file in self._files.items():
            if path.startswith(lost) or (path not in self._durable_names and chance.random() < 0.5):
                continue
            kept = file.copied(survivor)
            kept.drop_lost()
            kept.written[file.synced_bytes :] = _survivors(file.written[file.synced_bytes :], chance)
            kept.synced_bytes = len(kept.written)
            survivor._files[path] = kept
            survivor._durable_names.add(path)
        return survivor

    def paths(self) -> list[str]:
        return sorted(self._files)

    def flip(self, path: str, position: int, bit: int) -> None:
        """Change one bit of a file."""
        self._files[path].written[position] ^= 1 << bit

    def open(self, path: str, *, create: bool = False) -> MemoryFile:
        self.check("open", path)
        if not create and path not in self._files:
            raise StorageFailure(f"{path}: No such file or directory")
        return self._files.setdefault(path, MemoryFile(path, self)).opened()

    def copy_open_file(self, file: MemoryFile) -> None:
        """Let the file's name lead to a copy with the same content, and leave the object to its readers."""
        with self._lock:
            named = self._files.get(file.path)
            if named is not None and named.written is file.written:
                self._files[file.path] = file.copied(self)

    def hold(self, directory: str) -> HeldMemory:
        with self._lock:
            if not self.exists(directory):
                raise StorageFailure(f"{directory}: No such file or directory")
            held = HeldMemory(self, directory, self._lock)
            self._held.add(held)
            return held

    def exists(self, path: str) -> bool:
        if path in self._files or path in self._directories:
            return True
        return any(name.startswith(f"{path}/") for name in list(self._files))

    def list(self, directory: str) -> list[str]:
        names = [*self._files, *self._directories]
        below = [path.removeprefix(f"{directory}/") for path in names if path.startswith(f"{directory}/")]
        return sorted({name.partition("/")[0] for name in below})

    def make_directory(self, path: str) -> None:
        with self._lock:
            if not self.exists(path):
                parts = path.split("/")
                parents = ["/".join(parts[:end]) for end in range(1, len(parts))]
                self._directories |= dict.fromkeys([*parents, path])
                self._durable_names |= set(parents)

    def read(self, path: str) -> bytes:
        self.check("read", path)
        if path not in self._files:
            raise StorageFailure(f"{path}: No such file or directory")
        return bytes(self._files[path].written)

    def write_atomic(self, path: str, content: bytes) -> None:
        self.check("write_atomic", path)
        self.faults.use_space(len(content), path)
        self.remove(path)
        file = MemoryFile(path, self)
        file.written += content
        file.synced_bytes = len(content)
        self._files[path] = file
        self._make_durable(path.rpartition("/")[0])

    def allocate(self, path: str, size: int) -> None:
        self.check("allocate", path)
        self.faults.use_space(size, path)
        self._files[path] = MemoryFile(path, self)
        self._files[path].written += bytes(size)

    def remove(self, path: str) -> None:
        file = self._files.pop(path, None)
        if file is not None:
            self.faults.free_space(len(file.written))
        self._durable_names.discard(path)

    def remove_tree(self, path: str) -> None:
        with self._lock:
            for file_path in [name for name in list(self._files) if name.startswith(f"{path}/")]:
                self.remove(file_path)
            for made in [made for made in self._directories if f"{made}/".startswith(f"{path}/")]:
                del self._directories[made]
                self._durable_names.discard(made)
            for held in [held for held in self._held if held.directory == path]:
                held.directory = None

    def rename(self, old: str, new: str) -> None:
        self.check("rename", old)
        with self._lock:
            for path in [name for name in list(self._files) if name == old or name.startswith(f"{old}/")]:
                file = self._files.pop(path)
                file.path = new + path.removeprefix(old)
                self._files[file.path] = file
                self._durable_names.discard(path)
                self._durable_names.add(file.path)
            for made in [made for made in self._directories if f"{made}/".startswith(f"{old}/")]:
                del self._directories[made]
                self._directories[new + made.removeprefix(old)] = None
                self._durable_names.discard(made)
                self._durable_names.add(new + made.removeprefix(old))
            for held in [held for held in self._held if held.directory == old]:
                held.directory = new

    def volume(self, path: str) -> Volume:
        self.check("volume", path)
        if self.faults.free_bytes is None:
            return Volume(path, self.faults.total_bytes, -1)
        used_bytes = sum(file.size for file in list(self._files.values()))
        return Volume(path, max(self.faults.total_bytes, used_bytes + self.faults.free_bytes), self.faults.free_bytes)

    def sync_directory(self, path: str) -> None:
        """As a real disk does, with the directory's own name."""
        self.check("sync_directory", path)
        self._make_durable(path)
        self._make_durable(path.rpartition("/")[0])

    def _make_durable(self, directory: str) -> None:
        """Make the names in one directory durable; the root's is empty."""
        self._durable_names |= {
            name for name in [*self._files, *self._directories] if name.rpartition("/")[0] == directory
        }


def _survivors(unsynced: bytearray, chance: Random) -> bytearray:
    """Return the part of unsynced bytes that survives a power cut, torn anywhere, possibly with lost pages."""
    kept = unsynced[: chance.randint(0, len(unsynced))] if chance.random() < 0.5 else bytearray()
    for start in range(0, len(kept) - _PAGE_BYTES, _PAGE_BYTES):
        if chance.random() < 0.2:
            kept[start : start + _PAGE_BYTES] = bytes(_PAGE_BYTES)
    return kept
