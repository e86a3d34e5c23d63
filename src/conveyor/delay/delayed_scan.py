"""Scans a delayed topic batch by batch and passes the due times of its records to the forwarder's machine.

The scan ends at the last stable offset and passes over aborted records, so only committed records are forwarded.
"""

from collections import deque

from conveyor.delay.forwarding import Forwarding
from conveyor.delay.forwarding_scan import DueRun, scan_due
from conveyor.log.batch_reading import read_batch
from conveyor.log.record_source import MessageSource, StillPacked, runs_worth, takes_long_to_look_at
from conveyor.records.batch import COMPRESSION_MASK, BatchHeader
from conveyor.records.compression import MAX_UNPACKED_BYTES
from conveyor.records.record import UnreadableBatch

_PACKED_AT_ONCE = 8
_RUNS_AT_ONCE = 4096


class DelayedScan:
    """See the module's docstring. loaded_offset: the end of the records that were there when the forwarder was loaded;
    they are sorted by their due times, also if these have passed.
    """

    def __init__(self, source: MessageSource, machine: Forwarding, loaded_offset: int) -> None:
        self._source = source
        self._machine = machine
        self._loaded_offset = loaded_offset
        self._runs: deque[DueRun] = deque()
        self._batch_end: int | None = None
        """The end of the batch whose runs are to be taken, if there is one."""
        self.work_count = 0
        """The number of runs that were found and passed to the machine so far; see `runs_worth`."""

    def advance(self, limit_offset: int, max_bytes: int, now_ms: int, limit_bytes: int = MAX_UNPACKED_BYTES) -> bool:
        """Continue the scan. Returns whether it is at the end, or has enough records for now.

        limit_bytes: StillPacked is raised for a batch whose content exceeds this, and after several compressed batches
        in one call. The caller then passes the batch to `scan_packed` and the result to `add`. Raises StorageFailure.
        """
        machine = self._machine
        if self._batch_end is not None:
            self._take_some(self._batch_end, now_ms)
            return False
        if machine.scanned_offset >= limit_offset or machine.is_full:
            return True
        packed_count, start = 0, machine.scanned_offset
        for header, place, batch in self._source.batches(machine.scanned_offset, limit_offset, max_bytes):
            waits = machine.waits(header.base_offset, header.next_offset)
            try:
                if waits and limit_bytes < MAX_UNPACKED_BYTES and takes_long_to_look_at(header):
                    raise StillPacked(header, place)
                runs = scan_due(header, batch, limit_bytes) if waits else []
            except UnreadableBatch:
                raise StillPacked(header, place) from None
            self.add(header, runs)
            self._take_some(header.next_offset, now_ms)
            packed_count += bool(header.attributes & COMPRESSION_MASK)
            if self._runs or (packed_count == _PACKED_AT_ONCE and limit_bytes < MAX_UNPACKED_BYTES):
                break
        if machine.scanned_offset == start and not self._runs:  # All records up to the limit are deleted.
            machine.take((), start, limit_offset, now_ms)
        return machine.scanned_offset >= limit_offset and not self._runs

    def add(self, header: BatchHeader, runs: list[DueRun]) -> None:
        """Add the due runs of the next batch. Calls of `advance` pass them to the machine."""
        self._runs.extend(runs)
        self._batch_end = header.next_offset
        self.work_count += runs_worth(header) + len(runs)

    def _take_some(self, batch_end: int, now_ms: int) -> None:
        machine, runs = self._machine, self._runs
        some = [runs.popleft() for _ in range(min(len(runs), _RUNS_AT_ONCE))]
        self.work_count += len(some)
        end = runs[0].start if runs else batch_end
        self._batch_end = batch_end if runs else None
        is_new = machine.scanned_offset >= self._loaded_offset
        machine.take(some, machine.scanned_offset, end, now_ms if is_new else 0)


def scan_packed(packed: StillPacked) -> list[DueRun]:
    """Return the due runs of a batch that is slow to decompress. Blocks. Raises StorageFailure."""
    return scan_due(packed.header, read_batch(packed.place))
