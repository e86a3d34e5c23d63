"""The real disk. Paths are relative to one root. Files are opened on demand, and the number of open descriptors is
limited.
"""

import contextlib
import errno
import os
import shutil
import sys
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from pathlib import Path
from threading import Lock

from conveyor.kernel.errors import DiskFull, OutOfFiles, ReadLater, StorageFailure
from conveyor.kernel.ports import Bytes, Volume

_MAX_BUFFERS = 1024
_SMALL_WRITE_BYTES = 1 << 18
_NO_DESCRIPTOR_LEFT = (errno.EMFILE, errno.ENFILE)
_KINDS: dict[int, type[StorageFailure]] = {
    errno.EMFILE: OutOfFiles,
    errno.ENFILE: OutOfFiles,
    errno.ENOSPC: DiskFull,
    errno.EDQUOT: DiskFull,
}
_NO_FALLOCATE = (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS)
_FLAGS = os.O_RDWR | os.O_APPEND | os.O_CLOEXEC
_DIRECTORY_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_CACHED_ONLY = getattr(os, "RWF_NOWAIT", None)
"""Linux reads only from its page cache with this flag, and fails with EAGAIN instead of waiting for the disk."""


class Descriptor:
    """An open file descriptor. It is closed when the last reference is dropped, so while any thread holds it, its
    number cannot be reused for another file.
    """

    __slots__ = ("number",)

    def __init__(self, number: int) -> None:
        self.number = number

    def __del__(self) -> None:
        os.close(self.number)


class OpenFiles:
    """The files with an open descriptor. Above the limit the least recently opened idle file loses its descriptor. Any
    thread may call.

    The lock is held while a file gets or loses its descriptor, not while a descriptor is opened or closed: the close of
    a removed file, which frees its space, may take long.

    max_open_files: the limit, which files with unflushed writes may exceed.
    """

    def __init__(self, max_open_files: int) -> None:
        self._max_open_files = max_open_files
        self._open: OrderedDict[RealFile, None] = OrderedDict()
        self._replacements: set[str] = set()
        self._lock = Lock()

    def descriptor(self, path: str | Path, flags: int, dir_fd: int | None = None) -> Descriptor:
        """Open a file. If the process has no descriptor left, idle files are closed first. Raises OSError."""
        try:
            return Descriptor(os.open(path, flags, 0o644, dir_fd=dir_fd))
        except OSError as error:
            if error.errno not in _NO_DESCRIPTOR_LEFT:
                raise
        with self._lock:
            taken = [self._take(file) for file in list(self._open) if file.evictable]
        taken.clear()
        return Descriptor(os.open(path, flags, 0o644, dir_fd=dir_fd))

    @contextlib.contextmanager
    def replacement(self, path: str) -> Iterator[str]:
        """Yield the path of the file that is to replace another one. No other thread has the same meanwhile."""
        chosen = f"{path}.new"
        with self._lock:
            while chosen in self._replacements:
                chosen = f"{chosen}.new"
            self._replacements.add(chosen)
        try:
            yield chosen
        finally:
            self._replacements.discard(chosen)

    def add(self, file: "RealFile", opened: Descriptor) -> Descriptor:
        """Give a file the descriptor that was opened for it, and take one from another file above the limit.

        Returns the file's descriptor: another one if the file was opened or detached meanwhile.
        """
        taken = None
        with self._lock:
            if file.descriptor is not None:
                return file.descriptor
            file.descriptor = opened
            self._open[file] = None
            if len(self._open) > self._max_open_files:
                oldest = next((other for other in self._open if other.evictable and other is not file), None)
                taken = None if oldest is None else self._take(oldest)
        del taken
        return opened

    def detach(self, file: "RealFile", opened: Descriptor) -> None:
        """Let a file keep its descriptor, or the one that was opened for it if it has lost it meanwhile."""
        with self._lock:
            self._open.pop(file, None)
            if file.descriptor is None:
                file.descriptor = opened

    def remove(self, file: "RealFile") -> None:
        """Stop counting a file, which keeps its descriptor."""
        with self._lock:
            self._open.pop(file, None)

    def close(self, file: "RealFile") -> None:
        with self._lock:
            taken = self._take(file)
        del taken

    def _take(self, file: "RealFile") -> Descriptor | None:
        """Take the descriptor out of a file. The caller has the lock, and drops the descriptor outside of it."""
        self._open.pop(file, None)
        descriptor, file.descriptor = file.descriptor, None
        return descriptor


