"""Deduplication of a batch: its known records, and the remaining ones."""

from collections.abc import Iterator
from typing import Any

from conveyor.kernel.ports import FileSlice
from conveyor.log.batch_reading import StoredBatch, batches_in
from conveyor.log.producers.message_ids import DedupIndex, Deduplicated, KnownId, add_log, deduplicate
from conveyor.records import compression
from conveyor.records.batch import MAGIC_END, TRANSACTIONAL, placed_prefix, read_header
from conveyor.records.message_attributes import DEDUP_ID
from conveyor.records.record import Header, decode_records, encode_batch, seal_batch, unpacked_records
from conveyor.records.transaction_marker import TransactionMarker, encode_marker
from conveyor.testing import MemoryDisk
from tests.lying_batches import LIES

NOW_MS = 1_700_000_000_000
WINDOW_MS = 1000


def batch(
    *ids: bytes | None, codec: int = compression.NONE, producer_id: int = -1, timestamp_ms: int = NOW_MS
) -> bytes:
    records = [(timestamp_ms, None, b"v%d" % number, headers(dedup_id)) for number, dedup_id in enumerate(ids)]
    sequence = 0 if producer_id >= 0 else -1
    return encode_batch(records, codec=codec, producer_id=producer_id, producer_epoch=sequence, base_sequence=sequence)


def headers(dedup_id: bytes | None) -> tuple[Header, ...]:
    return () if dedup_id is None else ((DEDUP_ID, dedup_id),)


def index_of(*ids: bytes, base_offset: int = 100, max_ids: int = 1000) -> DedupIndex:
    index = DedupIndex(max_ids)
    for fresh_id in deduplicated(batch(*ids), index).fresh:
        index.add(KnownId(fresh_id.digest, base_offset + fresh_id.offset, fresh_id.timestamp_ms), WINDOW_MS)
    return index


def deduplicated(content: bytes, index: DedupIndex, now_ms: int = NOW_MS) -> Deduplicated:
    return deduplicate(*unpacked_records(content), index, now_ms, WINDOW_MS)


def values(left: Deduplicated) -> list[tuple[int, bytes | None]]:
    assert left.content is not None
    header = left.header._replace(attributes=0)
    return [(record.offset, record.value) for record in decode_records(seal_batch(header, left.content[:]))]


def test_batch_without_ids_is_left_as_it_is() -> None:
    header, content = unpacked_records(batch(None, None))
    left = deduplicate(header, content, index_of(b"a"), NOW_MS, WINDOW_MS)
    assert left == Deduplicated(header=header, content=content)
    assert left.content is content


def test_new_ids_leave_the_batch_as_it_is_and_are_told() -> None:
    content = batch(b"b", None, b"c")
    result = deduplicated(content, index_of(b"a"))
    assert result.content == unpacked_records(content)[1]
    assert [fresh_id.offset for fresh_id in result.fresh] == [0, 2]
    assert not result.duplicates


def test_known_records_are_left_out_and_the_others_keep_their_numbers() -> None:
    result = deduplicated(batch(b"x", b"a", None, b"b"), index_of(b"a", b"b"))
    assert values(result) == [(0, b"v0"), (2, b"v2")]
    assert result.duplicates == {1: 100, 3: 101}


def test_compressed_batch_stays_compressed() -> None:
    result = deduplicated(batch(b"x", b"a", codec=compression.GZIP), index_of(b"a"))
    assert values(result) == [(0, b"v0")]
    assert (result.header.attributes, result.header.last_offset_delta) == (compression.GZIP, 1)


def test_id_that_comes_twice_in_a_batch_is_taken_once() -> None:
    result = deduplicated(batch(b"x", b"y", b"x", b"x"), DedupIndex(9))
    assert values(result) == [(0, b"v0"), (1, b"v1")]
    assert (result.duplicates, result.repeats) == ({}, {2: 0, 3: 0})


