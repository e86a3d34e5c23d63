"""A disk that is soon full: the memory disk, and a file system of its own where the tests run as root."""

import contextlib
import os
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

from conveyor.testing import Broker, MemoryDisk

SIZE_BYTES = 8 << 20
FILLER = "filler"
_BLOCK_BYTES = 4096


class MountedDisk:
    """A tmpfs. All that lies on it besides the broker's files is the filler."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def broker(self, settings: Mapping[str, object]) -> Broker:
        return Broker(self.path / "data", settings=settings)

    def fill(self, but_bytes: int = 0) -> None:
        """Take all the room but so much, as another program would."""
        with (self.path / FILLER).open("ab", buffering=0) as file, contextlib.suppress(OSError):
            while self.free_bytes > but_bytes:
                file.write(bytes(_BLOCK_BYTES))

    def free(self) -> None:
        """Give the room back."""
        (self.path / FILLER).unlink()

    def remove_reserve(self) -> None:
        (self.path / "data" / "reserve").unlink(missing_ok=True)

    @property
    def free_bytes(self) -> int:
        volume = os.statvfs(self.path)
        return volume.f_bavail * volume.f_frsize


class FilledMemoryDisk:
    """The memory disk, which fails as a full one does."""

    def __init__(self) -> None:
        self.disk = MemoryDisk(free_bytes=SIZE_BYTES)

    def broker(self, settings: Mapping[str, object]) -> Broker:
        return Broker(disk=self.disk, settings=settings)

    def fill(self, but_bytes: int = 0) -> None:
        self.free()
        self.disk.allocate(FILLER, (self.disk.faults.free_bytes or 0) - but_bytes)

    def free(self) -> None:
        self.disk.remove(FILLER)

    def remove_reserve(self) -> None:
        self.disk.remove("reserve")


SmallDisk = MountedDisk | FilledMemoryDisk
KINDS = ("memory", "mounted") if os.geteuid() == 0 else ("memory",)


@contextlib.contextmanager
def small_disk(kind: str, path: Path) -> Iterator[SmallDisk]:
    """A disk of SIZE_BYTES, gone at the end. kind: of KINDS."""
    if kind == "memory":
        yield FilledMemoryDisk()
        return
    with mounted_disk(path) as mounted:
        yield mounted


@contextlib.contextmanager
def mounted_disk(path: Path) -> Iterator[MountedDisk]:
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={SIZE_BYTES}", "conveyor-test", str(path)], check=True)
    try:
        yield MountedDisk(path)
    finally:
        subprocess.run(["umount", "--lazy", str(path)], check=True)