class RealFile:
    """One append-only file of a `RealDisk`. A file with unflushed writes keeps its descriptor.

    One thread at a time may append; any thread may read or sync.
    """

    def __init__(self, path: Path, open_files: OpenFiles, descriptor: Descriptor) -> None:
        self._path = path
        self._open_files = open_files
        self._is_released = False
        self._fence: int | None = None
        self._changes = 0
        self._synced_changes = 0
        self.descriptor: Descriptor | None = None
        """Set by `OpenFiles` only."""
        open_files.add(self, descriptor)
        self._size = os.fstat(descriptor.number).st_size

    @property
    def size(self) -> int:
        return self._size

    @property
    def evictable(self) -> bool:
        return self._changes == self._synced_changes

    def read(self, position: int, length: int) -> bytes:
        with _StorageErrors(self._path):
            descriptor = self._opened()
            content = os.pread(descriptor.number, length, position)
            while len(content) < min(length, self._size - position):  # The rest may be where the disk fails.
                more = os.pread(descriptor.number, length - len(content), position + len(content))
                if not more:
                    break  # The file was cut, by this process or by another.
                content += more
        self._check_fence(position + length)
        return content

    def read_cached(self, position: int, length: int) -> Bytes:
        if _CACHED_ONLY is None:
            return self.read(position, length)
        content = bytearray(length)
        with _StorageErrors(self._path):
            try:
                count = os.preadv(self._opened().number, [content], position, _CACHED_ONLY)
            except BlockingIOError:
                return b""
            except OSError as error:
                if error.errno != errno.EOPNOTSUPP:
                    raise
                return self.read(position, length)
        self._check_fence(position + length)
        return content if count == length else memoryview(content)[:count]

    def append(self, buffers: Sequence[Bytes]) -> None:
        with _StorageErrors(self._path), self._changing() as descriptor:
            try:
                self._size += _write_all(descriptor.number, buffers)
            except OSError:
                with contextlib.suppress(OSError):
                    os.ftruncate(descriptor.number, self._size)
                raise

    def truncate(self, size: int) -> None:
        with _StorageErrors(self._path), self._changing() as descriptor:
            os.ftruncate(descriptor.number, size)
            self._size = size

    def sync(self) -> None:
        descriptor, mark = self.begin_sync()
        with _lost_writes(self._path):
            os.fdatasync(descriptor.number)
        self.end_sync(mark)

    def reload(self) -> None:
        """See `conveyor.kernel.ports.File`. The kernel drops all pages of the file, because none is dirty or mapped. A
        system without `posix_fadvise` keeps them.
        """
        self.sync()
        if hasattr(os, "posix_fadvise"):
            with _StorageErrors(self._path):
                os.posix_fadvise(self._opened().number, 0, 0, os.POSIX_FADV_DONTNEED)

    def begin_sync(self) -> tuple[Descriptor, int]:
        """Return the descriptor to sync, and a mark for `end_sync`. Raises StorageFailure."""
        mark = self._changes
        with _StorageErrors(self._path):
            return self._opened(), mark

    def end_sync(self, mark: int, error: int = 0) -> None:
        """Record that everything appended before the mark is durable. error: the errno of a failed sync, which
        raises StorageFailure.
        """
        with _lost_writes(self._path):
            if error:
                raise OSError(error, os.strerror(error))
        self._synced_changes = max(self._synced_changes, mark)

    def detach(self) -> None:
        with _StorageErrors(self._path):
            self._open_files.detach(self, self._opened())

    def fence(self, size: int) -> None:
        """See `conveyor.kernel.ports.File`. A read checks the fence when it has its bytes: if there was none yet, the
        bytes are from before the cut.
        """
        self.detach()
        self._fence = size

    def release(self) -> None:
        self._is_released = True
        self._open_files.remove(self)

    def close(self) -> None:
        self._open_files.close(self)

    def _check_fence(self, end: int) -> None:
        if self._fence is not None and end > self._fence:
            raise ReadLater(f"{self._path}: the records beyond {self._fence} were truncated")

    def _opened(self) -> Descriptor:
        """Return the descriptor, opened on demand. The caller must hold it while it uses the number.

        Raises OSError; ReadLater after `release`.
        """
        descriptor = self.descriptor
        if descriptor is None:
            self._check_released()
            opened = self._open_files.descriptor(self._path, _FLAGS)
            self._check_released()  # The name may have led to another log's file by then.
            descriptor = self._open_files.add(self, opened)
        return descriptor

    def _check_released(self) -> None:
        if self._is_released:
            raise ReadLater(f"{self._path} no longer belongs to this log")

    @contextlib.contextmanager
    def _changing(self) -> Iterator[Descriptor]:
        """Count a change before and after it, because a sync that begins meanwhile may not cover it."""
        descriptor = self._opened()
        self._changes += 1
        try:
            yield descriptor
        finally:
            self._changes += 1


