"""Compaction keeps the last record of each key. It runs in another process, on files that no longer change.

    1. collect the last offset of each key in the dirty part
    2. read all segments from the start, and write the records that no later record replaces into new segments
    3. hand the new segments over (`<name>.cleaned`, flushed, with their indexes); the owner swaps them in

A batch keeps its offsets, its producer fields and its compression; compaction only removes records from it. A tombstone
stays for `delete.retention.ms` after the first compaction that saw it as the last record of its key; attribute bit 6 of
the batch is then set, and the base timestamp is the time at which its tombstones expire. It also stays until all
replicas have it; see `CompactionLimits`. Records without a key are removed. A damaged batch ends the compaction: in a
smaller one it would have a correct CRC. A batch with a correct CRC whose records cannot be read is kept unchanged and
counted. Aborted records are removed, and replace no others; for markers and the
last batches of producers see `compacted_transactions`. Source: KIP-280, KIP-534.
"""

from collections.abc import Iterable, Iterator, Sequence
from hashlib import blake2b
from uuid import UUID

import msgspec

from conveyor.kernel.errors import LogDamaged, RequestError
from conveyor.kernel.ids import TopicId
from conveyor.kernel.ports import Directory, Disk
from conveyor.log.compaction.compacted_transactions import CompactedTransactions
from conveyor.log.compaction.compaction_plan import CompactionPlan, SegmentBounds
from conveyor.log.partition_directory import PartitionDirectory
from conveyor.log.segments.files import remove_segment
from conveyor.log.segments.segment import MAX_BYTES, Segment
from conveyor.records.batch import (
    COMPRESSION_MASK,
    CONTROL,
    DELETE_HORIZON,
    BatchHeader,
    batch_is_intact,
    read_header,
)
from conveyor.records.record import Record, decode_records, rebuild_batch
from conveyor.records.transaction_marker import decode_marker

CLEANED = ".cleaned"
_DIGEST_BYTES = 16
_WRITE_BYTES = 1 << 20


class CleanedSegment(msgspec.Struct, frozen=True, kw_only=True):
    """A new segment in `<name>.cleaned` files."""

    base_offset: int
    next_offset: int
    max_timestamp: int


class CompactionResult(msgspec.Struct, frozen=True, kw_only=True):
    """The replaced segments, by base offset, and the new ones. cleaned_offset: everything below has been compacted.

    unreadable_batches, first_unreadable_offset: the number of batches below cleaned_offset that were kept because their
    records cannot be read, and the base offset of the first, or -1. truncations_count: the plan's.
    removed_tombstones_end_offset: the offset after the last removed tombstone or marker, or 0.
    """

    replaced: tuple[int, ...]
    cleaned: tuple[CleanedSegment, ...]
    cleaned_offset: int
    bytes_before: int
    bytes_after: int
    unreadable_batches: int
    first_unreadable_offset: int
    truncations_count: int = 0
    removed_tombstones_end_offset: int = 0


def compact(disk: Disk, plan: CompactionPlan) -> CompactionResult:
    """Execute a plan. Blocks for long. Raises LogDamaged if a batch is not what was written, and StorageFailure, also
    if the directory belongs to another topic by now.
    """
    return _compact(PartitionDirectory(disk, plan.directory, TopicId(UUID(plan.topic_id))), plan)


def _compact(disk: Directory, plan: CompactionPlan) -> CompactionResult:
    transactions = CompactedTransactions(plan)
    latest, cleaned_offset = _latest_offsets(disk, plan, transactions)
    passage = _Passage(latest=latest, cleaned_offset=cleaned_offset, transactions=transactions)
    replaced: list[int] = []
    cleaned: list[CleanedSegment] = []
    bytes_after = 0
    for group in _groups(plan):
        new, changed = _rewrite(disk, plan, group, passage)
        if changed or len(group) > 1:
            replaced += [bounds.base_offset for bounds in group]
            cleaned.append(
                CleanedSegment(
                    base_offset=new.base_offset, next_offset=new.next_offset, max_timestamp=new.max_timestamp
                )
            )
            bytes_after += new.size
        else:
            new.remove()
            bytes_after += group[0].size
    disk.sync_directory(plan.directory)
    return CompactionResult(
        replaced=tuple(replaced),
        cleaned=tuple(cleaned),
        cleaned_offset=cleaned_offset,
        bytes_before=sum(bounds.size for bounds in plan.segments),
        bytes_after=bytes_after,
        unreadable_batches=len(passage.unreadable),
        first_unreadable_offset=min(passage.unreadable, default=-1),
        truncations_count=plan.truncations_count,
        removed_tombstones_end_offset=passage.removed_tombstones_end_offset,
    )


