"""The real disk. Paths are below one root; descriptors are opened when needed, and only so many are kept open."""

import contextlib
import errno
import os
import shutil
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from pathlib import Path
from threading import Lock

from conveyor.kernel.errors import OutOfFiles, StorageFailure
from conveyor.kernel.ports import Bytes, Volume

_MAX_BUFFERS = 1024
_SMALL_WRITE_BYTES = 1 << 18
_NONE_LEFT = (errno.EMFILE, errno.ENFILE)
_FLAGS = os.O_RDWR | os.O_APPEND | os.O_CLOEXEC


class Descriptor:
    """A file that the system has open. It is closed when nobody holds this any more: as long as somebody does, in
    whichever thread, its number stands for this file and no other."""

    __slots__ = ("number",)

    def __init__(self, number: int) -> None:
        self.number = number

    def __del__(self) -> None:
        os.close(self.number)


class RealFile:
    """One append-only file of a `RealDisk`. A file with unflushed writes keeps its descriptor.

    One thread at a time appends; any thread may read, or sync.
    """

    def __init__(self, path: Path, disk: "RealDisk") -> None:
        self._path = path
        self._disk = disk
        self._is_released = False
        self._changes = 0
        self._synced_changes = 0
        descriptor = disk.descriptor(path, _FLAGS | os.O_CREAT)
        self._descriptor: Descriptor | None = descriptor
        disk.opened(self)
        self._size = os.fstat(descriptor.number).st_size

    @property
    def size(self) -> int:
        return self._size

    @property
    def evictable(self) -> bool:
        return self._changes == self._synced_changes

    def read(self, position: int, length: int) -> bytes:
        with _storage_failure(self._path):
            descriptor = self._opened()
            return os.pread(descriptor.number, length, position)

    def append(self, buffers: Sequence[Bytes]) -> None:
        with _storage_failure(self._path), self._changing() as descriptor:
            try:
                self._size += _write_all(descriptor.number, buffers)
            except OSError:
                with contextlib.suppress(OSError):
                    os.ftruncate(descriptor.number, self._size)
                raise

    def truncate(self, size: int) -> None:
        with _storage_failure(self._path), self._changing() as descriptor:
            os.ftruncate(descriptor.number, size)
            self._size = size

    def sync(self) -> None:
        descriptor, mark = self.begin_sync()
        with _storage_failure(self._path):
            os.fdatasync(descriptor.number)
        self.end_sync(mark)

    def begin_sync(self) -> tuple[Descriptor, int]:
        """What to sync, and a mark for `end_sync`. Raises StorageFailure."""
        mark = self._changes
        with _storage_failure(self._path):
            return self._opened(), mark

    def end_sync(self, mark: int, error: int = 0) -> None:
        """What was appended before the mark was made is on the disk; error: or why not, an errno. Raises StorageFailure
        then."""
        with _storage_failure(self._path):
            if error:
                raise OSError(error, os.strerror(error))
        self._synced_changes = max(self._synced_changes, mark)

    def detach(self) -> None:
        with _storage_failure(self._path):
            descriptor = self._opened()
        self._disk.closed(self)
        self._descriptor = descriptor  # Another thread may have needed room in between.

    def release(self) -> None:
        self._is_released = True
        self._disk.closed(self)

    def close(self) -> None:
        self._descriptor = None
        self._disk.closed(self)

    def _opened(self) -> Descriptor:
        """To be held for as long as its number is used. Raises OSError."""
        descriptor = self._descriptor
        if descriptor is None:
            if self._is_released:
                raise FileNotFoundError(errno.ENOENT, "it is not this log's any more")
            descriptor = self._descriptor = self._disk.descriptor(self._path, _FLAGS)
            self._disk.opened(self)
        return descriptor

    @contextlib.contextmanager
    def _changing(self) -> Iterator[Descriptor]:
        """A sync that is begun meanwhile may not reach what is changed: it counts before, and again after."""
        descriptor = self._opened()
        self._changes += 1
        try:
            yield descriptor
        finally:
            self._changes += 1


