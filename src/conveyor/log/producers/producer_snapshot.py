"""A snapshot of the producer state as a file, `<next offset, 20 digits>.producers`: the state after all records below
that offset.

    0 CRC-32C of the rest  uint32 | 4 version int16 (3) | 6 leader epoch of the last record int32, -1 if it is unknown
    10 last marker's offset int64
    18 count of open transactions int32, and for each: producer id int64, first offset int64, time of its first batch
       int64
    .. count of undecided transactions int32, and for each: first offset int64, marker's offset int64
    .. for each producer, the least recently used first: producer id int64, epoch int16, last timestamp int64,
       coordinator epoch int32, count of batches int8, and for each batch: base sequence int32, last sequence int32,
       base offset int64, last offset int64, append timestamp int64

Version 2 had no leader epoch, and version 1 no transactions either: only, for each batch, the producer id, the epoch
and the batch's fields.

Written when a segment is sealed and at a clean stop. A damaged file is ignored. A start reads no batch header below the
newest snapshot, so the leader epoch tells whether the file of the leader epochs is as new.
"""

from collections.abc import Iterable
from struct import Struct, error
from typing import NamedTuple

from crc32c import crc32c

from conveyor.kernel.errors import StorageFailure
from conveyor.kernel.ports import Directory
from conveyor.log.leader_epochs import NO_EPOCH
from conveyor.log.producers.producer_state import ProducerEntries, ProducerState, RememberedBatch, RememberedProducer
from conveyor.log.segments.files import OFFSET_DIGITS, segment_path
from conveyor.log.transactions.open_transactions import OpenTransaction, UndecidedTransaction

SUFFIX = "producers"
_VERSION = 3
_CHECKSUM = Struct(">I")
_VERSION_FIELD = Struct(">h")
_LEADER_EPOCH = Struct(">i")
_COUNT = Struct(">i")
_MARKER_OFFSET = Struct(">q")
_OPENED = Struct(">qqq")
_UNDECIDED = Struct(">qq")
_PRODUCER = Struct(">qhqiB")
_BATCH = Struct(">iiqqq")
_V1_BATCH = Struct(">qhiiqqq")


class FoundSnapshot(NamedTuple):
    """A snapshot that was loaded: its offset, 0 if there is none, and the leader epoch of the last record below, -1 if
    that is unknown.
    """

    offset: int = 0
    leader_epoch: int = NO_EPOCH


def encode_snapshot(producers: ProducerEntries, leader_epoch: int = NO_EPOCH) -> bytes:
    """Return the file's content. 50,000 producers take a tenth of a second: call it off the event loop."""
    parts = [_VERSION_FIELD.pack(_VERSION), _LEADER_EPOCH.pack(leader_epoch)]
    parts.append(_MARKER_OFFSET.pack(producers.last_marker_offset))
    parts.append(_COUNT.pack(len(producers.opened)))
    parts += [_OPENED.pack(producer_id, *opened) for producer_id, opened in producers.opened]
    parts.append(_COUNT.pack(len(producers.undecided)))
    parts += [_UNDECIDED.pack(*undecided) for undecided in producers.undecided]
    for producer_id, producer in zip(producers.producer_ids, producers.producers, strict=True):
        epoch, last_timestamp_ms, batches, coordinator_epoch = producer
        parts.append(_PRODUCER.pack(producer_id, epoch, last_timestamp_ms, coordinator_epoch, len(batches)))
        parts += [_BATCH.pack(*batch) for batch in batches]
    body = b"".join(parts)
    return _CHECKSUM.pack(crc32c(body)) + body


def load_newest_snapshot(
    disk: Directory, directory: str, state: ProducerState, first_offset: int, end_offset: int | None = None
) -> FoundSnapshot:
    """Restore an empty state from the newest valid snapshot of a log.

    first_offset: of the log's first segment. The batches between an older snapshot and the segment may be gone.
    end_offset: later snapshots do not count.
    """
    for offset in sorted(snapshot_offsets(disk.list(directory)), reverse=True):
        if offset >= first_offset and (end_offset is None or offset <= end_offset):
            decoded = _decode(disk.read(segment_path(directory, offset, SUFFIX)))
            if decoded is not None:
                leader_epoch, entries = decoded
                state.restore(entries)
                return FoundSnapshot(offset, leader_epoch)
    return FoundSnapshot()


