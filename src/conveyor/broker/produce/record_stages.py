"""The stages of a batch whose records are inspected, before its append, in this order:

    unpack -> look at records -> de-duplicate -> name the publisher -> recompress

Pure: they run on the event loop for small batches, and on a thread for all others.
"""

from collections import deque
from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from conveyor.broker.produce.deduplication import drop_duplicates
from conveyor.kernel.errors import ErrorKind, RequestError
from conveyor.kernel.ids import NO_PRODUCER_ID
from conveyor.log.producers.message_ids import DedupIndex, KnownId, has_ids
from conveyor.records.batch import BatchHeader
from conveyor.records.checked_batch import CheckedBatch
from conveyor.records.compression import MAX_UNPACKED_BYTES, Unpacked
from conveyor.records.publishers import name_publisher
from conveyor.records.record import raw_records, unpack_records
from conveyor.records.record_checks import check_records, demands_record_checks
from conveyor.records.repack import pack_batch, wants_recompression
from conveyor.records.timestamps import is_too_new
from conveyor.settings.tree import TopicSettings

MAX_MARKED_RECORDS = 10_000
"""The most records in a batch with ids, because the event loop registers them. librdkafka sends no more."""

_NONE: Mapping[int, int] = MappingProxyType({})


class ProducedRecords(NamedTuple):
    """A batch, and the demands of the partition that it is appended to.

    ids: the known ids; None if ids are not checked.
    drops_known: drop records with known ids; otherwise keep all records and register their ids.
    publisher: see `name_publisher`; None if the records stay as they are.
    """

    batch: CheckedBatch
    topic: TopicSettings
    now_ms: int
    ids: DedupIndex | None
    drops_known: bool
    publisher: bytes | None = None


class StagedBatch(NamedTuple):
    """A batch ready to append; None if all its records are duplicates. For the other fields see `Deduplicated`.

    held_by: if it is a producer id, the batch is not ready: it must be refused.
    """

    batch: CheckedBatch | None
    duplicates: Mapping[int, int] = _NONE
    repeats: Mapping[int, int] = _NONE
    fresh: tuple[KnownId, ...] = ()
    held_by: int = NO_PRODUCER_ID


def run_record_stages(produced: ProducedRecords, limit_bytes: int = MAX_UNPACKED_BYTES) -> StagedBatch:
    """Run the stages. Raises UnreadableBatch (also for content above the limit), RefusedRecords, RequestError."""
    return inspect_records(produced, unpack_records(produced.batch.header, produced.batch.content, limit_bytes))


def inspect_records(produced: ProducedRecords, content: Unpacked) -> StagedBatch:
    """Run the stages of a batch from its decompressed records on. Raises: see `run_record_stages`."""
    batch, topic, now_ms = produced.batch, produced.topic, produced.now_ms
    header = batch.header
    ids = produced.ids if produced.ids is not None and has_ids(content) else None
    check_demands(header, content, topic, now_ms)
    if ids is None:
        return StagedBatch(_finished(produced, header, content))
    check_marked_size(header, content)
    left = drop_duplicates(header, content, ids, topic, now_ms, drops_known=produced.drops_known)
    if left.held_by >= 0:
        return StagedBatch(batch, held_by=left.held_by)
    new = None if left.content is None else _finished(produced, left.header, left.content)
    return StagedBatch(new, left.duplicates, left.repeats, left.fresh)


def check_demands(header: BatchHeader, content: Unpacked, topic: TopicSettings, now_ms: int) -> None:
    """Check every record if the topic demands it. Raises as `check_records` does."""
    if demands_record_checks(topic) or is_too_new(header.max_timestamp, topic, now_ms):
        check_records(header, content, topic, now_ms)


def check_marked_size(header: BatchHeader, content: Unpacked) -> None:
    """Limit the size of a batch with ids. Raises UnreadableBatch, RequestError (MESSAGE_TOO_LARGE).

    UnreadableBatch comes first: a producer can divide a large batch, but cannot repair an invalid one by dividing it.
    """
    if header.records_count > MAX_MARKED_RECORDS:
        deque(raw_records(header, content, skims=True), maxlen=0)
        reason = f"{header.records_count} records: the limit with ids is {MAX_MARKED_RECORDS}"
        raise RequestError(ErrorKind.MESSAGE_TOO_LARGE, reason)


def _finished(produced: ProducedRecords, header: BatchHeader, content: Unpacked) -> CheckedBatch:
    """Return the batch to append. header, content: see `recompress`."""
    if produced.publisher is not None:
        header, content = name_publisher(header, content, produced.publisher)
    return recompress(produced.batch, header, content, produced.topic)


def recompress(batch: CheckedBatch, header: BatchHeader, content: Unpacked, topic: TopicSettings) -> CheckedBatch:
    """Return the batch to append: the producer's own, unless records were changed or the topic demands another codec.

    header, content: the batch after the earlier stages, decompressed; if they changed nothing, header is the batch's
    own.
    Raises RequestError: see `pack_batch`.
    """
    if header is batch.header and not wants_recompression(topic, header):
        return batch
    return pack_batch(header, content, topic)
