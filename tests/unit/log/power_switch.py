"""A disk that stops in the middle of what it is doing."""

from conveyor.kernel.errors import StorageFailure
from conveyor.testing import MemoryDisk


class PowerSwitch:
    """Makes every operation of a disk fail once so many of them have been carried out."""

    def __init__(self, disk: MemoryDisk, operations: int) -> None:
        self._disk = disk
        self._left = operations

    def __enter__(self) -> None:
        self._disk.check = self._check  # type: ignore[method-assign]

    def __exit__(self, *_: object) -> None:
        del self._disk.check

    def _check(self, operation: str, path: str) -> None:
        self._left -= 1
        if self._left < 0:
            raise StorageFailure(f"{path}: {operation} was interrupted")