class RealDisk:
    """A directory of the machine's file system. See `conveyor.kernel.ports.Disk`. Any thread may use it."""

    def __init__(self, root: Path, max_open_files: int) -> None:
        self._root = root
        self._max_open_files = max_open_files
        self._open: OrderedDict[RealFile, None] = OrderedDict()
        self._lock = Lock()

    def open(self, path: str) -> RealFile:
        with _storage_failure(self._root / path):
            return RealFile(self._root / path, self)

    def descriptor(self, path: Path, flags: int) -> Descriptor:
        """A new descriptor; where the process may have no more, the idle files give theirs. Raises OSError."""
        try:
            return Descriptor(os.open(path, flags, 0o644))
        except OSError as error:
            with self._lock:
                idle = [each for each in self._open if each.evictable]
            if error.errno not in _NONE_LEFT or not idle:
                raise
            for each in idle:
                each.close()
            return Descriptor(os.open(path, flags, 0o644))

    def opened(self, file: RealFile) -> None:
        """Count a file's descriptor, and close another one where there are too many."""
        oldest = None
        with self._lock:
            self._open[file] = None
            if len(self._open) > self._max_open_files:
                oldest = next((each for each in self._open if each.evictable and each is not file), None)
        if oldest is not None:
            oldest.close()

    def closed(self, file: RealFile) -> None:
        with self._lock:
            self._open.pop(file, None)

    def exists(self, path: str) -> bool:
        return (self._root / path).exists()

    def list(self, directory: str) -> list[str]:
        with _storage_failure(self._root / directory):
            try:
                return sorted(os.listdir(self._root / directory))
            except FileNotFoundError:
                return []

    def make_directory(self, path: str) -> None:
        with _storage_failure(self._root / path):
            (self._root / path).mkdir(parents=True, exist_ok=True)

    def read(self, path: str) -> bytes:
        with _storage_failure(self._root / path):
            return (self._root / path).read_bytes()

    def write_atomic(self, path: str, content: bytes) -> None:
        target = self._root / path
        with _storage_failure(target):
            replacement = target.with_name(target.name + ".new")
            descriptor = os.open(replacement, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
            try:
                _write_all(descriptor, [content])
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
            replacement.replace(target)
            self._sync_directory(target.parent)

    def remove(self, path: str) -> None:
        with _storage_failure(self._root / path):
            (self._root / path).unlink(missing_ok=True)

    def remove_tree(self, path: str) -> None:
        with _storage_failure(self._root / path), contextlib.suppress(FileNotFoundError):
            shutil.rmtree(self._root / path)

    def rename(self, old: str, new: str) -> None:
        with _storage_failure(self._root / old):
            (self._root / old).replace(self._root / new)

    def volume(self, path: str) -> Volume:
        with _storage_failure(self._root / path):
            usage = shutil.disk_usage(self._root)
            return Volume(str((self._root / path).resolve()), usage.total, usage.free)

    def sync_directory(self, path: str) -> None:
        with _storage_failure(self._root / path):
            self._sync_directory(self._root / path)
            self._sync_directory((self._root / path).parent)

    def _sync_directory(self, path: Path) -> None:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _write_all(descriptor: int, buffers: Sequence[Bytes]) -> int:
    """Write everything, however many system calls it takes. Raises OSError."""
    total = sum(map(len, buffers))
    if total <= _SMALL_WRITE_BYTES:
        _finish(descriptor, b"".join(buffers))
        return total
    for start in range(0, len(buffers), _MAX_BUFFERS):
        some = buffers[start : start + _MAX_BUFFERS]
        written = os.writev(descriptor, some)
        if written < sum(map(len, some)):
            _finish(descriptor, b"".join(some)[written:])
    return total


def _finish(descriptor: int, content: bytes) -> None:
    view = memoryview(content)
    while view:
        view = view[os.write(descriptor, view) :]


@contextlib.contextmanager
def _storage_failure(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        kind = OutOfFiles if error.errno in _NONE_LEFT else StorageFailure
        raise kind(f"{path}: {error.strerror or error}") from error
