"""A file with one offset: a decimal number and a line feed.

log-start-offset   the log start offset, if it is not the first segment's base offset, or if old files may still exist
cleaned-offset     everything below it has been compacted; only there may offsets be missing
"""

from conveyor.kernel.errors import StorageFailure
from conveyor.kernel.ports import Directory

LOG_START = "log-start-offset"
CLEANED = "cleaned-offset"


def write_offset(disk: Directory, directory: str, name: str, offset: int) -> None:
    """Write the file atomically. Blocks. Raises StorageFailure."""
    disk.write_atomic(f"{directory}/{name}", b"%d\n" % offset)


def read_offset(disk: Directory, directory: str, name: str) -> int:
    """Return the offset, or 0 if the file does not exist. Raises StorageFailure."""
    path = f"{directory}/{name}"
    if not disk.exists(path):
        return 0
    content = disk.read(path).strip()
    if not content.isdigit():
        raise StorageFailure(f"{path} does not contain an offset: {content[:40]!r}")
    return int(content)
