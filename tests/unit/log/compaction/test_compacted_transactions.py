"""What compaction keeps of transactions: the records of committed ones, the markers for a time, and the producers."""

from dataclasses import replace
from random import Random

import pytest

from conveyor.kernel.ports import Disk
from conveyor.log.aborted_search import aborted_between
from conveyor.log.compaction.compaction_plan import CompactionLimits, CompactionPlan
from conveyor.log.compaction.key_compaction import CompactionResult, compact
from conveyor.log.log import Log
from conveyor.records import compression
from conveyor.records.batch import CONTROL, DELETE_HORIZON, TRANSACTIONAL, BatchHeader, iterate_batches
from conveyor.records.record import decode_records, encode_batch
from conveyor.records.transaction_marker import TransactionMarker, decode_marker, encode_marker, is_marker
from conveyor.settings.tree import TopicSettings
from conveyor.testing import MemoryDisk
from tests.unit.log.logs import NOW_MS, all_below, append, contents, flush, open_topic_log, segment_file

TOPIC = TopicSettings(
    segment_bytes=400, cleanup_policy="compact", min_cleanable_dirty_ratio=0, delete_retention_ms=1_000
)
LATER_MS = NOW_MS + TOPIC.delete_retention_ms


def sent(
    producer_id: int, sequence: int, *keys: bytes, size: int = 1, epoch: int = 0, codec: int = compression.NONE
) -> bytes:
    """A batch of a transaction."""
    return encode_batch(
        [(NOW_MS, key, bytes(size), ()) for key in keys],
        attributes=TRANSACTIONAL, producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence, codec=codec,
    )  # fmt: skip


def marker(producer_id: int, *, commits: bool, epoch: int = 0, coordinator_epoch: int = 5) -> bytes:
    return encode_marker(
        TransactionMarker(
            producer_id=producer_id, producer_epoch=epoch, coordinator_epoch=coordinator_epoch, commits=commits
        ),
        NOW_MS,
    )


def plain(key: bytes, value: bytes | None = b"v") -> bytes:
    return encode_batch([(NOW_MS, key, value, ())])


def log_of(disk: Disk, *batches: bytes) -> Log:
    """All batches in sealed segments: an active segment with one record follows."""
    log = open_topic_log(disk, TOPIC)
    for content in (*batches, plain(b"last", bytes(TOPIC.segment_bytes))):
        append(log, content)
    flush(log)
    log.producers.transactions.forget_decided(log.log_end_offset)
    return log


def planned(
    log: Log, now_ms: int = NOW_MS, max_keys: int = 100, limits: CompactionLimits | None = None
) -> CompactionPlan:
    plan = log.compaction.plan(limits or all_below(log.flushes.flushed_offset), now_ms, max_keys)
    assert plan is not None
    return plan


def swapped(disk: Disk, log: Log, plan: CompactionPlan) -> CompactionResult:
    result = compact(disk, plan)
    job = log.compaction.begin_swap(result)
    assert job is not None
    log.compaction.complete_swap(result, job.run())
    return result


def compacted(disk: Disk, log: Log, now_ms: int = NOW_MS, limits: CompactionLimits | None = None) -> CompactionResult:
    """Compact once more: a new sealed segment makes the compaction due."""
    append(log, plain(b"last", bytes(TOPIC.segment_bytes)))
    flush(log)
    return swapped(disk, log, planned(log, now_ms, limits=limits))


def batches(log: Log) -> list[BatchHeader]:
    return [header for header, _ in stored(log)]


def stored(log: Log) -> list[tuple[BatchHeader, bytes]]:
    found = []
    for segment in log.segments.all:
        content = segment.file.read(0, segment.size)
        found += [(header, content[at : at + header.size]) for at, header in iterate_batches(content)]
    return found


def markers(log: Log) -> list[int]:
    return [header.base_offset for header in batches(log) if is_marker(header)]


