"""Creates and checks the data directory, and locks it against a second broker."""

import errno
import fcntl
import os
from pathlib import Path
from typing import IO

from conveyor.kernel.errors import StartupError

LOCK_NAME = ".lock"
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT)


class DataDirectory:
    """A directory that belongs to this process until `release`. Raises StartupError if it cannot be used."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            path.mkdir(parents=True, exist_ok=True)
            self._lock = (path / LOCK_NAME).open("a+")
        except FileExistsError as error:
            raise StartupError(f"data directory {path} is a file: choose another with --data-dir") from error
        except OSError as error:
            change = "free some space" if error.errno in _NO_ROOM else "change its permissions"
            raise StartupError(
                f"data directory {path} is not writable ({error.strerror}): {change}, or choose another with --data-dir"
            ) from error
        _take(self._lock, path)

    def release(self) -> None:
        self._lock.close()


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
