"""Deduplication of messages by `conveyor-dedup-id`, within a time window, in one partition.

The index of ids is built from the partition's records and holds nothing else. Ages are computed from record timestamps.

    append without a transaction -> decided
    append in a transaction      -> provisional -(commit)-> decided
                                                -(abort)--> dropped

A record with a decided id is a duplicate, and so is one with an id of its own transaction. One with an id of another
open transaction is neither new nor a duplicate yet: its batch is refused until that transaction has ended.
"""

from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from hashlib import blake2b

import msgspec

from conveyor.kernel.ids import NO_PRODUCER_ID, NO_TIMESTAMP
from conveyor.log.batch_reading import StoredBatch
from conveyor.records.batch import CONTROL, TRANSACTIONAL, BatchHeader
from conveyor.records.compression import Unpacked, contains, cut_out
from conveyor.records.message_attributes import DEDUP_ID, last_header
from conveyor.records.record import Header, UnreadableBatch, raw_records, unpacked_records
from conveyor.records.transaction_marker import decode_marker, is_marker

_NAME = DEDUP_ID.encode()
_DIGEST_BYTES = 16


class KnownId(msgspec.Struct, frozen=True):
    """The digest of an id, and the offset and timestamp of its record."""

    digest: bytes
    offset: int
    timestamp_ms: int

    def seen_at(self, now_ms: int) -> "KnownId":
        """Return the id of a record that is not from the future."""
        return self if self.timestamp_ms <= now_ms else msgspec.structs.replace(self, timestamp_ms=now_ms)


class DedupIndex:
    """The ids of one partition: the decided ones, in the order in which they were decided, and those of each open
    transaction. Of either kind there are at most `max_ids`: then the oldest one is dropped, or that of the transaction
    to which one is added.
    """

    __slots__ = ("_holders", "_known", "_max_ids", "_provisional", "_provisional_count")

    def __init__(self, max_ids: int) -> None:
        self._max_ids = max_ids
        self._known: OrderedDict[bytes, tuple[int, int]] = OrderedDict()
        self._provisional: dict[int, dict[bytes, KnownId]] = {}
        """By producer id, of which at most one transaction is open; then by digest."""
        self._provisional_count = 0
        self._holders: dict[bytes, dict[int, None]] = {}
        """By digest: the producers whose open transactions have it."""

    def __len__(self) -> int:
        return len(self._known) + self._provisional_count

    def find(self, digest: bytes, now_ms: int, window_ms: int, producer_id: int = NO_PRODUCER_ID) -> int | None:
        """Return the offset of an id's record if it is within the window: a decided one, or one of the open transaction
        of this producer.
        """
        entry = self._known.get(digest)
        if entry is not None and now_ms - entry[1] < window_ms:
            return entry[0]
        own = self._provisional.get(producer_id) if self._provisional else None
        known = None if own is None else own.get(digest)
        return None if known is None or now_ms - known.timestamp_ms >= window_ms else known.offset

    def holder(self, digest: bytes, now_ms: int, window_ms: int, producer_id: int) -> int:
        """Return another producer whose open transaction has an id within the window; -1 if there is none."""
        for holder in self._holders.get(digest, ()):
            if holder != producer_id and now_ms - self._provisional[holder][digest].timestamp_ms < window_ms:
                return holder
        return NO_PRODUCER_ID

    def add(self, known: KnownId, window_ms: int, producer_id: int = NO_PRODUCER_ID) -> None:
        """Add an appended record. The first record of an id stays until its window has passed.

        producer_id: -1, or the producer in whose transaction the record is.
        """
        digest, timestamp_ms = known.digest, known.timestamp_ms
        if self.find(digest, timestamp_ms, window_ms, producer_id) is not None:
            return
        if producer_id >= 0:
            return self._add_provisional(known, producer_id)
        self._known[digest] = (known.offset, timestamp_ms)
        self._known.move_to_end(digest)
        if len(self._known) > self._max_ids:
            self._known.popitem(last=False)

    def end(self, producer_id: int, window_ms: int, *, commits: bool) -> None:
        """Decide on the ids of a producer's transaction, if it has any."""
        ids = self._provisional.pop(producer_id, {})
        self._provisional_count -= len(ids)
        for digest in ids:
            self._let_go(digest, producer_id)
        for known in ids.values() if commits else ():
            self.add(known, window_ms)

    def forget(self, oldest_ms: int) -> None:
        """Forget the decided ids up to a time: their window has passed."""
        while self._known and next(iter(self._known.values()))[1] <= oldest_ms:
            self._known.popitem(last=False)

    def first_offsets(self) -> list[tuple[int, int]]:
        """Return the producers whose open transactions have ids, each with the offset of its oldest one."""
        return [(producer_id, next(iter(ids.values())).offset) for producer_id, ids in self._provisional.items()]

    def _add_provisional(self, known: KnownId, producer_id: int) -> None:
        ids = self._provisional.setdefault(producer_id, {})
        self._provisional_count += known.digest not in ids
        ids.pop(known.digest, None)
        ids[known.digest] = known
        self._holders.setdefault(known.digest, {})[producer_id] = None
        if self._provisional_count > self._max_ids:
            oldest = next(iter(ids))
            del ids[oldest]
            self._let_go(oldest, producer_id)
            self._provisional_count -= 1
            if not ids:
                del self._provisional[producer_id]

    def _let_go(self, digest: bytes, producer_id: int) -> None:
        holders = self._holders[digest]
        del holders[producer_id]
        if not holders:
            del self._holders[digest]