def keys(log: Log) -> list[bytes | None]:
    """The keys of all records but markers and fillings."""
    return [
        record.key
        for header, batch in stored(log)
        if not header.attributes & CONTROL
        for record in decode_records(batch)
        if record.key != b"last"
    ]


def aborted(log: Log) -> list[tuple[int, int, int]]:
    return [each[:3] for each in aborted_between(log.segments.all, 0, log.log_end_offset)]


def test_an_aborted_record_replaces_none_and_goes() -> None:
    disk = MemoryDisk()
    log = log_of(disk, plain(b"a", b"kept"), sent(1, 0, b"a", b"b"), marker(1, commits=False, epoch=1))
    compacted(disk, log)
    assert keys(log) == [b"a"]
    assert contents(log)[0] == (0, b"kept")


def test_a_committed_record_replaces_older_ones() -> None:
    disk = MemoryDisk()
    log = log_of(disk, plain(b"a", b"old"), sent(1, 0, b"a", b"b"), marker(1, commits=True))
    compacted(disk, log)
    assert (keys(log), markers(log)) == ([b"a", b"b"], [3])


def test_the_keys_of_markers_are_no_keys_of_records() -> None:
    """Otherwise of all markers, and a record with such a key, only the last would stay."""
    disk = MemoryDisk()
    abort_key = bytes(4)
    log = log_of(
        disk, plain(abort_key), sent(1, 0, b"a"), marker(1, commits=False), sent(2, 0, b"b"), marker(2, commits=False)
    )
    compacted(disk, log)
    assert (keys(log), markers(log)) == ([abort_key], [2, 4])


def test_records_from_the_first_open_transaction_on_are_not_touched() -> None:
    disk = MemoryDisk()
    log = log_of(disk, plain(b"a"), plain(b"a"), sent(1, 0, b"x", size=400), plain(b"b"), plain(b"b", bytes(400)))
    assert planned(log).segments[-1].next_offset == 2
    append(log, marker(1, commits=True))
    flush(log)
    undecided = CompactionLimits(log.log_end_offset - 1, log.log_end_offset - 1)
    assert planned(log, limits=undecided).segments[-1].next_offset == 2
    assert planned(log).segments[-1].next_offset > 2


def test_a_marker_goes_once_its_transaction_is_gone_and_the_time_of_tombstones_is_over() -> None:
    disk = MemoryDisk()
    log = log_of(
        disk,
        sent(1, 0, b"a"),
        marker(1, commits=False, epoch=1),
        sent(1, 0, b"b", epoch=1),
        marker(1, commits=True, epoch=2),
    )
    compacted(disk, log)
    first = next(header for header in batches(log) if is_marker(header))
    assert (first.attributes & DELETE_HORIZON, first.base_timestamp) == (DELETE_HORIZON, LATER_MS)
    assert aborted(log) == [(1, 0, 1)]
    compacted(disk, log, LATER_MS - 1)
    assert markers(log) == [1, 3]
    result = compacted(disk, log, LATER_MS)
    assert (markers(log), aborted(log), result.removed_tombstones_end_offset) == ([3], [], 2)


def test_a_marker_with_a_horizon_is_still_a_marker() -> None:
    disk = MemoryDisk()
    log = log_of(disk, sent(1, 0, b"a"), marker(1, commits=False, epoch=1), marker(1, commits=False, epoch=2))
    compacted(disk, log)
    header, batch = next((header, batch) for header, batch in stored(log) if is_marker(header))
    assert header.attributes & DELETE_HORIZON
    assert decode_marker(header, batch) == TransactionMarker(
        producer_id=1, producer_epoch=1, coordinator_epoch=5, commits=False
    )


def test_a_marker_stays_while_a_record_of_its_transaction_does() -> None:
    disk = MemoryDisk()
    log = log_of(
        disk, sent(1, 0, b"a", b"b"), marker(1, commits=True, epoch=1), marker(1, commits=True, epoch=2), plain(b"a")
    )
    compacted(disk, log)
    compacted(disk, log, LATER_MS)
    assert markers(log) == [2, 3]
    append(log, plain(b"b"))
    compacted(disk, log, LATER_MS)
    compacted(disk, log, LATER_MS + TOPIC.delete_retention_ms)
    assert markers(log) == [3]


