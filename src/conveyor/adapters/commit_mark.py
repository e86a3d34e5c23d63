"""A file beside a store's file that says how many commits the store has had at least.

    metadata.commits    00000000000000000042 5d3b1f0e    see `checked_file`

SQLite passes over its write-ahead log from the first damaged frame on, and an older copy of a file looks like any
other, so that commits would be missing without a word. A store that counts its commits and shows fewer than this file
does is not the one that was used last.

The file is written after each commit, in place, and not synced: after a power failure it may say less than was
committed, and never says more.
"""

import contextlib
import os
from pathlib import Path

from conveyor.adapters.disk import RealDisk
from conveyor.kernel.errors import LogDamaged, StorageFailure
from conveyor.log.checked_file import checked, read_checked

_DIGITS = 20


class CommitMark:
    """See the module's docstring. Every method blocks.

    store: the path of the store's file. found: the commits that it shows. Raises StorageFailure if they are too few, or
    if the file of the mark cannot be used.
    """

    def __init__(self, store: Path, found: int) -> None:
        path = store.with_suffix(".commits")
        disk = RealDisk(path.parent, max_open_files=1)
        if not disk.exists(path.name):
            disk.write_atomic(path.name, _line(found))
        try:
            marked = int(read_checked(disk, path.name))
        except (LogDamaged, ValueError) as error:
            raise StorageFailure(
                f"{path} is damaged: restore it with {store.name} as they were last, or, if {store.name} is the file"
                " that was used last, remove the damaged one to have it made again"
            ) from error
        if found < marked:
            raise StorageFailure(
                f"{store} shows {found} commits and has had {marked}: it is an older copy, or damaged. Restore it with"
                f" its -wal file as they were last; if they are lost, remove {path} to start without the later commits"
            )
        try:
            self._descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
        except OSError as error:
            raise StorageFailure(f"{path}: {error.strerror}") from error

    def write(self, count: int) -> None:
        """The store has had so many commits. Raises StorageFailure."""
        try:
            os.pwrite(self._descriptor, _line(count), 0)
        except OSError as error:
            raise StorageFailure(f"metadata store: its commits are not counted: {error.strerror}") from error

    def close(self) -> None:
        with contextlib.suppress(OSError):
            os.close(self._descriptor)


def _line(count: int) -> bytes:
    return checked(b"%0*d" % (_DIGITS, count))
