"""Measures the free space of the broker's disk, and decides which requests to refuse when it is low.

    usable bytes     >= min_free_bytes     all requests are served
                     <  min_free_bytes     producers are refused (DISK_FULL); deletions and settlements continue
                     <  the reserve        the reserve's file is removed; its space is for deletions and settlements

The reserve is an empty file with allocated space, `<data-dir>/reserve`. It is created again once it fits above
`min_free_bytes`; until then producers are refused.

A write may fail although the disk has free space: it was too large, or a quota of the system is exhausted. Producers
are then refused until the free space has grown by `min_free_bytes`, or until `forget_full`.

Callers: `measure` off the loop, one call at a time; everything else from the loop.
"""

import logging

from conveyor.kernel.errors import DiskFull
from conveyor.kernel.ports import Disk, Volume
from conveyor.settings.tree import DiskSettings

log = logging.getLogger(__name__)

RESERVE = "reserve"

_MIN_FREE_BYTES = 100 << 20
_RESERVE_BYTES = 8 << 20
_BYTES_PER_INDEX_BYTE = 128
"""The least number of log bytes for each index byte; with the default `index.interval.bytes` it is 200."""
_SMALL_FILES_BYTES = 64 << 10
_LARGEST_PARTS = 20, 50
"""The largest parts of a small disk to keep free and to reserve: a twentieth and a fiftieth."""


class DiskRoom:
    """See the module's docstring. usable_bytes: at the last measurement; None if the disk does not report it.

    is_low: producers must be refused.
    """

    def __init__(self, disk: Disk, settings: DiskSettings) -> None:
        self.usable_bytes: int | None = None
        self.min_free_bytes = 0
        self.is_low = False
        self._disk = disk
        self._settings = settings
        self._needed_bytes = 0
        self._has_found_full = False
        self._wanted_bytes: int | None = None
        """The free space to wait for after a write has found the disk full."""

    def measure(self) -> None:
        """Measure the free space; remove or create the reserve. Blocks. Raises StorageFailure."""
        volume = self._disk.volume(".")
        if volume.usable_bytes < 0:
            self.usable_bytes = None
            self.forget_full()
            return self._decide(is_low=False)
        self.min_free_bytes, reserve_bytes = self._limits(volume)
        has_reserve = self._disk.exists(RESERVE)
        if has_reserve and volume.usable_bytes < reserve_bytes:
            self._disk.remove(RESERVE)
            has_reserve = False
            log.warning("disk reserve released bytes=%d usable_bytes=%d", reserve_bytes, volume.usable_bytes)
        elif not has_reserve and volume.usable_bytes >= self.min_free_bytes + reserve_bytes:
            has_reserve = self._make_reserve(reserve_bytes)
        usable_bytes = self.usable_bytes = self._disk.volume(".").usable_bytes
        if self._has_found_full and self._wanted_bytes is None:
            self._wanted_bytes = usable_bytes + max(self.min_free_bytes, reserve_bytes)
        missing_bytes = 0 if has_reserve else reserve_bytes
        self._needed_bytes = max(self.min_free_bytes + missing_bytes, self._wanted_bytes or 0)
        if usable_bytes >= self._needed_bytes:
            self.forget_full()
        self._decide(is_low=usable_bytes < self._needed_bytes or not has_reserve)

    def volume(self, path: str) -> Volume:
        """Return the volume of a directory below the data directory. Raises StorageFailure."""
        return self._disk.volume(path)

    def found_full(self) -> None:
        """Refuse producers until space is available again: a write has found the disk full."""
        self._has_found_full, self._wanted_bytes = True, None
        self._decide(is_low=True)

    def forget_full(self) -> None:
        """Forget earlier full writes, so that only the next measurement decides."""
        self._has_found_full, self._wanted_bytes = False, None

    def has_room_for_indexes(self, segment_bytes: int) -> bool:
        """Return whether the disk has space for the index files and writes that closing such a segment needs."""
        return (
            self.usable_bytes is None or self.usable_bytes > segment_bytes // _BYTES_PER_INDEX_BYTE + _SMALL_FILES_BYTES
        )

    @property
    def explanation(self) -> str:
        """Return why producers are refused, and how to resolve it."""
        if self.usable_bytes is None:
            return "the broker's disk is full: free some space, or shorten the retention of topics"
        return (
            f"the broker's disk has {self.usable_bytes} bytes free, and accepts records from {self._needed_bytes}"
            f" (disk.min_free_bytes is {self.min_free_bytes}): free some space, or shorten the retention of topics"
        )

    def _limits(self, volume: Volume) -> tuple[int, int]:
        """Return the bytes to keep free, and the bytes to reserve."""
        part, reserved_part = (volume.total_bytes // divisor for divisor in _LARGEST_PARTS)
        wanted = self._settings.min_free_bytes
        return min(_MIN_FREE_BYTES, part) if wanted < 0 else wanted, min(_RESERVE_BYTES, reserved_part)

    def _make_reserve(self, size_bytes: int) -> bool:
        try:
            self._disk.allocate(RESERVE, size_bytes)
        except DiskFull:
            return False
        return True

    def _decide(self, *, is_low: bool) -> None:
        if is_low and not self.is_low:
            log.warning("disk low usable_bytes=%s min_free_bytes=%d", self.usable_bytes, self.min_free_bytes)
        elif self.is_low and not is_low:
            log.info("disk has room again usable_bytes=%s", self.usable_bytes)
        self.is_low = is_low
