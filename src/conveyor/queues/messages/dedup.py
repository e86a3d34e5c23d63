"""Messages that were published twice: known by `conveyor-dedup-id`, within a window of time, in one partition.

What is known is what the log says: an index of ids is made from the partition's records, and holds nothing else. Time
is the records' own timestamps.
"""

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b

from conveyor.kernel.ids import NO_TIMESTAMP
from conveyor.records.batch import BatchHeader, iterate_batches
from conveyor.records.compression import Unpacked, contains, cut_out
from conveyor.records.message_attributes import DEDUP_ID, last_header
from conveyor.records.record import Header, UnreadableBatch, raw_records, unpacked_records

_NAME = DEDUP_ID.encode()
_DIGEST_BYTES = 16


@dataclass(frozen=True, slots=True)
class KnownId:
    """An id's digest, and the record that brought it."""

    digest: bytes
    offset: int
    timestamp_ms: int


class DedupIndex:
    """The ids of one partition, in the order of their offsets; beyond `max_ids` the longest known is forgotten."""

    __slots__ = ("_known", "_max_ids")

    def __init__(self, max_ids: int) -> None:
        self._max_ids = max_ids
        self._known: OrderedDict[bytes, tuple[int, int]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._known)

    def find(self, digest: bytes, now_ms: int, window_ms: int) -> int | None:
        """The offset of the record with an id, if it is not older than the window."""
        known = self._known.get(digest)
        return None if known is None or now_ms - known[1] >= window_ms else known[0]

    def add(self, known: KnownId, window_ms: int) -> None:
        """Take a record that is in the log. The first of an id stays, until its window is over."""
        digest, timestamp_ms = known.digest, known.timestamp_ms
        if self.find(digest, timestamp_ms, window_ms) is not None:
            return
        self._known[digest] = (known.offset, timestamp_ms)
        self._known.move_to_end(digest)
        self._forget(timestamp_ms - window_ms)

    def _forget(self, oldest_ms: int) -> None:
        while len(self._known) > self._max_ids or next(iter(self._known.values()))[1] <= oldest_ms:
            self._known.popitem(last=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Deduplicated:
    """What of a batch is new.

    header, content: of the batch without the records that are known; None if nothing is left that has to be appended.
    duplicates: offset of the first, by a record's number in its batch. repeats: the number of the first, where that is
    in the same batch. fresh: what to add to the index, offsets counted from the batch's.
    """

    header: BatchHeader
    content: Unpacked | None
    duplicates: Mapping[int, int] = field(default_factory=dict)
    repeats: Mapping[int, int] = field(default_factory=dict)
    fresh: tuple[KnownId, ...] = ()


def has_ids(content: Unpacked) -> bool:
    """Whether it is worth looking for ids among unpacked records."""
    return contains(content, _NAME)


def deduplicate(header: BatchHeader, content: Unpacked, index: DedupIndex, now_ms: int, window_ms: int) -> Deduplicated:
    """Leave out the records whose id is known. Raises UnreadableBatch.

    The others keep their numbers, so that a producer finds them where it counts them. A batch of an idempotent
    producer of which nothing is left is appended empty: its sequence numbers are used up.
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
    left = header._replace(records_count=kept_count, max_timestamp=newest_ms if kept else header.max_timestamp)
    return Deduplicated(
        header=left,
        content=cut_out(content, kept) if kept or header.producer_id >= 0 else None,
        duplicates=duplicates,
        repeats=repeats,
        fresh=tuple(fresh.values()),
    )


def ids_of_records(header: BatchHeader, content: Unpacked) -> list[KnownId]:
    """Every id in a batch. Raises UnreadableBatch."""
    base_offset = header.base_offset
    return [
        KnownId(digest, base_offset + offset_delta, timestamp_ms)
        for _, _, offset_delta, timestamp_ms, _, _, headers in raw_records(header, content, skims=True)
        if (digest := dedup_digest(headers)) is not None
    ]


def ids_of_log(content: bytes, oldest_ms: int) -> tuple[list[KnownId], int]:
    """The ids in what was read of a log, without batches that are older than that; and the offset behind it.

    A batch that cannot be read, which a plain topic stores, has none.
    """
    known: list[KnownId] = []
    next_offset = 0
    for position, header in iterate_batches(content):
        if header.max_timestamp >= oldest_ms:
            known += _ids_of_batch(content[position : position + header.size])
        next_offset = header.next_offset
    return known, next_offset


def _ids_of_batch(batch: bytes) -> list[KnownId]:
    try:
        header, content = unpacked_records(batch)
        return ids_of_records(header, content) if has_ids(content) else []
    except UnreadableBatch:
        return []


def dedup_digest(headers: Sequence[Header]) -> bytes | None:
    """What stands for a record's id, in as many bytes however long that is; None if it has none."""
    text = last_header(headers, DEDUP_ID) if headers else None
    return blake2b(text, digest_size=_DIGEST_BYTES).digest() if text else None


def _extend(ranges: list[tuple[int, int]], start: int, end: int) -> None:
    """Add [start, end) to ranges that rise; neighbours are one."""
    if ranges and ranges[-1][1] == start:
        ranges[-1] = (ranges[-1][0], end)
    else:
        ranges.append((start, end))
