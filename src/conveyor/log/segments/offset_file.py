"""One offset as a file: a decimal number and a line feed.

log-start-offset   where the log starts, if that is not where its first segment does, or files may not be gone yet
cleaned-offset     compaction has been over everything below it; only there may offsets be missing
"""

from conveyor.kernel.errors import StorageFailure
from conveyor.kernel.ports import Directory

LOG_START = "log-start-offset"
CLEANED = "cleaned-offset"


def write_offset(disk: Directory, directory: str, name: str, offset: int) -> None:
    """Blocks. Raises StorageFailure."""
    disk.write_atomic(f"{directory}/{name}", b"%d\n" % offset)


def read_offset(disk: Directory, directory: str, name: str) -> int:
    """The offset, or 0 where no file is. Raises StorageFailure."""
    path = f"{directory}/{name}"
    if not disk.exists(path):
        return 0
    content = disk.read(path).strip()
    if not content.isdigit():
        raise StorageFailure(f"{path} holds no offset: {content[:40]!r}")
    return int(content)
