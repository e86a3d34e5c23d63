"""Reads a log batch by batch: the one loop for all callers that scan a log from an offset. Blocks.

Every batch is compared with its CRC first. A batch that cannot be decoded, which a plain topic may contain, has no
messages: one that the disk has changed must not count as such.
"""

from collections.abc import Iterator
from typing import NamedTuple

from conveyor.kernel.errors import LogDamaged
from conveyor.kernel.ports import FileSlice
from conveyor.log.log import Log
from conveyor.log.segments.segment_indexes import IndexUnavailable
from conveyor.records.batch import BatchHeader, batch_is_intact, iterate_batches

PIECE_BYTES = 1 << 20
"""The size of one read; a larger batch is read whole."""


class StoredBatch(NamedTuple):
    """A batch as stored. content: all its bytes, including the header."""

    header: BatchHeader
    place: FileSlice
    content: bytes


def batches_in(piece: FileSlice, offset: int) -> Iterator[StoredBatch]:
    """Yield the batches of a slice that `Log.read` returned for an offset. It has at least one, and no part of another.

    Raises StorageFailure: LogDamaged where the bytes are not those of a batch behind the last one, as it was written.
    """
    content = piece.file.read(piece.position, piece.length)
    next_offset, end = offset, 0
    for position, header in iterate_batches(content):
        if header.next_offset <= next_offset or (position and header.base_offset < next_offset):
            break
        next_offset, end = header.next_offset, position + header.size
        batch = content[position:end]
        if not batch_is_intact(batch):
            raise LogDamaged(f"the batch at offset {header.base_offset} is damaged")
        yield StoredBatch(header, FileSlice(piece.file, piece.position + position, header.size), batch)
    if end < piece.length:
        raise LogDamaged(f"a segment has no batch for offset {next_offset} at byte {piece.position + end}")


def read_batch(place: FileSlice) -> bytes:
    """Read one batch, whose place is known. Raises StorageFailure: LogDamaged if it is not as it was written."""
    batch = place.file.read(place.position, place.length)
    if len(batch) < place.length or not batch_is_intact(batch):
        raise LogDamaged(f"the batch at byte {place.position} of a segment is damaged")
    return batch


def batches_between(log: Log, offset: int, limit_offset: int, piece_bytes: int = PIECE_BYTES) -> Iterator[StoredBatch]:
    """Yield every batch from the one that holds `offset` up to `limit_offset`, except batches that are deleted
    meanwhile.

    Raises StorageFailure: see `batches_in`.
    """
    while (offset := max(offset, log.log_start_offset)) < limit_offset:
        try:
            piece = log.read(offset, piece_bytes, limit_offset, at_least_one=True)
        except IndexUnavailable as unavailable:
            unavailable.indexes.prepare()
            continue
        if piece is None:  # Compaction has removed everything up to the limit.
            return
        for batch in batches_in(piece, offset):
            yield batch
            offset = batch.header.next_offset
