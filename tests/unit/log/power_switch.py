"""A disk that stops in the middle of what it is doing."""

from collections.abc import Collection

from conveyor.kernel.errors import StorageFailure
from conveyor.testing import MemoryDisk

SYNCS = ("sync", "sync_directory")


class PowerSwitch:
    """Makes every operation of a disk fail once so many of them have been carried out.

    counted: only these operations count; by default all.
    """

    def __init__(self, disk: MemoryDisk, operations: int, counted: Collection[str] = ()) -> None:
        self._disk = disk
        self._left = operations
        self._counted = counted

    def __enter__(self) -> None:
        self._disk.check = self._check  # type: ignore[method-assign]

    def __exit__(self, *_: object) -> None:
        del self._disk.check

    def _check(self, operation: str, path: str) -> None:
        if not self._counted or operation in self._counted:
            self._left -= 1
        if self._left < 0:
            raise StorageFailure(f"{path}: {operation} was interrupted")
        type(self._disk).check(self._disk, operation, path)
