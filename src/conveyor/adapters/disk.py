"""The real disk. Paths are below one root; descriptors are opened when needed, and only so many are kept open."""

import contextlib
import errno
import os
import shutil
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from conveyor.kernel.errors import OutOfFiles, StorageFailure
from conveyor.kernel.ports import Bytes

_MAX_BUFFERS = 1024
_SMALL_WRITE_BYTES = 1 << 18
_NONE_LEFT = (errno.EMFILE, errno.ENFILE)
_FLAGS = os.O_RDWR | os.O_APPEND | os.O_CLOEXEC


class RealFile:
    """One append-only file of a `RealDisk`. A file with unflushed writes keeps its descriptor."""

    def __init__(self, path: Path, disk: "RealDisk") -> None:
        self._path = path
        self._disk = disk
        self._descriptor = -1
        self._is_released = False
        self._dirty = False
        self._descriptor = disk.descriptor(path, _FLAGS | os.O_CREAT)
        disk.opened(self)
        self._size = os.fstat(self._descriptor).st_size

    @property
    def size(self) -> int:
        return self._size

    @property
    def evictable(self) -> bool:
        return not self._dirty

    def fileno(self) -> int:
        if self._descriptor < 0:
            if self._is_released:
                raise FileNotFoundError(errno.ENOENT, "it is not this log's any more")
            self._descriptor = self._disk.descriptor(self._path, _FLAGS)
            self._disk.opened(self)
        return self._descriptor

    def read(self, position: int, length: int) -> bytes:
        with _storage_failure(self._path):
            return os.pread(self.fileno(), length, position)

    def append(self, buffers: Sequence[Bytes]) -> None:
        with _storage_failure(self._path):
            descriptor = self.fileno()
            self._dirty = True
            try:
                written = _write_all(descriptor, buffers)
            except OSError:
                with contextlib.suppress(OSError):
                    os.ftruncate(descriptor, self._size)
                raise
            self._size += written

    def truncate(self, size: int) -> None:
        with _storage_failure(self._path):
            self._dirty = True
            os.ftruncate(self.fileno(), size)
            self._size = size

    def sync(self) -> None:
        descriptor, finish = self.begin_sync()
        with _storage_failure(self._path):
            os.fdatasync(descriptor)
        finish(0)

    def begin_sync(self) -> tuple[int, Callable[[int], None]]:
        """The descriptor to sync, and what is told how that has ended: by an errno, 0 for well. Raises StorageFailure,
        as does what is returned, if it did not."""
        size = self._size

        def finish(error: int) -> None:
            with _storage_failure(self._path):
                if error:
                    raise OSError(error, os.strerror(error))
            self._dirty = self._dirty and self._size != size

        with _storage_failure(self._path):
            return self.fileno(), finish

    def detach(self) -> None:
        with _storage_failure(self._path):
            self.fileno()
        self._disk.closed(self)

    def release(self) -> None:
        self._is_released = True
        self._disk.closed(self)

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
            self._disk.closed(self)

    def __del__(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)


class RealDisk:
    """A directory of the machine's file system. See `conveyor.kernel.ports.Disk`."""

    def __init__(self, root: Path, max_open_files: int) -> None:
        self._root = root
        self._max_open_files = max_open_files
        self._open: OrderedDict[RealFile, None] = OrderedDict()

    def open(self, path: str) -> RealFile:
        with _storage_failure(self._root / path):
            return RealFile(self._root / path, self)

    def descriptor(self, path: Path, flags: int) -> int:
        """A new descriptor; where the process may have no more, the idle files give theirs. Raises OSError."""
        try:
            return os.open(path, flags, 0o644)
        except OSError as error:
            idle = [each for each in self._open if each.evictable]
            if error.errno not in _NONE_LEFT or not idle:
                raise
            for each in idle:
                each.close()
            return os.open(path, flags, 0o644)

    def opened(self, file: RealFile) -> None:
        """Count a file's descriptor, and close another one where there are too many."""
        self._open[file] = None
        if len(self._open) > self._max_open_files:
            oldest = next((each for each in self._open if each.evictable and each is not file), None)
            if oldest is not None:
                oldest.close()

    def closed(self, file: RealFile) -> None:
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
