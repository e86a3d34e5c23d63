"""Identifies the boot of this machine: what was written before a boot and not synced may be lost."""

from pathlib import Path
from uuid import uuid4

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
"""Linux only."""


def boot_id() -> str:
    """Return the id of the present boot. On a system without one, each call counts as another boot."""
    return _BOOT_ID.read_text().strip() if _BOOT_ID.exists() else str(uuid4())
