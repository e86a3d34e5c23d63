"""Removing the start of a log, as a value that a thread can run while the owner goes on."""

from dataclasses import dataclass

from conveyor.kernel.errors import DiskFull
from conveyor.kernel.ports import Directory
from conveyor.log.segments.offset_file import LOG_START, write_offset


@dataclass(frozen=True, slots=True, kw_only=True)
class TrimJob:
    """Make a new log start offset durable, then remove the files that the log no longer has."""

    disk: Directory
    directory: str
    log_start_offset: int
    doomed_paths: tuple[str, ...]

    def run(self) -> None:
        """Blocks. The next start finishes what a crash interrupts. Raises StorageFailure."""
        try:
            write_offset(self.disk, self.directory, LOG_START, self.log_start_offset)
        except DiskFull:  # Indexes can be made anew, so they may go before the offset is written.
            for path in self.doomed_paths:
                if path.endswith("index"):
                    self.disk.remove(path)
            write_offset(self.disk, self.directory, LOG_START, self.log_start_offset)
        for path in self.doomed_paths:
            self.disk.remove(path)
        if self.doomed_paths:
            self.disk.sync_directory(self.directory)
