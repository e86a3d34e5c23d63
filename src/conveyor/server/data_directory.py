"""Creates and checks the data directory, and locks it against a second broker.

A new directory is open to this user only: it holds messages, and the metadata with the secret of the cluster. Its
name is durable before the broker uses it: a flush of a file does not cover the names of the directories above the file.
"""

import errno
import fcntl
import logging
import os
from pathlib import Path
from typing import IO

from conveyor.adapters.disk import RealDisk
from conveyor.kernel.errors import StartupError

log = logging.getLogger(__name__)

LOCK_NAME = ".lock"
METADATA_NAME = "metadata.sqlite"
SHARED_METADATA_NAME = "workers.sqlite"
"""The metadata of the workers of one machine. Another name, so that no single broker takes it for its own."""
CLUSTER_NAME = "cluster.id"
"""A directory whose metadata is not embedded has this file: the id of its cluster."""
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT)
_NO_SYNC = (errno.EACCES, errno.EPERM, errno.EINVAL, errno.EROFS)
_ONLY_THIS_USER = 0o700
_OTHER_USERS = 0o077


class DataDirectory:
    """A directory that belongs to this process until `release`. Raises StartupError if it cannot be used."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            _make(path)
            mode = path.stat().st_mode & 0o777
            self._lock = (path / LOCK_NAME).open("a+")
        except FileExistsError as error:
            raise StartupError(f"data directory {path} is a file: choose another with --data-dir") from error
        except OSError as error:
            change = "free some space" if error.errno in _NO_ROOM else "change its permissions"
            raise StartupError(
                f"data directory {path} is not writable ({error.strerror}): {change}, or choose another with --data-dir"
            ) from error
        _take(self._lock, path)
        if mode & _OTHER_USERS:
            log.warning(
                "data directory %s is open to other users of this machine (mode %04o), who may read its messages and"
                " the secret of its cluster: run chmod -R go= on it", path, mode,
            )  # fmt: skip

    def lock_id(self, boot_id: str) -> str:
        """Return the identity of the lock: another process that held the same one has ended, or lost it."""
        status = os.fstat(self._lock.fileno())
        return f"{boot_id} {status.st_dev} {status.st_ino}"

    def check_embedded_metadata(self) -> Path:
        """Return the file of the embedded metadata store. Raises StartupError if the metadata is elsewhere."""
        self._check_no_workers("start with --workers")
        if (self.path.parent / SHARED_METADATA_NAME).exists() and (self.path / CLUSTER_NAME).exists():
            raise StartupError(
                f"data directory {self.path} belongs to one of the workers of {self.path.parent}: start them all with"
                f" --workers and --data-dir {self.path.parent}, or choose another directory with --data-dir"
            )
        if (self.path / CLUSTER_NAME).exists():
            raise StartupError(
                f"data directory {self.path} belongs to a cluster whose metadata is in a ZooKeeper: start with its"
                " address as --metadata, or choose another directory with --data-dir"
            )
        return self.path / METADATA_NAME

    def check_shared_metadata(self) -> None:
        """Refuse a directory with embedded metadata, whose topics another store does not know. Raises StartupError."""
        self._check_no_workers("start with --workers and without --metadata")
        if (self.path / METADATA_NAME).exists():
            raise StartupError(
                f"data directory {self.path} has embedded metadata ({METADATA_NAME}), which cannot be moved to a"
                " ZooKeeper: start without --metadata, or choose another directory with --data-dir"
            )

    def check_workers_metadata(self) -> Path:
        """Return the file of the metadata that workers share. Raises StartupError for a directory of one broker."""
        for name, owner in ((METADATA_NAME, "a single broker"), (CLUSTER_NAME, "a broker of a cluster")):
            if (self.path / name).exists():
                raise StartupError(
                    f"data directory {self.path} belongs to {owner}, whose partitions cannot be divided among workers:"
                    " start without --workers, or choose another directory with --data-dir"
                )
        return self.path / SHARED_METADATA_NAME

    def _check_no_workers(self, change: str) -> None:
        if (self.path / SHARED_METADATA_NAME).exists():
            raise StartupError(
                f"data directory {self.path} belongs to several workers, which share its metadata"
                f" ({SHARED_METADATA_NAME}): {change}, or choose another directory with --data-dir"
            )

    def join(self, cluster_id: str) -> None:
        """Note the cluster that this directory belongs to.

        Raises StartupError if it belongs to another one; StorageFailure.
        """
        mark = self.path / CLUSTER_NAME
        own = mark.read_text() if mark.exists() else ""
        if not own:
            RealDisk(self.path, max_open_files=1).write_atomic(CLUSTER_NAME, cluster_id.encode())
        elif own != cluster_id:
            raise StartupError(
                f"data directory {self.path} belongs to cluster {own}, and the metadata to cluster {cluster_id}: check"
                " --metadata, or choose another directory with --data-dir"
            )

    def release(self) -> None:
        self._lock.close()


def holder_of(path: Path) -> str:
    """Return the process id of the broker that uses a directory; empty if there is none."""
    try:
        with (path / LOCK_NAME).open("a+") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                lock.seek(0)
                return lock.read().strip() or "unknown"
    except FileNotFoundError:
        pass
    return ""


def _make(path: Path) -> None:
    """Create the directory and its parents, and make the names of those that were missing durable, and that of the
    directory in any case: its maker may not have done so. Raises OSError.
    """
    missing = [directory for directory in path.parents if not directory.exists()]
    path.mkdir(_ONLY_THIS_USER, parents=True, exist_ok=True)
    for directory in (path, *missing):
        _sync(directory.resolve().parent)


def _sync(directory: Path) -> None:
    """Make the names in a directory durable, unless this user may not open it, or its file system has no sync, as that
    below a mounted volume may have none.
    """
    try:
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except OSError as error:
        if error.errno not in _NO_SYNC:
            raise


def _take(lock: IO[str], path: Path) -> None:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        lock.seek(0)
        holder = lock.read().strip() or "unknown"
        lock.close()
        raise StartupError(
            f"data directory {path} is in use by another broker (process {holder}):"
            " stop it, or choose another directory with --data-dir"
        ) from error
    _write_holder(lock)


def _write_holder(lock: IO[str]) -> None:
    """Write the process id into the lock file, for the error of a second broker. On a full disk it stays empty."""
    try:
        lock.truncate(0)
        os.write(lock.fileno(), str(os.getpid()).encode())
    except OSError as error:
        if error.errno not in _NO_ROOM:
            raise
