"""Applies a batch in the log to the producer state and the aborted transactions.

Leaders use it for markers; followers, truncations and recovery for all batches. Nothing is refused: it is in the log.
"""

import logging
from collections.abc import Sequence

from conveyor.kernel.ids import Offset
from conveyor.kernel.ports import Bytes, Directory
from conveyor.log.producers.producer_snapshot import load_newest_snapshot
from conveyor.log.producers.producer_state import ProducerState
from conveyor.log.segments.lookup import headers_from
from conveyor.log.segments.segment import Segment
from conveyor.log.transactions.aborted_entries import encode_aborted
from conveyor.records.batch import CONTROL, BatchHeader
from conveyor.records.transaction_marker import decode_marker, is_marker

log = logging.getLogger(__name__)


def record_appended(
    producers: ProducerState, aborted: bytearray | None, header: BatchHeader, content: Bytes, offset: int, now_ms: int
) -> None:
    """Remember a batch, appended at an offset, of any producer or none.

    content: the batch; only a marker's is read. aborted: the entries of the batch's segment, to which an abort marker
    adds one; None if they are collected elsewhere. Control batches that are no markers change nothing.
    """
    if header.producer_id < 0:
        return
    if not header.attributes & CONTROL:
        return producers.record(header, Offset(offset), now_ms)
    marker = decode_marker(header, content) if is_marker(header) else None
    if marker is None:
        return log.warning("unknown control batch offset=%d producer_id=%d", offset, header.producer_id)
    ended = producers.record_marker(marker, offset, now_ms)
    if ended is not None and aborted is not None and not marker.commits:
        aborted += encode_aborted(marker.producer_id, ended)


def replay_headers(
    segments: Sequence[Segment],
    offset: int,
    producers: ProducerState,
    now_ms: int,
    unknown: Sequence[Segment] = (),
) -> dict[int, bytearray]:
    """Remember the batches from an offset on. Of most batches, only the header is read. Raises StorageFailure.

    A batch that holds the offset is one of them: a log that was restarted within a batch begins with the whole batch.

    Returns the aborted transactions of the `unknown` segments, by base offset.
    """
    found = {segment.base_offset: bytearray() for segment in unknown}
    for segment in segments:
        if segment.next_offset > offset:
            for position, header in headers_from(segment, offset):
                if header.next_offset > offset:
                    replay_stored(segment, position, header, producers, now_ms, found.get(segment.base_offset))
    return found


def replay_stored(
    segment: Segment,
    position: int,
    header: BatchHeader,
    producers: ProducerState,
    now_ms: int,
    aborted: bytearray | None = None,
) -> None:
    """Remember one batch of a segment. A marker is read whole; of other batches the header is enough."""
    content = segment.file.read(position, header.size) if is_marker(header) else b""
    record_appended(producers, aborted, header, content, header.base_offset, now_ms)


def restore_aborted(
    disk: Directory, directory: str, segments: Sequence[Segment], producers: ProducerState, now_ms: int
) -> None:
    """Find the aborted transactions of the segments where they are not known: the segments that a crash left without a
    seal, and those whose transaction index is damaged.

    Reads headers from the newest snapshot below these segments on, or from the log's first segment; transactions that
    began before that begin there. producers: an empty state. Raises StorageFailure.
    """
    unknown = [segment for segment in segments if segment.indexes.aborted is None]
    if not unknown:
        return
    found_at = load_newest_snapshot(disk, directory, producers, segments[0].base_offset, unknown[0].base_offset)
    through = [segment for segment in segments if segment.base_offset <= unknown[-1].base_offset]
    found = replay_headers(through, found_at.offset, producers, now_ms, unknown)
    for segment in unknown:
        segment.indexes.restore_aborted(found[segment.base_offset])
