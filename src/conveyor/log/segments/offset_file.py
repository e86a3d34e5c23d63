"""A file with one offset, as a decimal number; see `checked_file`.

log-start-offset   the log start offset, if it is not the first segment's base offset, or if old files may still exist
cleaned-offset     everything below it has been compacted, so offsets may be missing there
gap-offset         below it, the records were or will be copied from a leader that had compacted them: offsets may be
                   missing there, although this broker has not compacted them
removed-offset     compaction has removed tombstones and markers only below it, here or where this log was copied from
lacking-offset     recovery has removed complete batches from there on: the log lacks them as long as it ends there

Offsets at or above `cleaned-offset` and `gap-offset` are never missing. The second file is not the first: compaction
skips what it has processed, and here it must still process all of it.
"""

import msgspec

from conveyor.kernel.errors import StorageFailure
from conveyor.kernel.ports import Directory
from conveyor.log.checked_file import read_checked, write_checked

LOG_START = "log-start-offset"
CLEANED = "cleaned-offset"
GAPS = "gap-offset"
REMOVED = "removed-offset"
LACKING = "lacking-offset"


def write_offset(disk: Directory, directory: str, name: str, offset: int) -> None:
    """Write the file atomically. Blocks. Raises StorageFailure."""
    write_checked(disk, f"{directory}/{name}", b"%d" % offset)


class GapsJob(msgspec.Struct, frozen=True):
    """Makes a new gap offset durable, and the end of removed tombstones, before records that lack them are written."""

    disk: Directory
    directory: str
    offset: int
    removed_end_offset: int

    def run(self) -> None:
        """Write the files. Blocks. Raises StorageFailure."""
        if self.removed_end_offset:
            write_offset(self.disk, self.directory, REMOVED, self.removed_end_offset)
        write_offset(self.disk, self.directory, GAPS, self.offset)


def read_offset(disk: Directory, directory: str, name: str) -> int:
    """Return the offset, or 0 if the file does not exist. Raises StorageFailure."""
    path = f"{directory}/{name}"
    if not disk.exists(path):
        return 0
    text = read_checked(disk, path)
    if not text.isdigit():
        raise StorageFailure(f"{path} does not contain an offset: {text[:40]!r}")
    return int(text)
