"""Selects the batches that readers of committed transactions see. Pure."""

from collections import deque
from collections.abc import Iterable

from conveyor.records.batch import CONTROL, BatchHeader, is_transactional
from conveyor.records.transaction_marker import decode_marker
from pyspark_conveyor.source.record_columns import RawBatch, checked_batch


class CommittedBatches:
    """Passes over the batches of aborted transactions, and over all markers.

    aborted: producer id and first offset of each aborted transaction that reaches into what is read. Ask for the
    batches in the order of their offsets.
    """

    def __init__(self, aborted: Iterable[tuple[int, int]]) -> None:
        self._coming = deque(sorted(aborted, key=lambda transaction: transaction[1]))
        self._open: set[int] = set()

    def has(self, header: BatchHeader, batch: bytes | memoryview) -> bool:
        """Return whether a batch has records to read. batch: the whole of it."""
        while self._coming and self._coming[0][1] < header.base_offset + header.last_offset_delta + 1:
            self._open.add(self._coming.popleft()[0])
        if header.attributes & CONTROL:
            marker = decode_marker(header, bytes(batch))
            if marker is not None and not marker.commits:
                self._open.discard(marker.producer_id)
            return False
        return not (is_transactional(header) and header.producer_id in self._open)


def wanted_batches(
    data: memoryview, places: Iterable[tuple[int, BatchHeader]], committed: CommittedBatches, start: int, end: int
) -> list[RawBatch]:
    """Return the batches of a buffer that have records to read in [start, end).

    places: the batches, in the order of their offsets. Raises CorruptRecordsError: a batch that is passed over is
    checked as well, because a damaged header would let it be passed over.
    """
    wanted = []
    for position, header in places:
        if header.base_offset >= end:
            break
        batch = checked_batch(data, position, header)
        is_wanted = committed.has(header, data[position : position + header.size])
        if is_wanted and header.records_count and header.next_offset > start:
            wanted.append(batch)
    return wanted