def remove_snapshots(
    disk: Directory, directory: str, keep: int = 0, above: int | None = None, needed_at: int = -1
) -> None:
    """Remove all snapshots but the newest `keep`, or those above an offset, which a truncation of the log has
    invalidated.

    needed_at: the newest snapshot at or below this offset is kept too.
    """
    offsets = sorted(snapshot_offsets(disk.list(directory)))
    needed = max((offset for offset in offsets if offset <= needed_at), default=-1)
    removed = (
        [offset for offset in offsets if offset > above]
        if above is not None
        else [offset for offset in offsets[: max(0, len(offsets) - keep)] if offset != needed]
    )
    for offset in removed:
        disk.remove(segment_path(directory, offset, SUFFIX))


def snapshot_offsets(names: Iterable[str]) -> list[int]:
    """Return the offsets of the snapshots among a directory's file names."""
    ending = f".{SUFFIX}"
    return [int(name[:OFFSET_DIGITS]) for name in names if name.endswith(ending) and name[:OFFSET_DIGITS].isdigit()]


def _decode(content: bytes) -> tuple[int, ProducerEntries] | None:
    """Return the leader epoch and the producers; None if the file is damaged. Raises StorageFailure."""
    start = _CHECKSUM.size + _VERSION_FIELD.size
    if len(content) < start or _CHECKSUM.unpack_from(content)[0] != crc32c(memoryview(content)[_CHECKSUM.size :]):
        return None
    version = _VERSION_FIELD.unpack_from(content, _CHECKSUM.size)[0]
    if not 1 <= version <= _VERSION:
        raise StorageFailure(f"producer snapshot version {version} is newer than this broker: start a newer one")
    body, leader_epoch = memoryview(content)[start:], NO_EPOCH
    try:
        if version == _VERSION:
            (leader_epoch,) = _LEADER_EPOCH.unpack_from(body)
            body = body[_LEADER_EPOCH.size :]
        entries = _decode_v1(body) if version == 1 else _decode_v2(body)
    except error:  # Its checksum is right, but not its counts.
        return None
    known = set(entries.producer_ids)
    is_sound = all(producer_id in known for producer_id, _ in entries.opened)
    return (leader_epoch, entries) if is_sound else None


def _decode_v1(body: memoryview) -> ProducerEntries:
    producers: dict[int, RememberedProducer] = {}
    for producer_id, epoch, *fields in _V1_BATCH.iter_unpack(body):
        batch, earlier = RememberedBatch._make(fields), producers.get(producer_id)
        batches = (batch,) if earlier is None else (*earlier.batches, batch)
        producers[producer_id] = RememberedProducer(epoch, batch.append_timestamp_ms, batches)
    return ProducerEntries(list(producers), list(producers.values()))


def _decode_v2(body: memoryview) -> ProducerEntries:
    (last_marker_offset,) = _MARKER_OFFSET.unpack_from(body)
    position, opened = _counted(body, _MARKER_OFFSET.size, _OPENED)
    position, undecided = _counted(body, position, _UNDECIDED)
    producers: dict[int, RememberedProducer] = {}
    while position < len(body):
        producer_id, epoch, last_timestamp_ms, coordinator_epoch, count = _PRODUCER.unpack_from(body, position)
        position += _PRODUCER.size
        end = _end(body, position, count, _BATCH)
        batches = tuple(map(RememberedBatch._make, _BATCH.iter_unpack(body[position:end])))
        producers[producer_id] = RememberedProducer(epoch, last_timestamp_ms, batches, coordinator_epoch)
        position = end
    return ProducerEntries(
        list(producers),
        list(producers.values()),
        [(producer_id, OpenTransaction(*fields)) for producer_id, *fields in opened],
        [UndecidedTransaction._make(fields) for fields in undecided],
        last_marker_offset,
    )


def _counted(body: memoryview, position: int, layout: Struct) -> tuple[int, list[tuple[int, ...]]]:
    """Read a count and so many entries. Returns the position after them, too."""
    start = position + _COUNT.size
    end = _end(body, start, _COUNT.unpack_from(body, position)[0], layout)
    return end, list(layout.iter_unpack(body[start:end]))


def _end(body: memoryview, start: int, count: int, layout: Struct) -> int:
    """Return the position after so many entries. Raises struct.error if the body does not have them."""
    end = start + count * layout.size
    if not start <= end <= len(body):
        raise error(f"{count} entries do not end within the snapshot")
    return end
