"""Identifies the page cache under a directory: while it is the same, what was written and not synced is still there.

A boot ends every page cache; the end of a mount, or of the device below it, ends that of one file system. No call tells
which mount a file is on: the number of a device is used again, and the id of a mount belongs to one container. But the
kernel shows each mounted file system and each attached device as a directory of sysfs, which gets a new inode number
whenever it is made. Where sysfs has none, as for btrfs, NFS and tmpfs, the device number stands alone.
"""

import os
from collections.abc import Iterator
from pathlib import Path

_SYSFS = Path("/sys")
_LOGS = "logs"


def page_cache_id(boot_id: str, directory: Path, sysfs: Path = _SYSFS) -> str:
    """Return the identity of the page cache under a data directory, and under its logs, which may be another mount."""
    places = (place for place in (directory, directory / _LOGS) if place.exists())
    devices = sorted({place.stat().st_dev for place in places})
    return " ".join([boot_id, *(_device_id(device, sysfs) for device in devices)])


def _device_id(device: int, sysfs: Path) -> str:
    number = f"{os.major(device)}:{os.minor(device)}"
    nodes = _nodes(sysfs, number)
    return "/".join([number, *(str(node.stat().st_ino) for node in nodes)])


def _nodes(sysfs: Path, number: str) -> Iterator[Path]:
    """Yield the directories of the device, and of the file system on it."""
    block = sysfs / "dev" / "block" / number
    if block.exists():
        yield block
        yield from sorted((sysfs / "fs").glob(f"*/{block.resolve().name}"))
