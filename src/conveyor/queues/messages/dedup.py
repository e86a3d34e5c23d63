"""Deduplication of messages by `conveyor-dedup-id`, within a time window, in one partition.

The index of ids is built from the partition's records and holds nothing else. Ages are computed from record timestamps.
"""

from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from hashlib import blake2b

import msgspec

from conveyor.kernel.ids import NO_TIMESTAMP
from conveyor.log.batch_reading import StoredBatch
from conveyor.records.batch import BatchHeader
from conveyor.records.compression import Unpacked, contains, cut_out
from conveyor.records.message_attributes import DEDUP_ID, last_header
from conveyor.records.record import Header, UnreadableBatch, raw_records, unpacked_records

_NAME = DEDUP_ID.encode()
_DIGEST_BYTES = 16


class KnownId(msgspec.Struct, frozen=True):
    """The digest of an id, and the offset and timestamp of its record."""

    digest: bytes
    offset: int
    timestamp_ms: int


class DedupIndex:
    """The ids of one partition in offset order. Above `max_ids` the oldest id is dropped."""

    __slots__ = ("_known", "_max_ids")

    def __init__(self, max_ids: int) -> None:
        self._max_ids = max_ids
        self._known: OrderedDict[bytes, tuple[int, int]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._known)

    def find(self, digest: bytes, now_ms: int, window_ms: int) -> int | None:
        """Return the offset of an id's record if it is within the window."""
        entry = self._known.get(digest)
        return None if entry is None or now_ms - entry[1] >= window_ms else entry[0]

    def add(self, known: KnownId, window_ms: int) -> None:
        """Add an appended record. The first record of an id stays until its window has passed."""
        digest, timestamp_ms = known.digest, known.timestamp_ms
        if self.find(digest, timestamp_ms, window_ms) is not None:
            return
        self._known[digest] = (known.offset, timestamp_ms)
        self._known.move_to_end(digest)
        self._forget(timestamp_ms - window_ms)

    def _forget(self, oldest_ms: int) -> None:
        while len(self._known) > self._max_ids or next(iter(self._known.values()))[1] <= oldest_ms:
            self._known.popitem(last=False)


class Deduplicated(msgspec.Struct, frozen=True, kw_only=True):
    """The new part of a batch.

    header, content: the batch without its duplicates; content is None if nothing needs to be appended.
    duplicates: by a record's offset delta in the batch, the offset of the earlier record.
    repeats: the same for an earlier record in this batch, whose offset delta it gives.
    fresh: ids to add to the index, with offsets relative to the batch.
    """

    header: BatchHeader
    content: Unpacked | None
    duplicates: Mapping[int, int] = msgspec.field(default_factory=dict)
    repeats: Mapping[int, int] = msgspec.field(default_factory=dict)
    fresh: tuple[KnownId, ...] = ()


def has_ids(content: Unpacked) -> bool:
    """Return whether any record of a batch may have an id."""
    return contains(content, _NAME)


def deduplicate(header: BatchHeader, content: Unpacked, index: DedupIndex, now_ms: int, window_ms: int) -> Deduplicated:
    """Leave out the records with a known id. Raises UnreadableBatch.

    The remaining records keep their offset deltas, which the producer uses to find them. If nothing remains of an
    idempotent producer's batch, an empty batch is appended, because its sequence numbers are used up.
    """
    kept: list[tuple[int, int]] = []
    kept_count, newest_ms = 0, NO_TIMESTAMP
    fresh: dict[bytes, KnownId] = {}
    duplicates: dict[int, int] = {}
    repeats: dict[int, int] = {}
    for start, end, offset_delta, timestamp_ms, _, _, headers in raw_records(header, content, skims=True):
        digest = dedup_digest(headers)
        first = None if digest is None else index.find(digest, now_ms, window_ms)
        if first is not None:
            duplicates[offset_delta] = first
        elif digest is not None and digest in fresh:
            repeats[offset_delta] = fresh[digest].offset
        else:
            _extend(kept, start, end)
            kept_count, newest_ms = kept_count + 1, max(newest_ms, timestamp_ms)
            if digest is not None:
                fresh[digest] = KnownId(digest, offset_delta, timestamp_ms)
    if kept_count == header.records_count:
        return Deduplicated(header=header, content=content, fresh=tuple(fresh.values()))
    remaining = header._replace(records_count=kept_count, max_timestamp=newest_ms if kept else header.max_timestamp)
    return Deduplicated(
        header=remaining,
        content=cut_out(content, kept) if kept or header.producer_id >= 0 else None,
        duplicates=duplicates,
        repeats=repeats,
        fresh=tuple(fresh.values()),
    )


def ids_of_records(header: BatchHeader, content: Unpacked) -> list[KnownId]:
    """Return every id in a batch. Raises UnreadableBatch."""
    base_offset = header.base_offset
    return [
        KnownId(digest, base_offset + offset_delta, timestamp_ms)
        for _, _, offset_delta, timestamp_ms, _, _, headers in raw_records(header, content, skims=True)
        if (digest := dedup_digest(headers)) is not None
    ]


def ids_of_log(batches: Iterable[StoredBatch], oldest_ms: int) -> tuple[list[KnownId], int]:
    """Return the ids in a chunk of a log, and the next offset. Batches older than `oldest_ms` are skipped.

    An unreadable batch, which a plain topic may contain, has no ids.
    """
    ids: list[KnownId] = []
    next_offset = 0
    for header, _, content in batches:
        if header.max_timestamp >= oldest_ms:
            ids += _ids_of_batch(content)
        next_offset = header.next_offset
    return ids, next_offset


def _ids_of_batch(batch: bytes) -> list[KnownId]:
    try:
        header, content = unpacked_records(batch)
        return ids_of_records(header, content) if has_ids(content) else []
    except UnreadableBatch:
        return []


def dedup_digest(headers: Sequence[Header]) -> bytes | None:
    """Return the fixed-size digest of a record's id, or None if it has no id."""
    text = last_header(headers, DEDUP_ID) if headers else None
    return blake2b(text, digest_size=_DIGEST_BYTES).digest() if text else None


def _extend(ranges: list[tuple[int, int]], start: int, end: int) -> None:
    """Append [start, end) to ascending ranges, merging it with an adjacent last range."""
    if ranges and ranges[-1][1] == start:
        ranges[-1] = (ranges[-1][0], end)
    else:
        ranges.append((start, end))