def test_nothing_is_left_of_a_batch_of_duplicates() -> None:
    result = deduplicated(batch(b"a", b"b"), index_of(b"a", b"b"))
    assert (result.content, result.duplicates) == (None, {0: 100, 1: 101})


def test_idempotent_producer_uses_up_its_sequence_with_an_empty_batch() -> None:
    result = deduplicated(batch(b"a", b"b", producer_id=7, codec=compression.ZSTD), index_of(b"a", b"b"))
    header = result.header
    assert (header.records_count, header.last_offset_delta, header.producer_id, header.base_sequence) == (0, 1, 7, 0)
    assert values(result) == []


def test_id_is_new_again_after_the_window() -> None:
    index = index_of(b"a")
    assert deduplicated(batch(b"a"), index, NOW_MS + WINDOW_MS - 1).duplicates == {0: 100}
    assert deduplicated(batch(b"a"), index, NOW_MS + WINDOW_MS).duplicates == {}


def test_first_of_an_id_stays_within_its_window() -> None:
    index = index_of(b"a")
    digest = deduplicated(batch(b"a"), DedupIndex(9)).fresh[0].digest
    index.add(KnownId(digest, 200, NOW_MS + 1), WINDOW_MS)
    assert index.find(digest, NOW_MS + 1, WINDOW_MS) == 100
    index.add(KnownId(digest, 300, NOW_MS + WINDOW_MS), WINDOW_MS)
    assert index.find(digest, NOW_MS + WINDOW_MS, WINDOW_MS) == 300


def test_index_forgets_what_is_over_and_what_is_too_much() -> None:
    assert len(index_of(b"a", b"b", b"c", max_ids=2)) == 2
    index = index_of(b"a", b"b")
    index.add(KnownId(b"of a clock that is fast", 102, NOW_MS + WINDOW_MS), WINDOW_MS)
    index.forget(NOW_MS - 1)
    assert len(index) == 3
    index.forget(NOW_MS)
    assert len(index) == 1


def stored(*batches: bytes) -> Iterator[StoredBatch]:
    file, next_offset = MemoryDisk().open("log", create=True), 0
    for content in batches:
        header = read_header(content)
        file.append([placed_prefix(next_offset, header, 0), content[MAGIC_END:]])
        next_offset += header.last_offset_delta + 1
    return batches_in(FileSlice(file, 0, file.size), 0)


def test_ids_are_read_back_from_a_log() -> None:
    old, new = batch(b"old", timestamp_ms=NOW_MS - 10), batch(b"a", None, b"b", codec=compression.GZIP)
    index = DedupIndex(9)
    assert add_log(index, stored(old, new), NOW_MS, WINDOW_MS) == 4
    assert deduplicated(batch(b"old", b"a", b"b"), index).duplicates == {1: 1, 2: 3}


def test_batch_that_cannot_be_unpacked_has_no_ids() -> None:
    index = DedupIndex(9)
    assert add_log(index, stored(LIES["gzip that does not unpack"]), 0, WINDOW_MS) == 2
    assert len(index) == 0


def holding(*ids: bytes, producer_id: int = 7, max_ids: int = 9) -> DedupIndex:
    """Return an index with the ids of one open transaction, from offset 100 on."""
    index = DedupIndex(max_ids)
    for fresh_id in deduplicated(batch(*ids), index).fresh:
        known = KnownId(fresh_id.digest, 100 + fresh_id.offset, fresh_id.timestamp_ms)
        index.add(known, WINDOW_MS, producer_id)
    return index


def test_id_of_an_open_transaction_holds_up_other_producers_only() -> None:
    index = holding(b"a")
    assert deduplicated(batch(b"x", b"a"), index).held_by == 7
    assert deduplicated(batch(b"a", producer_id=8), index).held_by == 7
    own = deduplicated(batch(b"a", b"x", producer_id=7), index)
    assert (own.held_by, own.duplicates) == (-1, {0: 100})
    assert deduplicated(batch(b"a"), index, NOW_MS + WINDOW_MS).held_by == -1


