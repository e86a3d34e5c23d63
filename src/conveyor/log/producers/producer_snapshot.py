"""A snapshot of the producer state as a file, `<next offset, 20 digits>.producers`: the state after all records below
that offset.

    0 CRC-32C of the rest  uint32 | 4 version int16 | then for each remembered batch, oldest producer first:
    producer id int64, epoch int16, base sequence int32, last sequence int32, base offset int64, last offset int64,
    append timestamp int64

Written when a segment is sealed and at a clean stop. A damaged file is ignored.
"""

from collections.abc import Iterable
from struct import Struct

from crc32c import crc32c

from conveyor.kernel.errors import StorageFailure
from conveyor.kernel.ports import Directory
from conveyor.log.producers.producer_state import ProducerEntries, ProducerState, RememberedBatch, RememberedProducer
from conveyor.log.segments.segment import OFFSET_DIGITS, segment_path

SUFFIX = "producers"
_VERSION = 1
_CHECKSUM = Struct(">I")
_VERSION_FIELD = Struct(">h")
_ENTRY = Struct(">qhiiqqq")


def encode_snapshot(producers: ProducerEntries) -> bytes:
    """Return the file's content. 50,000 producers take a tenth of a second: call it off the event loop."""
    body = _VERSION_FIELD.pack(_VERSION) + b"".join(
        [
            _ENTRY.pack(producer_id, producer.epoch, *batch)
            for producer_id, producer in zip(*producers, strict=True)
            for batch in producer.batches
        ]
    )
    return _CHECKSUM.pack(crc32c(body)) + body


def load_newest_snapshot(disk: Directory, directory: str, state: ProducerState, limit_offset: int) -> int:
    """Restore the state from the newest valid snapshot at or below an offset. Returns the snapshot's offset, or 0."""
    for offset in sorted(snapshot_offsets(disk.list(directory)), reverse=True):
        if offset <= limit_offset:
            entries = _decode(disk.read(segment_path(directory, offset, SUFFIX)))
            if entries is not None:
                state.restore(entries)
                return offset
    return 0


def remove_snapshots(disk: Directory, directory: str, keep: int = 0, above: int | None = None) -> None:
    """Remove all snapshots but the newest `keep`, or those above an offset, which a truncation of the log has
    invalidated.
    """
    offsets = sorted(snapshot_offsets(disk.list(directory)))
    removed = (
        [offset for offset in offsets if offset > above]
        if above is not None
        else offsets[: max(0, len(offsets) - keep)]
    )
    for offset in removed:
        disk.remove(segment_path(directory, offset, SUFFIX))


def snapshot_offsets(names: Iterable[str]) -> list[int]:
    """Return the offsets of the snapshots among a directory's file names."""
    ending = f".{SUFFIX}"
    return [int(name[:OFFSET_DIGITS]) for name in names if name.endswith(ending) and name[:OFFSET_DIGITS].isdigit()]


def _decode(content: bytes) -> ProducerEntries | None:
    start = _CHECKSUM.size + _VERSION_FIELD.size
    if len(content) < start or _CHECKSUM.unpack_from(content)[0] != crc32c(memoryview(content)[_CHECKSUM.size :]):
        return None
    version = _VERSION_FIELD.unpack_from(content, _CHECKSUM.size)[0]
    if version != _VERSION:
        raise StorageFailure(f"producer snapshot version {version} is newer than this broker: start a newer one")
    producers: dict[int, RememberedProducer] = {}
    for producer_id, epoch, *fields in _ENTRY.iter_unpack(memoryview(content)[start:]):
        batch, earlier = RememberedBatch._make(fields), producers.get(producer_id)
        batches = (batch,) if earlier is None else (*earlier.batches, batch)
        producers[producer_id] = RememberedProducer(epoch, batch.append_timestamp_ms, batches)
    return list(producers), list(producers.values())