class Deduplicated(msgspec.Struct, frozen=True, kw_only=True):
    """The new part of a batch.

    header, content: the batch without its duplicates; content is None if nothing needs to be appended.
    duplicates: by a record's offset delta in the batch, the offset of the earlier record.
    repeats: the same for an earlier record in this batch, whose offset delta it gives.
    fresh: ids to add to the index, with offsets relative to the batch.
    held_by: -1, or a producer whose open transaction has an id of the batch. The other fields then mean nothing.
    """

    header: BatchHeader
    content: Unpacked | None
    duplicates: Mapping[int, int] = msgspec.field(default_factory=dict)
    repeats: Mapping[int, int] = msgspec.field(default_factory=dict)
    fresh: tuple[KnownId, ...] = ()
    held_by: int = NO_PRODUCER_ID


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
        first = None if digest is None else index.find(digest, now_ms, window_ms, header.producer_id)
        if first is not None:
            duplicates[offset_delta] = first
        elif digest is not None and digest in fresh:
            repeats[offset_delta] = fresh[digest].offset
        else:
            _extend(kept, start, end)
            kept_count, newest_ms = kept_count + 1, max(newest_ms, timestamp_ms)
            if digest is not None:
                holder = index.holder(digest, now_ms, window_ms, header.producer_id)
                if holder >= 0:
                    return Deduplicated(header=header, content=content, held_by=holder)
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


def add_log(index: DedupIndex, batches: Iterable[StoredBatch], oldest_ms: int, window_ms: int) -> int:
    """Add the ids in a chunk of a log, and decide on those of the transactions that end in it. Returns the next offset.

    Batches older than `oldest_ms` are skipped. An unreadable batch, which a plain topic may contain, has no ids.
    """
    next_offset = 0
    for header, _, content in batches:
        next_offset = header.next_offset
        if header.attributes & CONTROL:
            marker = decode_marker(header, content) if is_marker(header) else None
            if marker is not None:
                index.end(marker.producer_id, window_ms, commits=marker.commits)
        elif header.max_timestamp >= oldest_ms:
            producer_id = transaction_of(header)
            for known in _ids_of_batch(content):
                index.add(known.seen_at(oldest_ms + window_ms), window_ms, producer_id)
    return next_offset


def transaction_of(header: BatchHeader) -> int:
    """Return the producer in whose transaction a batch is; -1 if it is in none."""
    return header.producer_id if header.attributes & TRANSACTIONAL else NO_PRODUCER_ID


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
