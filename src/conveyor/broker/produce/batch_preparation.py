"""What happens to a batch whose records are looked at, before it is appended: checked, de-duplicated, packed anew.

Pure: it is run on the event loop for small batches, and on a thread for all others.
"""

from collections import deque
from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from conveyor.delay.forwarding_batches import MAX_DELAYED_BYTES
from conveyor.kernel.errors import ErrorKind, RequestError
from conveyor.kernel.ports import Bytes
from conveyor.queues.messages.dedup import DedupIndex, KnownId, deduplicate, has_ids, ids_of_records
from conveyor.records.batch import COMPRESSION_MASK, BatchHeader
from conveyor.records.compression import MAX_UNPACKED_BYTES, Unpacked, contains
from conveyor.records.message_attributes import PREFIX
from conveyor.records.record import raw_records, unpacked_records
from conveyor.records.record_checks import check_records, looks_at_records
from conveyor.records.repack import pack_batch, wants_recompression
from conveyor.records.timestamps import stamps_records
from conveyor.settings.tree import TopicSettings

MAX_MARKED_RECORDS = 10_000
"""In a batch with ids or delayed messages, which are noted on the event loop: as many as librdkafka sends in one."""

_MARK = PREFIX.encode()
_NONE: Mapping[int, int] = MappingProxyType({})


class Preparation(NamedTuple):
    """A batch, and what its partition asks of it. batch: `check_batch` has taken it.

    is_delayed: the batch goes into an inbox, which reads records that ask for a delay. ids: those that are known;
    None if nobody asks for any. drops: leave out records whose id is known, or take all and note their ids.
    """

    batch: Bytes
    header: BatchHeader
    topic: TopicSettings
    now_ms: int
    is_delayed: bool
    ids: DedupIndex | None
    drops: bool


class PreparedBatch(NamedTuple):
    """A batch as it is appended; None if all of its records are known. The rest: see `Deduplicated`."""

    batch: Bytes | None
    duplicates: Mapping[int, int] = _NONE
    repeats: Mapping[int, int] = _NONE
    fresh: tuple[KnownId, ...] = ()


def prepare(wanted: Preparation, limit_bytes: int = MAX_UNPACKED_BYTES) -> PreparedBatch:
    """Raises UnreadableBatch (also if the batch unpacks to more than the limit), RefusedRecords, RequestError."""
    header, content = unpacked_records(wanted.batch, limit_bytes)
    is_delayed = wanted.is_delayed and contains(content, _MARK)
    if is_delayed or _checks_records(wanted):
        check_records(header, content, wanted.topic, wanted.now_ms)
    asks_for_ids = wanted.ids is not None and has_ids(content)
    if is_delayed or asks_for_ids:
        _check_size(wanted, content, is_delayed=is_delayed)
    if wanted.ids is None or not asks_for_ids:
        return PreparedBatch(batch=_packed(wanted, content))
    if not wanted.drops:
        return PreparedBatch(batch=_packed(wanted, content), fresh=tuple(ids_of_records(header, content)))
    left = deduplicate(header, content, wanted.ids, wanted.now_ms, wanted.topic.dedup_window_ms)
    if left.content is content:
        batch: Bytes | None = _packed(wanted, content)
    else:
        batch = None if left.content is None else pack_batch(left.header, left.content, wanted.topic)
    return PreparedBatch(batch=batch, duplicates=left.duplicates, repeats=left.repeats, fresh=left.fresh)


def _checks_records(wanted: Preparation) -> bool:
    topic = wanted.topic
    if looks_at_records(topic):
        return True
    newest_ms = wanted.now_ms + topic.message_timestamp_after_max_ms
    return wanted.header.max_timestamp > newest_ms and not stamps_records(topic)


def _check_size(wanted: Preparation, content: Unpacked, *, is_delayed: bool) -> None:
    """A producer can divide a batch that is too large; but not one that lies. Raises UnreadableBatch, RequestError."""
    header = wanted.header
    if header.records_count > MAX_MARKED_RECORDS:
        deque(raw_records(header, content, skims=True), maxlen=0)
        reason = f"{header.records_count} records, and {MAX_MARKED_RECORDS} is the most with ids or delays"
        raise RequestError(ErrorKind.MESSAGE_TOO_LARGE, reason)
    is_taken_apart = header.records_count > 1 or stamps_records(wanted.topic)
    is_packed = header.attributes & COMPRESSION_MASK
    if is_delayed and is_taken_apart and is_packed and len(content) > MAX_DELAYED_BYTES:
        reason = f"unpacks to {len(content)} bytes, and {MAX_DELAYED_BYTES} is the most with delays"
        raise RequestError(ErrorKind.MESSAGE_TOO_LARGE, reason)


def _packed(wanted: Preparation, content: Unpacked) -> Bytes:
    """The whole batch: the producer's own bytes, unless its topic asks for another codec."""
    if wants_recompression(wanted.topic, wanted.header):
        return pack_batch(wanted.header, content, wanted.topic)
    return wanted.batch