class RealDirectory:
    """Files by their paths below a root, or the files of one directory that is held open and may be renamed.

    held: that directory's path below the root, and its descriptor. See `conveyor.kernel.ports.Directory`. Any thread
    may use it.
    """

    def __init__(self, root: Path, open_files: OpenFiles, held: tuple[str, Descriptor] | None = None) -> None:
        self._root = root
        self._open_files = open_files
        self._held = held
        self._dir_fd = None if held is None else held[1].number

    def open(self, path: str, *, create: bool = False) -> RealFile:
        with _StorageErrors(self._root / path):
            flags = _FLAGS | os.O_CREAT if create else _FLAGS
            descriptor = self._open_files.descriptor(self._name(path), flags, self._dir_fd)
            return RealFile(self._root / path, self._open_files, descriptor)

    def exists(self, path: str) -> bool:
        with _StorageErrors(self._root / path):  # What cannot be looked up is not missing.
            try:
                os.stat(self._name(path), dir_fd=self._dir_fd)
            except (FileNotFoundError, NotADirectoryError):
                return False
            return True

    def list(self, directory: str) -> list[str]:
        with _StorageErrors(self._root / directory):
            try:
                return sorted(os.listdir(self._root / directory if self._dir_fd is None else self._dir_fd))
            except FileNotFoundError:
                return []

    def read(self, path: str) -> bytes:
        with _StorageErrors(self._root / path), os.fdopen(self._opened(path, os.O_RDONLY), "rb") as file:
            return file.read()

    def write_atomic(self, path: str, content: bytes) -> None:
        with _StorageErrors(self._root / path), self._open_files.replacement(path) as replacement:
            with self._new_file(replacement) as descriptor:
                _write_all(descriptor, [content])
                os.fsync(descriptor)
            self._rename(replacement, path)
            self._sync(path.rpartition("/")[0])

    def remove(self, path: str) -> None:
        with _StorageErrors(self._root / path), contextlib.suppress(FileNotFoundError):
            os.unlink(self._name(path), dir_fd=self._dir_fd)

    def rename(self, old: str, new: str) -> None:
        with _StorageErrors(self._root / old):
            self._rename(old, new)

    def sync_directory(self, path: str) -> None:
        with _StorageErrors(self._root / path):
            self._sync(path)
            self._sync(f"{path}/..")

    def _name(self, path: str) -> str | Path:
        if self._held is None:
            return self._root / path
        directory = self._held[0]
        assert path == directory or path.startswith(f"{directory}/"), f"{path} is not in {directory}"
        return path[len(directory) + 1 :] or "."

    def _opened(self, path: str, flags: int) -> int:
        return os.open(self._name(path), flags | os.O_CLOEXEC, 0o644, dir_fd=self._dir_fd)

    @contextlib.contextmanager
    def _new_file(self, path: str) -> Iterator[int]:
        """Yield the descriptor of a new empty file. The file is removed if writing it fails, because a partial file
        only takes up space.
        """
        descriptor = self._opened(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        try:
            yield descriptor
        except OSError:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._name(path), dir_fd=self._dir_fd)
            raise
        finally:
            os.close(descriptor)

    def _rename(self, old: str, new: str) -> None:
        os.replace(self._name(old), self._name(new), src_dir_fd=self._dir_fd, dst_dir_fd=self._dir_fd)

    def _sync(self, path: str) -> None:
        descriptor = self._opened(path, _DIRECTORY_FLAGS)
        try:
            with _lost_writes(self._root / path):
                os.fsync(descriptor)
        finally:
            os.close(descriptor)


