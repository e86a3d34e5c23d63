"""A disk whose fsyncs take as long as a test wants."""

from threading import Event

from conveyor.testing import MemoryDisk


class HeldDisk(MemoryDisk):
    """While `hold_syncs` is in force, a sync waits for `release`."""

    def __init__(self) -> None:
        super().__init__()
        self._released = Event()
        self._released.set()

    def hold_syncs(self) -> None:
        self._released.clear()

    def release(self) -> None:
        self._released.set()

    def check(self, operation: str, path: str) -> None:
        if operation == "sync":
            assert self._released.wait(20), "nobody has released the disk"
        super().check(operation, path)
