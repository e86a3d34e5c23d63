"""The faults that a test injects into a disk in memory, also the one that it is full."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from conveyor.kernel.errors import DiskFull, OutOfFiles, StorageFailure


class DiskFaults:
    """The faults of one disk, and its free space. free_bytes: removed files add to it; None for no limit.

    `fail(operation)` makes an operation fail from now on: open, read, append, truncate, sync, rename, write_atomic,
    sync_directory. `heal()` ends that.
    `drops_writes`: the disk is full only when it writes back, as on thin volumes: a sync fails with DiskFull, and what
    it did not write is gone.
    `out_of_files` makes all operations that open a file fail with OutOfFiles: open, read and write_atomic.
    """

    def __init__(self, free_bytes: int | None) -> None:
        self.free_bytes = free_bytes
        self.total_bytes = -1 if free_bytes is None else free_bytes
        self.out_of_files = self.drops_writes = False
        self._failing: set[str] = set()
        self._countdown: tuple[int, Callable[[], None]] | None = None

    def fail(self, operation: str) -> None:
        self._failing.add(operation)

    def heal(self) -> None:
        self._failing.clear()
        self.free_bytes = None
        self.out_of_files = self.drops_writes = False

    def is_failing(self, operation: str) -> bool:
        return operation in self._failing

    @property
    def is_sound(self) -> bool:
        """True if all operations succeed."""
        has_faults = self._failing or self.out_of_files or self.drops_writes or self._countdown
        return not has_faults and self.free_bytes is None

    def call_after(self, operations: int, callback: Callable[[], None]) -> None:
        """Call back after this many operations, and fail all later ones."""
        self._countdown = (operations, callback)

    @contextmanager
    def observed(self) -> Iterator[None]:
        """Let a check of a test read files: it meets no fault, and does not count as an operation."""
        faults, self._failing, countdown, self._countdown = self._failing, set(), self._countdown, None
        try:
            yield
        finally:
            self._failing, self._countdown = faults, countdown

    def check(self, operation: str, path: str) -> None:
        """Raise the failure of an operation that is about to begin, if it is to fail."""
        if self._countdown is not None:
            self._count_down(path)
        if self.out_of_files and operation in ("open", "read", "write_atomic"):
            raise OutOfFiles(f"{path}: Too many open files")
        if self.drops_writes and operation == "sync":
            raise DiskFull(f"{path}: No space left on device")
        if operation in self._failing:
            raise StorageFailure(f"{path}: {operation} failed")

    def _count_down(self, path: str) -> None:
        assert self._countdown is not None
        remaining, callback = self._countdown
        if remaining == 0:
            callback()
        self._countdown = (remaining - 1, callback)
        if remaining <= 0:
            raise StorageFailure(f"{path}: the machine has no power")

    def copy(self) -> "DiskFaults":
        """Return the faults that the next process meets, too."""
        copy = DiskFaults(self.free_bytes)
        copy._failing = set(self._failing)
        return copy

    def use_space(self, size: int, path: str) -> None:
        if self.free_bytes is not None:
            if size > self.free_bytes:
                raise DiskFull(f"{path}: No space left on device")
            self.free_bytes -= size

    def free_space(self, size: int) -> None:
        if self.free_bytes is not None:
            self.free_bytes += size