class RealDisk(RealDirectory):
    """A directory of the local file system. See `conveyor.kernel.ports.Disk`. Any thread may use it."""

    def __init__(self, root: Path, max_open_files: int) -> None:
        super().__init__(root, OpenFiles(max_open_files))

    def allocate(self, path: str, size: int) -> None:
        with _StorageErrors(self._root / path), self._new_file(path) as descriptor:
            try:
                os.posix_fallocate(descriptor, 0, size)
            except OSError as error:
                if error.errno not in _NO_FALLOCATE:
                    raise
                _write_all(descriptor, [bytes(size)])

    def hold(self, directory: str) -> RealDirectory:
        with _StorageErrors(self._root / directory):
            descriptor = self._open_files.descriptor(self._root / directory, _DIRECTORY_FLAGS)
        return RealDirectory(self._root, self._open_files, (directory, descriptor))

    def make_directory(self, path: str) -> None:
        with _StorageErrors(self._root / path):
            parent = path.rpartition("/")[0]
            if parent and not (self._root / parent).exists():
                self.make_directory(parent)
                self._sync(f"{parent}/..")
            (self._root / path).mkdir(exist_ok=True)

    def remove_tree(self, path: str) -> None:
        with _StorageErrors(self._root / path):
            try:
                _remove_tree(self._root / path)
            except OSError as error:
                if error.errno != errno.ENOTEMPTY:
                    raise
                _remove_tree(self._root / path)  # A file was renamed meanwhile.

    def volume(self, path: str) -> Volume:
        with _StorageErrors(self._root / path):
            usage = shutil.disk_usage(self._root)
            return Volume(str((self._root / path).resolve()), usage.total, usage.free)


def _remove_tree(path: Path) -> None:
    """Remove a directory. Files that another thread removes or renames meanwhile are passed over. Raises OSError."""

    def pass_over_missing(_function: object, _path: str, error: BaseException) -> None:
        if not isinstance(error, FileNotFoundError):
            raise error

    if sys.version_info >= (3, 12):
        shutil.rmtree(path, onexc=pass_over_missing)
    else:
        shutil.rmtree(path, onerror=lambda function, name, failure: pass_over_missing(function, name, failure[1]))


def _write_all(descriptor: int, buffers: Sequence[Bytes]) -> int:
    """Write all buffers, with as many system calls as needed. Raises OSError."""
    total = sum(map(len, buffers))
    if total <= _SMALL_WRITE_BYTES:
        _finish(descriptor, b"".join(buffers))
        return total
    for start in range(0, len(buffers), _MAX_BUFFERS):
        part = buffers[start : start + _MAX_BUFFERS]
        written = os.writev(descriptor, part)
        if written < sum(map(len, part)):
            _finish(descriptor, b"".join(part)[written:])
    return total


def _finish(descriptor: int, content: bytes) -> None:
    view = memoryview(content)
    while view:
        view = view[os.write(descriptor, view) :]


class _StorageErrors:
    """Raises StorageFailure for an OSError. A generator would take three times as long, for each read."""

    __slots__ = ("_path",)

    def __init__(self, path: Path) -> None:
        self._path = path

    def __enter__(self) -> None:
        pass

    def __exit__(self, _kind: object, error: BaseException | None, _traceback: object) -> None:
        if isinstance(error, OSError):
            kind = _KINDS.get(error.errno or 0, StorageFailure)
            raise kind(f"{self._path}: {error.strerror or error}") from error


@contextlib.contextmanager
def _lost_writes(path: Path) -> Iterator[None]:
    """A failed sync, whatever its errno, is a StorageFailure: the kernel may have dropped the written pages while
    it still shows them.
    """
    try:
        yield
    except OSError as error:
        raise StorageFailure(f"{path}: {error.strerror or error}") from error
