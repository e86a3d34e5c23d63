"""Messages that were published twice: known by `conveyor-dedup-id`, within a window of time, in one partition.

What is known is what the log says: an index of ids is made from the partition's records, and holds nothing else. Time
is the records' own timestamps.
"""

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import blake2b

from conveyor.kernel.errors import RequestError
from conveyor.kernel.ports import Bytes
from conveyor.log.batch import COMPRESSION_MASK, BatchHeader, iterate_batches, read_header
from conveyor.log.records import Record, decode_records, rebuild_batch
from conveyor.queues.attributes import DEDUP_ID, last_header

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
class Thinned:
    """A batch without the records that are known.

    batch: None if nothing is left that has to be appended; the bytes as they came if all of it is new.
    duplicates: offset of the first, by a record's number in its batch. repeats: the number of the first, where that is
    in the same batch. fresh: what to add to the index, offsets counted from the batch's.
    """

    batch: Bytes | None
    duplicates: Mapping[int, int] = field(default_factory=dict)
    repeats: Mapping[int, int] = field(default_factory=dict)
    fresh: tuple[KnownId, ...] = ()


def may_have_ids(batch: Bytes, header: BatchHeader) -> bool:
    """Whether it is worth unpacking a batch to look for ids."""
    return bool(header.attributes & COMPRESSION_MASK) or _NAME in bytes(batch)


def thin(batch: Bytes, index: DedupIndex, now_ms: int, window_ms: int) -> Thinned:
    """Leave out the records whose id is known. batch: checked. Raises RequestError (CORRUPT_BATCH).

    The others keep their numbers, so that a producer finds them where it counts them. A batch of an idempotent
    producer of which nothing is left is appended empty: its sequence numbers are used up.
    """
    header = read_header(batch)
    if not may_have_ids(batch, header):
        return Thinned(batch=batch)
    kept: list[Record] = []
    fresh: dict[bytes, KnownId] = {}
    duplicates: dict[int, int] = {}
    repeats: dict[int, int] = {}
    for record in decode_records(batch):
        digest = dedup_digest(record)
        first = None if digest is None else index.find(digest, now_ms, window_ms)
        if first is not None:
            duplicates[record.offset] = first
        elif digest is not None and digest in fresh:
            repeats[record.offset] = fresh[digest].offset
        else:
            kept.append(record)
            if digest is not None:
                fresh[digest] = KnownId(digest, record.offset, record.timestamp_ms)
    if len(kept) == header.records_count:
        return Thinned(batch=batch, fresh=tuple(fresh.values()))
    return Thinned(
        batch=_without_duplicates(header, kept),
        duplicates=duplicates,
        repeats=repeats,
        fresh=tuple(fresh.values()),
    )


def ids_of_batch(batch: Bytes, header: BatchHeader) -> list[KnownId]:
    """Every id in a batch; none if it cannot be unpacked, which the log does not ask of a batch."""
    if not may_have_ids(batch, header):
        return []
    try:
        return [
            KnownId(digest, record.offset, record.timestamp_ms)
            for record in decode_records(batch)
            if (digest := dedup_digest(record)) is not None
        ]
    except RequestError:
        return []


def ids_of_log(content: bytes, oldest_ms: int) -> tuple[list[KnownId], int]:
    """The ids in what was read of a log, without batches that are older than that; and the offset behind it."""
    known: list[KnownId] = []
    next_offset = 0
    for position, header in iterate_batches(content):
        if header.max_timestamp >= oldest_ms:
            known += ids_of_batch(content[position : position + header.size], header)
        next_offset = header.next_offset
    return known, next_offset


def dedup_digest(record: Record) -> bytes | None:
    """What stands for a record's id, in as many bytes however long that is; None if it has none."""
    text = last_header(record.headers, DEDUP_ID) if record.headers else None
    return blake2b(text, digest_size=_DIGEST_BYTES).digest() if text else None


def _without_duplicates(header: BatchHeader, kept: list[Record]) -> bytes | None:
    if kept:
        return rebuild_batch(header, kept, header.base_timestamp, header.attributes)
    if header.producer_id < 0:
        return None
    return rebuild_batch(header, [], header.base_timestamp, header.attributes & ~COMPRESSION_MASK)