class _Passage(msgspec.Struct, kw_only=True):
    """The state of one rewrite. latest: the last offset of each key below `cleaned_offset`. unreadable: the base
    offsets of batches that cannot be read.
    """

    latest: dict[bytes, int]
    cleaned_offset: int
    transactions: CompactedTransactions
    unreadable: list[int] = msgspec.field(default_factory=list)
    removed_tombstones_end_offset: int = 0


def _latest_offsets(
    disk: Directory, plan: CompactionPlan, transactions: CompactedTransactions
) -> tuple[dict[bytes, int], int]:
    """Return the last offset of each key from the first dirty offset on, and where the collection ended: earlier if
    memory was full. An aborted record replaces none.
    """
    latest: dict[bytes, int] = {}
    reached = plan.first_dirty_offset
    for bounds in plan.segments:
        if bounds.next_offset <= plan.first_dirty_offset:
            continue
        for header, batch in _batches(disk, plan, bounds):
            if header.next_offset <= plan.first_dirty_offset:
                continue
            if header.attributes & CONTROL or transactions.is_aborted(header):
                reached = header.next_offset
                continue
            if latest and len(latest) + header.records_count > plan.max_keys:
                return latest, reached
            for record in _records(batch) or ():
                if record.key is not None:
                    latest[_short(record.key)] = record.offset
            reached = header.next_offset
        reached = max(reached, bounds.next_offset)
    return latest, reached


def _groups(plan: CompactionPlan) -> Iterator[list[SegmentBounds]]:
    """Yield adjacent segments that together fit into one segment."""
    group: list[SegmentBounds] = []
    for bounds in plan.segments:
        size = sum(member.size for member in group) + bounds.size
        if group and (size > plan.segment_bytes or bounds.next_offset - group[0].base_offset > MAX_BYTES):
            yield group
            group = []
        group.append(bounds)
    if group:
        yield group


def _rewrite(
    disk: Directory, plan: CompactionPlan, group: list[SegmentBounds], passage: _Passage
) -> tuple[Segment, bool]:
    """Write one new segment from a group. Returns it, and whether a record was removed or changed.

    Batches from `cleaned_offset` on are copied unchanged.
    """
    remove_segment(disk, plan.directory, group[0].base_offset, CLEANED)
    new = Segment(disk, plan.directory, group[0].base_offset, CLEANED, create=True)
    new.last_append_ms = max(bounds.last_append_ms for bounds in group)
    new.indexes.aborted = new_aborted = bytearray()
    changed = False
    pending: list[bytes] = []
    position = size = 0
    for bounds in group:
        for header, batch in _batches(disk, plan, bounds):
            kept = batch if header.base_offset >= passage.cleaned_offset else _cleaned(header, batch, passage, plan)
            changed = changed or kept is not batch
            if kept is None:
                continue
            kept_header = read_header(kept)
            new_aborted += passage.transactions.aborted_at(kept_header)
            new.note(
                kept_header.next_offset - 1, kept_header.max_timestamp, position, len(kept), plan.index_interval_bytes
            )
            pending.append(kept)
            position += len(kept)
            size += len(kept)
            if size >= _WRITE_BYTES:
                new.file.append(pending)
                pending, size = [], 0
    new.file.append(pending)
    new.file.sync()
    new.indexes.finish()
    new.write_seal()
    if plan.aborted and not new_aborted:
        disk.write_atomic(new.files.path("txnindex"), b"")  # It takes the place of the original's.
    return new, changed


def _cleaned(header: BatchHeader, batch: bytes, passage: _Passage, plan: CompactionPlan) -> bytes | None:
    """Return the batch itself if it is unchanged, a smaller batch, or None if it is removed."""
    if header.attributes & CONTROL:
        return _cleaned_control(header, batch, passage, plan)
    kept = None if passage.transactions.is_aborted(header) else _cleaned_data(header, batch, passage, plan)
    if kept is None and passage.transactions.is_last_of_producer(header):
        kept = _emptied(header, batch)
    if kept is not None:
        passage.transactions.note_kept(header)
    return kept