def test_a_marker_stays_until_all_replicas_have_it() -> None:
    disk = MemoryDisk()
    log = log_of(disk, sent(1, 0, b"a"), marker(1, commits=False, epoch=1), marker(1, commits=False, epoch=2))
    compacted(disk, log)
    compacted(disk, log, LATER_MS, CompactionLimits(log.log_end_offset, 1))
    assert markers(log) == [1, 2]
    compacted(disk, log, LATER_MS, CompactionLimits(log.log_end_offset, 2))
    assert markers(log) == [2]


def test_a_transaction_that_spans_segments_is_one_transaction() -> None:
    """Source: KAFKA-8351."""
    disk = MemoryDisk()
    log = log_of(
        disk, plain(b"a", b"kept"), sent(1, 0, b"a", size=300), sent(1, 1, b"a", size=300), plain(b"c"),
        marker(1, commits=False, epoch=1),
    )  # fmt: skip
    assert len(log.segments.all) > 3
    compacted(disk, log)
    assert keys(log) == [b"a", b"c"]
    assert contents(log)[0] == (0, b"kept")


def test_markers_above_the_cleaned_offset_stay_with_their_index() -> None:
    """Source: KAFKA-13727."""
    disk = MemoryDisk()
    log = log_of(
        disk,
        plain(b"a"),
        plain(b"b"),
        plain(b"a"),
        sent(1, 0, b"c"),
        marker(1, commits=False, epoch=1),
        sent(1, 0, b"d", epoch=1),
        marker(1, commits=True, epoch=2),
    )
    for now_ms in (NOW_MS, LATER_MS):
        result = swapped(disk, log, planned(log, now_ms, max_keys=1))
        assert 0 < result.cleaned_offset < 3
        assert (aborted(log), markers(log)) == ([(1, 3, 4)], [4, 6])
    swapped(disk, log, planned(log, LATER_MS))
    assert (keys(log), markers(log)) == ([b"b", b"a", b"d"], [4, 6])


def test_a_compaction_of_a_segment_brings_its_transaction_index() -> None:
    disk = MemoryDisk()
    log = log_of(
        disk,
        sent(1, 0, b"a"),
        marker(1, commits=False, epoch=1),
        sent(2, 0, b"b"),
        marker(2, commits=False),
        plain(b"c", bytes(200)),
    )
    marker_again = marker(1, commits=False, epoch=2)
    append(log, marker_again)
    compacted(disk, log)
    compacted(disk, log, LATER_MS)
    assert aborted(log) == [(2, 2, 3)], "the last batch of producer 2 stays, and so does its marker"
    assert disk.read(segment_file(0, "txnindex")) == bytes(log.segments.all[0].indexes.aborted or b"")
    assert aborted(open_topic_log(disk, TOPIC)) == [(2, 2, 3)]
    disk.write_atomic(segment_file(0, "txnindex"), b"")
    assert aborted(open_topic_log(disk, TOPIC)) == [(2, 2, 3)], "it is built from the batches that are left"


def test_an_index_without_entries_takes_the_place_of_the_original() -> None:
    disk = MemoryDisk()
    log = log_of(disk, sent(1, 0, b"a"), marker(1, commits=False, epoch=1), marker(1, commits=False, epoch=2))
    compacted(disk, log)
    compacted(disk, log, LATER_MS)
    assert disk.read(segment_file(0, "txnindex")) == b""


