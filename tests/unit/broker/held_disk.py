"""A disk whose fsyncs last until the test releases them."""

from threading import Event

from conveyor.testing import MemoryDisk


class HeldDisk(MemoryDisk):
    """While `hold_syncs` is set, a sync waits for `release`."""

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
            assert self._released.wait(20), "the disk was not released"
        super().check(operation, path)
