"""The removal of a log's start, as a value that a thread can run while the owner continues."""

import msgspec

from conveyor.kernel.errors import DiskFull
from conveyor.kernel.ports import Directory
from conveyor.log.segments.offset_file import LOG_START, write_offset


class TrimJob(msgspec.Struct, frozen=True, kw_only=True):
    """Makes a new log start offset durable, then removes the files below it."""

    disk: Directory
    directory: str
    log_start_offset: int
    removed_paths: tuple[str, ...]

    def run(self) -> None:
        """Execute the removal. Blocks. If a crash interrupts it, the next start finishes it. Raises StorageFailure."""
        try:
            write_offset(self.disk, self.directory, LOG_START, self.log_start_offset)
        except DiskFull:  # Indexes can be rebuilt, so removing them first to free space is safe.
            for path in self.removed_paths:
                if path.endswith("index"):
                    self.disk.remove(path)
            write_offset(self.disk, self.directory, LOG_START, self.log_start_offset)
        for path in self.removed_paths:
            self.disk.remove(path)
        if self.removed_paths:
            self.disk.sync_directory(self.directory)
