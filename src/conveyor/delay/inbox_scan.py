"""Scans an inbox batch by batch and passes the due times of its records to the forwarder's machine."""

from collections.abc import Callable

from conveyor.delay.forwarding import Forwarding
from conveyor.delay.forwarding_scan import DueRun, scan_due
from conveyor.log.record_source import MessageSource, StillPacked, takes_long_to_look_at
from conveyor.records.batch import COMPRESSION_MASK, BatchHeader
from conveyor.records.compression import MAX_UNPACKED_BYTES
from conveyor.records.record import UnreadableBatch

_PACKED_AT_ONCE = 8


class InboxScan:
    """See the module's docstring.

    loaded_offset: the inbox's end offset when it was opened; all records forwarded before are below it. honours_delay:
    set while the topic has `delay.enable`.
    """

    def __init__(
        self, source: MessageSource, machine: Forwarding, loaded_offset: int, honours_delay: Callable[[], bool]
    ) -> None:
        self._source = source
        self._machine = machine
        self._loaded_offset = loaded_offset
        self._honours_delay = honours_delay

    def advance(self, limit_offset: int, max_bytes: int, now_ms: int, limit_bytes: int = MAX_UNPACKED_BYTES) -> bool:
        """Continue the scan. Returns whether it is at the end, or has enough records for now.

        limit_bytes: StillPacked is raised for a batch whose content exceeds this, and after several compressed batches
        in one call. The caller then passes the batch to `scan_packed` and the result to `take`. Raises StorageFailure.
        """
        machine = self._machine
        offset = machine.scanned_offset
        if offset >= limit_offset or machine.is_full:
            return True
        is_new = offset >= self._loaded_offset
        packed_count = 0
        for header, place, batch in self._source.batches(offset, limit_offset, max_bytes):
            is_known = not is_new and machine.has_forwarded(header.base_offset, header.next_offset)
            try:
                if not is_known and limit_bytes < MAX_UNPACKED_BYTES and takes_long_to_look_at(header):
                    raise StillPacked(header, place)
                runs = [] if is_known else scan_due(header, batch, limit_bytes)
            except UnreadableBatch:
                raise StillPacked(header, place) from None
            self.take(header, runs, now_ms)
            packed_count += bool(header.attributes & COMPRESSION_MASK)
            if packed_count == _PACKED_AT_ONCE and limit_bytes < MAX_UNPACKED_BYTES:
                break
        return machine.scanned_offset >= limit_offset

    def take(self, header: BatchHeader, runs: list[DueRun], now_ms: int) -> None:
        """Add the due runs of the next batch."""
        is_new = header.base_offset >= self._loaded_offset
        self._machine.take(
            runs,
            header.next_offset,
            now_ms=now_ms if is_new else 0,
            honours_delay=not is_new or self._honours_delay(),
        )
        if not is_new and self._machine.scanned_offset >= self._loaded_offset:
            self._machine.forget_history()


def scan_packed(packed: StillPacked) -> list[DueRun]:
    """Return the due runs of a batch that is slow to decompress. Blocks. Raises StorageFailure."""
    place = packed.place
    return scan_due(packed.header, place.file.read(place.position, place.length))
