"""The log start offset as a file, `log-start-offset`: a decimal number and a line feed.

It is there as soon as a log does not start where its first segment does, or segments were dropped whose files may not
be gone yet. A log without it starts with its first segment.
"""

from conveyor.kernel.errors import StorageFailure
from conveyor.kernel.ports import Disk

NAME = "log-start-offset"


def write_start_offset(disk: Disk, directory: str, offset: int) -> None:
    """Blocks. Raises StorageFailure."""
    disk.write_atomic(f"{directory}/{NAME}", b"%d\n" % offset)


def read_start_offset(disk: Disk, directory: str) -> int:
    """The offset, or 0 where no file is. Raises StorageFailure."""
    path = f"{directory}/{NAME}"
    if not disk.exists(path):
        return 0
    content = disk.read(path).strip()
    if not content.isdigit():
        raise StorageFailure(f"{path} holds no offset: {content[:40]!r}")
    return int(content)