class CountedIds(dict[bytes, KnownId]):
    """The ids of a transaction. Counts the searches in all of them."""

    searches = 0

    def get(self, *arguments: Any) -> Any:
        CountedIds.searches += 1
        return super().get(*arguments)


def test_new_ids_are_not_searched_for_in_each_open_transaction() -> None:
    index = DedupIndex(1_000)
    for producer_id in range(500):
        index._provisional[producer_id] = CountedIds()
        fresh_id = deduplicated(batch(b"%d" % producer_id), index).fresh[0]
        index.add(KnownId(fresh_id.digest, producer_id, NOW_MS), WINDOW_MS, producer_id)
    CountedIds.searches = 0
    assert len(deduplicated(batch(*[b"new %d" % number for number in range(100)]), index).fresh) == 100
    assert deduplicated(batch(b"400"), index).held_by == 400
    assert CountedIds.searches == 0


def test_commit_decides_on_ids_and_abort_drops_them() -> None:
    index = holding(b"a", b"b")
    index.end(8, WINDOW_MS, commits=True)
    assert index.first_offsets() == [(7, 100)]
    index.end(7, WINDOW_MS, commits=True)
    assert deduplicated(batch(b"b", b"a"), index).duplicates == {0: 101, 1: 100}
    index = holding(b"a", b"b")
    index.end(7, WINDOW_MS, commits=False)
    assert (len(index), deduplicated(batch(b"a"), index).duplicates) == (0, {})


def test_id_of_two_transactions_outlives_the_aborted_one() -> None:
    """A topic without `dedup.enable` appends both."""
    index = holding(b"a")
    digest = deduplicated(batch(b"a"), DedupIndex(9)).fresh[0].digest
    index.add(KnownId(digest, 200, NOW_MS), WINDOW_MS, 8)
    index.end(7, WINDOW_MS, commits=False)
    index.end(8, WINDOW_MS, commits=True)
    assert deduplicated(batch(b"a"), index).duplicates == {0: 200}


def test_ids_of_transactions_are_limited() -> None:
    index = holding(b"a", b"b", b"c", max_ids=2)
    assert (len(index), index.first_offsets()) == (2, [(7, 101)])
    digest = deduplicated(batch(b"x"), DedupIndex(9)).fresh[0].digest
    index.add(KnownId(digest, 200, NOW_MS), WINDOW_MS, 8)
    assert (len(index), index.first_offsets()) == (2, [(7, 101)])


def test_ids_of_transactions_are_read_back_with_their_outcomes() -> None:
    log = b"".join(
        with_offset(content, offset)
        for offset, content in enumerate(
            [
                transactional(b"a", 7), transactional(b"b", 8), transactional(b"c", 9), marker(7, commits=True),
                marker(8, commits=False), transactional(b"b", 7),
            ]
        )
    )  # fmt: skip
    index = DedupIndex(9)
    assert add_log(index, stored(log), NOW_MS - WINDOW_MS, WINDOW_MS) == 6
    assert index.first_offsets() == [(9, 2), (7, 5)]
    assert deduplicated(batch(b"a"), index).duplicates == {0: 0}
    assert [deduplicated(batch(each), index).held_by for each in (b"b", b"c")] == [7, 9]


def transactional(dedup_id: bytes, producer_id: int) -> bytes:
    return encode_batch(
        [(NOW_MS, None, b"v", headers(dedup_id))], attributes=TRANSACTIONAL, producer_id=producer_id, producer_epoch=0,
        base_sequence=0,
    )  # fmt: skip


def marker(producer_id: int, *, commits: bool) -> bytes:
    ended = TransactionMarker(producer_id=producer_id, producer_epoch=0, coordinator_epoch=0, commits=commits)
    return encode_marker(ended, NOW_MS)


def with_offset(content: bytes, offset: int) -> bytes:
    return placed_prefix(offset, read_header(content), 0) + content[MAGIC_END:]
