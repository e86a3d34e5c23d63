"""The record stages: the checks of each stage, and its resulting batch."""

import pytest

from conveyor.broker.produce.deduplication import drop_duplicates
from conveyor.broker.produce.record_stages import (
    MAX_MARKED_RECORDS,
    ProducedRecords,
    StagedBatch,
    check_demands,
    check_marked_size,
    recompress,
    run_record_stages,
)
from conveyor.kernel.errors import ErrorKind, RequestError
from conveyor.log.producers.message_ids import DedupIndex, KnownId, dedup_digest
from conveyor.records import compression
from conveyor.records.checked_batch import CheckedBatch, check_batch
from conveyor.records.message_attributes import DEDUP_ID
from conveyor.records.record import Header, UnreadableBatch, decode_records, encode_batch, unpack_records
from conveyor.settings.tree import TopicSettings
from tests.lying_batches import many_records, raw_record, sealed
from tests.unit.log.logs import NOW_MS

PLAIN = TopicSettings()
COMPACTED = TopicSettings(cleanup_policy="compact")
PACKED = TopicSettings(compression_type="zstd")
ROOM = 64 << 20


def produced(*ids: bytes, codec: int = compression.NONE, at_ms: int = NOW_MS, key: bytes | None = b"k") -> CheckedBatch:
    headers: list[tuple[Header, ...]] = [((DEDUP_ID, dedup_id),) if dedup_id else () for dedup_id in ids]
    return check_batch(
        encode_batch([(at_ms, key, b"v", record_headers) for record_headers in headers], codec=codec), ROOM
    )


def known(*ids: bytes) -> DedupIndex:
    """Return an index with these ids at offsets from 100 on."""
    index = DedupIndex(100)
    for offset, dedup_id in enumerate(ids, 100):
        digest = dedup_digest(((DEDUP_ID, dedup_id),))
        assert digest is not None
        index.add(KnownId(digest, offset, NOW_MS), 60_000)
    return index


def staged(
    batch: CheckedBatch,
    topic: TopicSettings = PLAIN,
    ids: DedupIndex | None = None,
    *,
    drops_known: bool = True,
    limit_bytes: int = ROOM,
) -> StagedBatch:
    records = ProducedRecords(batch, topic, NOW_MS, ids, drops_known)
    return run_record_stages(records, limit_bytes)


def kind_of(refused: pytest.ExceptionInfo[RequestError]) -> ErrorKind:
    return refused.value.kind


def test_batch_of_which_nothing_is_asked_stays_as_it_is() -> None:
    batch = produced(b"a", b"")
    assert staged(batch) == StagedBatch(batch)
    assert staged(batch).batch is batch


def test_batch_that_unpacks_to_more_than_the_limit_is_unreadable() -> None:
    with pytest.raises(UnreadableBatch):
        staged(produced(*[b""] * 1000, codec=compression.ZSTD), limit_bytes=1000)


def test_demands_are_checked_where_topic_or_time_ask_for_it() -> None:
    keyless, late = produced(b"", key=None), produced(b"", at_ms=NOW_MS + 3_600_001)
    lying = check_batch(sealed(raw_record(1), 1), ROOM)
    for batch, topic, kind in (
        (keyless, PLAIN, None),
        (keyless, COMPACTED, ErrorKind.INVALID_RECORD),
        (late, PLAIN, ErrorKind.INVALID_TIMESTAMP),
        (late, TopicSettings(message_timestamp_type="LogAppendTime"), None),
        (lying, PLAIN, None),
        (lying, COMPACTED, ErrorKind.INVALID_RECORD),
    ):
        content = unpack_records(batch.header, batch.content)
        if kind is None:
            check_demands(batch.header, content, topic, NOW_MS)
            continue
        with pytest.raises(RequestError) as refused:
            check_demands(batch.header, content, topic, NOW_MS)
        assert kind_of(refused) is kind


def test_batch_with_ids_has_a_largest_count() -> None:
    for count, is_taken in ((MAX_MARKED_RECORDS, True), (MAX_MARKED_RECORDS + 1, False)):
        batch = check_batch(many_records(count, compression.ZSTD), ROOM)
        content = unpack_records(batch.header, batch.content)
        if is_taken:
            check_marked_size(batch.header, content)
            continue
        with pytest.raises(RequestError) as refused:
            check_marked_size(batch.header, content)
        assert kind_of(refused) is ErrorKind.MESSAGE_TOO_LARGE


def test_records_whose_id_is_known_are_left_out() -> None:
    left = staged(produced(b"a", b"b", b"c", b"b"), ids=known(b"a"))
    assert (left.duplicates, left.repeats) == ({0: 100}, {3: 1})
    assert [fresh_id.offset for fresh_id in left.fresh] == [1, 2]
    assert left.batch is not None
    assert [record.offset for record in decode_records(left.batch.content)] == [1, 2]


def test_batch_of_which_all_is_known_is_not_appended() -> None:
    assert staged(produced(b"a", b"b"), ids=known(b"a", b"b")) == StagedBatch(None, {0: 100, 1: 101})


def test_ids_are_noted_only_where_nobody_asks_to_drop_them() -> None:
    batch = produced(b"a", b"", b"b")
    content = unpack_records(batch.header, batch.content)
    left = drop_duplicates(batch.header, content, known(b"a"), PLAIN, NOW_MS, drops_known=False)
    assert left.content is content
    assert [fresh_id.offset for fresh_id in left.fresh] == [0, 2]
    assert staged(batch, ids=known(b"a"), drops_known=False).batch is batch


@pytest.mark.parametrize("codec", [compression.NONE, compression.GZIP, compression.ZSTD])
def test_batch_is_recompressed_if_its_topic_has_another_codec(codec: int) -> None:
    batch = produced(b"a", codec=codec)
    packed = recompress(batch, batch.header, unpack_records(batch.header, batch.content), PACKED)
    assert packed.header.attributes == compression.ZSTD
    assert (packed is batch) == (codec == compression.ZSTD)
    assert list(decode_records(packed.content)) == list(decode_records(batch.content))


def test_batch_whose_records_do_not_fit_what_it_announces_is_refused_when_it_is_unpacked_for_good() -> None:
    lying = check_batch(sealed(raw_record(), 50, codec=compression.GZIP), ROOM)
    with pytest.raises(RequestError, match="cannot hold 50 records") as refused:
        staged(lying, TopicSettings(compression_type="uncompressed"))
    assert kind_of(refused) is ErrorKind.INVALID_RECORD