def _cleaned_data(header: BatchHeader, batch: bytes, passage: _Passage, plan: CompactionPlan) -> bytes | None:
    """Return a batch of committed records as `_cleaned` does."""
    records = _records(batch)
    if records is None:
        passage.unreadable.append(header.base_offset)
        return batch
    has_horizon = bool(header.attributes & DELETE_HORIZON)
    horizon_ms = header.base_timestamp if has_horizon else plan.now_ms + plan.delete_retention_ms
    kept = [record for record in records if _is_last(record, passage.latest)]
    if has_horizon and horizon_ms <= plan.now_ms:
        kept = _without_tombstones(kept, passage, plan)
    if not kept:
        return None
    has_tombstone = any(record.value is None for record in kept)
    if len(kept) == len(records) and has_tombstone == has_horizon:
        return batch
    attributes = header.attributes & ~DELETE_HORIZON
    if has_tombstone:
        return rebuild_batch(header, kept, horizon_ms, attributes | DELETE_HORIZON)
    base_timestamp = kept[0].timestamp_ms if has_horizon else header.base_timestamp
    return rebuild_batch(header, kept, base_timestamp, attributes)


def _cleaned_control(header: BatchHeader, batch: bytes, passage: _Passage, plan: CompactionPlan) -> bytes | None:
    """Return a control batch as `_cleaned` does. A marker whose transaction has no batch left gets a horizon, as a
    tombstone does, and is removed after it.
    """
    marker = decode_marker(header, batch)
    if marker is None or not passage.transactions.end_is_unneeded(header):
        return batch
    if not header.attributes & DELETE_HORIZON:
        horizon_ms = plan.now_ms + plan.delete_retention_ms
        return rebuild_batch(header, list(decode_records(batch)), horizon_ms, header.attributes | DELETE_HORIZON)
    if header.base_timestamp > plan.now_ms or header.base_offset >= plan.tombstones_end_offset:
        return batch
    passage.removed_tombstones_end_offset = max(passage.removed_tombstones_end_offset, header.next_offset)
    return None


def _emptied(header: BatchHeader, batch: bytes) -> bytes:
    """Return a batch without its records: it keeps the producer's epoch and sequence."""
    if not header.records_count:
        return batch
    attributes = header.attributes & ~(DELETE_HORIZON | COMPRESSION_MASK)
    return rebuild_batch(header, (), header.max_timestamp, attributes)


def _is_last(record: Record, latest: dict[bytes, int]) -> bool:
    return record.key is not None and latest.get(_short(record.key), -1) <= record.offset


def _without_tombstones(records: Sequence[Record], passage: _Passage, plan: CompactionPlan) -> list[Record]:
    kept = []
    for record in records:
        if record.value is not None or record.offset >= plan.tombstones_end_offset:
            kept.append(record)
        else:
            passage.removed_tombstones_end_offset = max(passage.removed_tombstones_end_offset, record.offset + 1)
    return kept


def _batches(disk: Directory, plan: CompactionPlan, bounds: SegmentBounds) -> Iterable[tuple[BatchHeader, bytes]]:
    """Yield the batches of a segment. Raises LogDamaged. The CRC does not cover a batch's base offset."""
    segment, end_offset = Segment(disk, plan.directory, bounds.base_offset), bounds.base_offset
    if segment.size != bounds.size:
        raise LogDamaged(f"{segment.files.path('log')} has {segment.size} bytes, not {bounds.size}")
    for position, header in segment.headers():
        batch = segment.file.read(position, header.size)
        is_in_order = end_offset <= header.base_offset and header.next_offset <= bounds.next_offset
        if not is_in_order or not batch_is_intact(batch):
            raise LogDamaged(f"{segment.files.path('log')} is damaged at {position}")
        end_offset = header.next_offset
        yield header, batch


def _records(batch: bytes) -> list[Record] | None:
    """Return the records, or None if they cannot be read: a plain topic stores batches without checking their
    records.
    """
    try:
        return list(decode_records(batch))
    except RequestError:
        return None


def _short(key: bytes) -> bytes:
    """Return the key itself, or its digest if the key is at least as long. A digest is longer than any key stored
    as it is.
    """
    return key if len(key) < _DIGEST_BYTES else blake2b(key, digest_size=_DIGEST_BYTES).digest()