@pytest.mark.parametrize("codec", [compression.NONE, compression.ZSTD])
def test_the_last_batch_of_a_producer_stays_empty(codec: int) -> None:
    disk = MemoryDisk()
    log = log_of(disk, sent(1, 0, b"a"), sent(1, 1, b"b", b"c", codec=codec), marker(1, commits=False))
    compacted(disk, log)
    compacted(disk, log, LATER_MS)
    kept = [header for header in batches(log) if header.producer_id == 1]
    assert [(header.base_offset, header.records_count) for header in kept] == [(1, 0), (3, 1)]
    assert (kept[0].base_sequence, kept[0].last_offset_delta) == (1, 1)
    for name in disk.list("logs/t-0"):
        if name.endswith("producers"):
            disk.remove(f"logs/t-0/{name}")
    reopened = open_topic_log(disk, TOPIC)
    assert append(reopened, sent(1, 3, b"d")).first_offset == log.log_end_offset


def test_the_last_batch_of_a_forgotten_producer_goes() -> None:
    disk = MemoryDisk()
    log = log_of(disk, sent(1, 0, b"a"), marker(1, commits=False))
    log.producers.expire(NOW_MS + 10**12)
    compacted(disk, log)
    compacted(disk, log, LATER_MS)
    assert [header.producer_id for header in batches(log)] == [-1] * len(batches(log))


def test_a_marker_that_began_an_epoch_stays_while_the_producer_is_known() -> None:
    """It fences the epoch before it, at a new replica too."""
    disk = MemoryDisk()
    log = log_of(disk, sent(1, 0, b"a"), marker(1, commits=False, epoch=1))
    for number in range(3):
        compacted(disk, log, NOW_MS + number * TOPIC.delete_retention_ms)
    assert markers(log) == [1]


def test_a_result_is_discarded_if_a_marker_was_cut_meanwhile() -> None:
    """The transaction is open again, and may still commit."""
    disk = MemoryDisk()
    log = log_of(disk, sent(1, 0, b"a"), plain(b"b", bytes(400)))
    end = log.log_end_offset
    append(log, marker(1, commits=False))
    flush(log)
    result = compact(disk, planned(log))
    log.truncation.truncate_to(end)
    job = log.truncation.begin(NOW_MS)
    assert job is not None
    log.truncation.complete(job, job.run())
    assert log.producers.transactions.first_unstable_offset(end) == 0
    assert log.compaction.begin_swap(result) is None


@pytest.mark.parametrize("cuts", [False, True])
def test_a_transaction_whose_marker_compaction_has_removed_is_not_open(cuts: bool) -> None:
    """An older snapshot says that it is, and the newer ones are damaged, or cut."""
    disk = MemoryDisk()
    log = log_of(disk, sent(1, 0, b"a"))
    name = f"logs/t-0/{next(name for name in disk.list('logs/t-0') if name.endswith('producers'))}"
    snapshot = disk.read(name)
    append(log, marker(1, commits=False, epoch=1))
    append(log, marker(1, commits=False, epoch=2))
    compacted(disk, log)
    compacted(disk, log, LATER_MS)
    compacted(disk, log, LATER_MS + TOPIC.delete_retention_ms)
    assert markers(log) == [3]
    for newer in disk.list("logs/t-0"):
        if newer.endswith("producers"):
            disk.remove(f"logs/t-0/{newer}")
    disk.write_atomic(name, snapshot)
    if cuts:
        log.truncation.truncate_to(3)
        job = log.truncation.begin(NOW_MS)
        assert job is not None
        log.truncation.complete(job, job.run())
    else:
        log = open_topic_log(disk, TOPIC)
    assert not log.producers.transactions.opened


def test_deletion_above_the_last_stable_offset_lets_the_transaction_commit() -> None:
    disk = MemoryDisk()
    log = log_of(disk, sent(1, 0, b"a"), plain(b"b"))
    log.use(replace(TOPIC, cleanup_policy="delete"))
    log.start.trim(log.flushes.flushed_offset).run()
    for each in (log, open_topic_log(disk.power_cut(Random(1)), TOPIC)):
        assert each.log_start_offset == 3
        append(each, sent(1, 1, b"c"))
        append(each, marker(1, commits=True))
        assert each.producers.transactions.first_unstable_offset(each.log_end_offset) is None
