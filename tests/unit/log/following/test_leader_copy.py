"""What a follower takes from its leader, and what it refuses without a trace."""

from pathlib import Path

import pytest

from conveyor.adapters.disk import RealDisk
from conveyor.kernel.errors import ErrorKind, StorageFailure
from conveyor.log.following import leader_batches
from conveyor.log.following.leader_batches import BatchFault, RefusedBatch
from conveyor.log.log import Log
from conveyor.records import compression
from conveyor.records.batch import CONTROL, DELETE_HORIZON, HEADER_BYTES, TRANSACTIONAL, placed_prefix, read_header
from conveyor.records.checked_batch import own_batch
from conveyor.records.record import seal_batch
from conveyor.replication.term_context import reported_offset
from conveyor.settings.tree import TopicSettings
from conveyor.testing import MemoryDisk
from tests.unit.log.logs import (
    DIRECTORY,
    NOW_MS,
    allow_gaps,
    batch,
    contents,
    flush,
    idempotent_batch,
    open_topic_log,
    read_bytes,
    records_of,
)

LIMIT = 1 << 40
MAX_OFFSET = (1 << 63) - 1


def stored(content: bytes, base_offset: int, epoch: int = 0, **fields: int) -> bytes:
    """A batch as a leader has stored it. fields: of its header, right or wrong, under a right CRC."""
    records = b"" if fields.get("records_count") == 0 else content[HEADER_BYTES:]
    sealed = seal_batch(read_header(content)._replace(**fields), records) if fields else content
    return placed_prefix(base_offset, read_header(sealed), epoch) + sealed[17:]


def leader_log(*epochs: int) -> Log:
    """A leader's log with a batch of two records of an idempotent producer for each epoch."""
    log = open_topic_log(MemoryDisk())
    for number, epoch in enumerate(epochs):
        log.append(own_batch(idempotent_batch(2 * number, b"a", b"b")), epoch, NOW_MS)
    log.write()
    return log


def follower(disk: MemoryDisk | None = None, count: int = 0) -> Log:
    """A follower with so many batches of one record of epoch 3."""
    log = open_topic_log(disk or MemoryDisk())
    for offset in range(count):
        log.copying.append(stored(batch(b"%d" % offset), offset, 3), 3, NOW_MS)
    log.write()
    return log


def test_follower_stores_what_the_leader_sent_and_knows_its_producers_and_epochs() -> None:
    leader = leader_log(0, 0, 2, 5)
    sent = read_bytes(leader, 0)
    log = open_topic_log(MemoryDisk())
    info = log.copying.append(sent, 5, NOW_MS + 7)
    assert (info.taken_bytes, info.log_end_offset, log.written_offset) == (len(sent), 8, 0)
    log.write()
    assert read_bytes(log, 0) == sent
    assert log.leader_epochs.entries == leader.leader_epochs.entries
    ids, producers = log.producers.entries()[:2]
    assert ids == leader.producers.entries()[0]
    assert [each[:4] for each in producers[0].batches] == [
        each[:4] for each in leader.producers.entries()[1][0].batches
    ]
    assert {each.append_timestamp_ms for each in producers[0].batches} == {NOW_MS + 7}
    assert log.append(own_batch(idempotent_batch(6, b"a", b"b")), 6, NOW_MS).duplicate


def test_follower_rolls_and_seals_by_its_own_settings() -> None:
    disk = MemoryDisk()
    log = open_topic_log(disk, TopicSettings(segment_bytes=100))
    log.copying.append(read_bytes(leader_log(0, 0, 0), 0), 0, NOW_MS)
    flush(log)
    assert [segment.base_offset for segment in log.segments.all] == [0, 2, 4]
    assert [segment.sealed for segment in log.segments.all] == [True, True, False]
    assert f"{4:020d}.producers" in disk.list(DIRECTORY)


def test_nothing_is_sent() -> None:
    log = follower()
    assert log.copying.append(b"", 0, NOW_MS) == (0, 0)


@pytest.mark.parametrize("limit", ["MAX_TAKEN_BATCHES", "MAX_TAKEN_BYTES"])
def test_one_call_takes_a_limited_part(limit: str, monkeypatch: pytest.MonkeyPatch) -> None:
    sent = read_bytes(leader_log(0, 0, 0, 0, 0), 0)
    monkeypatch.setattr(leader_batches, limit, 2 if limit == "MAX_TAKEN_BATCHES" else 2 * len(sent) // 5)
    log = follower()
    sizes = []
    position = 0
    while position < len(sent):
        sizes.append(log.copying.append(memoryview(sent)[position:], 0, NOW_MS).taken_bytes)
        position += sizes[-1]
    assert [5 * size // len(sent) for size in sizes] == [2, 2, 1]
    log.write()
    assert read_bytes(log, 0) == sent


def test_one_batch_above_the_limit_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leader_batches, "MAX_TAKEN_BYTES", 1)
    log = follower()
    assert log.copying.append(read_bytes(leader_log(0, 0), 0), 0, NOW_MS).log_end_offset == 2


def test_control_compacted_and_transactional_batches_pass() -> None:
    log = follower()
    producer = {"producer_id": 7, "producer_epoch": 1}
    empty = stored(batch(b"x"), 0, last_offset_delta=4, records_count=0, base_sequence=0, **producer)
    control = stored(batch(b"x"), 5, attributes=CONTROL | TRANSACTIONAL, **producer)
    thinned = stored(batch(b"x"), 6, last_offset_delta=9, attributes=DELETE_HORIZON)
    packed = stored(batch(b"x", codec=compression.ZSTD), 16)
    log.copying.append(empty + control + thinned + packed, 0, NOW_MS)
    log.write()
    assert (log.log_end_offset, log.leader_epochs.entries) == (17, ((0, 0),))
    ids, producers = log.producers.entries()[:2]
    assert (ids, [each.batches[-1][:4] for each in producers]) == ([7], [(0, 4, 0, 4)])


GOOD = stored(batch(b"good"), 2, 3)
BAD: dict[str, tuple[bytes, BatchFault]] = {
    "half a header": (stored(batch(b"x"), 3, 3)[:50], BatchFault.INCOMPLETE),
    "half a batch": (stored(batch(b"x"), 3, 3)[:-1], BatchFault.INCOMPLETE),
    "old magic": (stored(batch(b"x"), 3, 3)[:16] + b"\1" + stored(batch(b"x"), 3, 3)[17:], BatchFault.INVALID),
    "flipped bit": (stored(batch(b"x"), 3, 3)[:-1] + b"\1", BatchFault.INVALID),
    "batch length of 0": (placed_prefix(3, read_header(batch(b"x"))._replace(batch_length=0), 3) + batch(b"x")[17:],
                          BatchFault.INVALID),
    "negative length": (placed_prefix(3, read_header(batch(b"x"))._replace(batch_length=-5), 3) + batch(b"x")[17:],
                        BatchFault.INVALID),
    "negative last offset delta": (stored(batch(b"x"), 3, 3, last_offset_delta=-1), BatchFault.INVALID),
    "far last offset delta": (stored(batch(b"x"), 3, 3, last_offset_delta=(1 << 31) - 1), BatchFault.INVALID),
    "negative record count": (stored(batch(b"x"), 3, 3, records_count=-1), BatchFault.INVALID),
    "more records than offsets": (stored(batch(b"x", b"y"), 3, 3, last_offset_delta=0), BatchFault.INVALID),
    "more records than bytes": (stored(batch(b"x"), 3, 3, last_offset_delta=999, records_count=1000),
                                BatchFault.INVALID),
    "negative offset": (stored(batch(b"x"), -1, 3), BatchFault.INVALID),
    "end of all offsets": (stored(batch(b"x"), MAX_OFFSET, 3), BatchFault.INVALID),
    "negative epoch": (stored(batch(b"x"), 3, -1), BatchFault.INVALID),
    "unknown codec": (stored(batch(b"x"), 3, 3, attributes=7), BatchFault.INVALID),
    "producer without epoch": (stored(batch(b"x"), 3, 3, producer_id=1), BatchFault.INVALID),
    "offset before the end": (stored(batch(b"x"), 2, 3), BatchFault.OVERLAP),
    "batch around the end": (stored(batch(b"x", b"y"), 2, 3), BatchFault.OVERLAP),
    "offset after the end": (stored(batch(b"x"), 4, 3), BatchFault.GAP),
    "epoch of the past": (stored(batch(b"x"), 3, 2), BatchFault.OLD_EPOCH),
    "epoch of the future": (stored(batch(b"x"), 3, 5), BatchFault.FUTURE_EPOCH),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_bad_batch_is_refused_with_all_before_it(name: str) -> None:
    bad, fault = BAD[name]
    disk = MemoryDisk()
    log = follower(disk, 2)
    before = contents(log), log.producers.entries(), log.leader_epochs.entries, log.log_end_offset
    with pytest.raises(RefusedBatch) as refused:
        log.copying.append(GOOD + bad, 4, NOW_MS)
    assert (refused.value.fault, refused.value.number, refused.value.position) == (fault, 1, len(GOOD))
    assert refused.value.kind is ErrorKind.CORRUPT_BATCH
    assert log.written_offset == log.log_end_offset
    assert (contents(log), log.producers.entries(), log.leader_epochs.entries, log.log_end_offset) == before
    log.copying.append(GOOD, 4, NOW_MS)


def test_epoch_below_one_that_this_broker_has_begun_is_refused() -> None:
    """It has to truncate first, even if its epoch has no record."""
    log = follower(count=2)
    log.copying.begin_epoch(4)
    with pytest.raises(RefusedBatch, match="cannot follow offset 2 in epoch 4") as refused:
        log.copying.append(GOOD, 5, NOW_MS)
    assert refused.value.fault is BatchFault.OLD_EPOCH


def test_leader_lacks_no_tombstones_above_the_end_that_it_begins_with() -> None:
    """Its copy was not complete, so the leader before had removed tombstones above its end. Records below may still be
    missing because of later ones.
    """
    log = follower(count=2)
    job = log.copying.allow_gaps(30, removed_end_offset=20)
    assert job is not None
    job.run()
    log.copying.complete_gaps(job)
    log.copying.begin_epoch(4)
    assert (log.copying.gap_offset, log.compaction.removed_end_offset) == (30, 2)


def test_failing_disk_is_a_storage_failure() -> None:
    disk = MemoryDisk()
    log = open_topic_log(disk, TopicSettings(segment_bytes=100))
    disk.faults.fail("append")
    with pytest.raises(StorageFailure, match="append failed"):
        log.copying.append(read_bytes(leader_log(0, 0, 0), 0), 0, NOW_MS)


# A leader that has compacted its log.


def test_gap_is_taken_only_below_the_gap_offset() -> None:
    log = follower(count=1)
    allow_gaps(log, 9)
    with pytest.raises(RefusedBatch) as refused:
        log.copying.append(stored(batch(b"x"), 10, 3), 3, NOW_MS)
    assert refused.value.fault is BatchFault.GAP
    log.copying.append(stored(batch(b"x"), 9, 5), 5, NOW_MS)
    log.write()
    assert contents(log) == [(0, b"0"), (9, b"x")]
    assert log.leader_epochs.entries == ((3, 0), (5, 1)), "the missing records may be of either epoch"
    assert log.copying.allow_gaps(8) is None


@pytest.mark.parametrize("ending", ["closed", "killed"])
def test_gaps_survive_a_restart(ending: str) -> None:
    disk = MemoryDisk()
    log = follower(disk, 1)
    allow_gaps(log, 50)
    for offset in (9, 20):
        log.copying.append(stored(idempotent_batch(0, b"x", producer_id=offset), offset, 5), 5, NOW_MS)
    log.write()
    if ending == "closed":
        log.close()
    reopened = open_topic_log(disk)
    assert contents(reopened) == [(0, b"0"), (9, b"x"), (20, b"x")]
    assert reopened.leader_epochs.entries == ((3, 0), (5, 1))
    assert reopened.copying.gap_offset == 50
    assert reopened.compaction.cleaned_offset == 0, "this broker has compacted nothing"


def test_gap_wider_than_an_index_entry_begins_a_segment() -> None:
    disk = MemoryDisk()
    log = follower(disk, 1)
    allow_gaps(log, LIMIT)
    log.copying.append(stored(batch(b"x"), LIMIT, 3), 3, NOW_MS)
    flush(log)
    assert [segment.base_offset for segment in log.segments.all] == [0, LIMIT]
    assert contents(open_topic_log(disk)) == [(0, b"0"), (LIMIT, b"x")]


@pytest.mark.parametrize("closes", [True, False])
def test_end_that_compaction_has_emptied_is_skipped(closes: bool) -> None:
    disk = MemoryDisk()
    log = follower(disk, 1)
    if closes:
        log.close()
        log = open_topic_log(disk)
    allow_gaps(log, 20)
    log.copying.skip_to(20, NOW_MS)
    log.copying.skip_to(20, NOW_MS)
    assert (log.log_end_offset, log.written_offset) == (20, 20)
    flush(log)
    assert log.flushes.flushed_offset == 20
    reopened = open_topic_log(disk)
    assert (reopened.log_end_offset, contents(reopened)) == (20, [(0, b"0")])
    reopened.copying.append(stored(batch(b"x"), 20, 3), 3, NOW_MS)
    reopened.write()
    assert contents(reopened) == [(0, b"0"), (20, b"x")]


@pytest.mark.parametrize("ending", ["closed", "killed"])
def test_log_that_starts_within_a_batch_takes_the_whole_batch(ending: str) -> None:
    leader = leader_log(0, 0)
    disk = MemoryDisk()
    log = open_topic_log(disk)
    log.copying.append(read_bytes(leader, 0), 0, NOW_MS)
    flush(log)
    log.start.trim(3).run()
    log.start.complete_trim()
    log.truncation.truncate_to(3)
    job = log.truncation.begin(NOW_MS)
    assert job is not None
    log.truncation.complete(job, job.run())
    assert (log.log_start_offset, log.log_end_offset) == (3, 3)
    assert log.copying.append(read_bytes(leader, 3), 0, NOW_MS).log_end_offset == 4
    with pytest.raises(RefusedBatch):
        log.copying.append(read_bytes(leader, 3), 0, NOW_MS)
    log.write()
    if ending == "closed":
        log.close()
    reopened = open_topic_log(disk)
    assert (reopened.log_start_offset, reopened.log_end_offset) == (3, 4)
    assert records_of(read_bytes(reopened, 3)) == [(2, b"a"), (3, b"b")]


@pytest.mark.parametrize("is_flushed", [True, False])
def test_gap_between_segments_is_a_loss_unless_the_first_one_was_flushed(is_flushed: bool) -> None:
    """A power failure may lose the end of a segment that was not flushed, and keep a later one."""
    disk = MemoryDisk()
    log = follower(disk, 2)
    allow_gaps(log, LIMIT)
    log.use(TopicSettings(segment_bytes=1))
    log.copying.append(stored(batch(b"x"), 2, 3), 3, NOW_MS)
    log.write()
    if is_flushed:
        flush(log)
    else:
        first = disk.open(f"{DIRECTORY}/{0:020d}.log")
        first.truncate(first.size // 2)
    expected = [(0, b"0"), (1, b"1"), (2, b"x")] if is_flushed else [(0, b"0")]
    assert contents(open_topic_log(disk)) == expected


def test_first_batch_below_the_log_start_does_not_fail_a_flush_in_progress(tmp_path: Path) -> None:
    """A flush always follows a restart, and the leader's answer may be faster than the disk."""
    log = open_topic_log(RealDisk(tmp_path, 100))
    log.truncation.restart_at(5)
    truncation = log.truncation.begin(NOW_MS)
    assert truncation is not None
    log.truncation.complete(truncation, truncation.run())
    flushing = log.flushes.begin()
    log.copying.append(stored(batch(b"3", b"4", b"5"), 3), 0, NOW_MS)
    flushing.run()
    log.flushes.complete(flushing)
    flush(log)
    assert contents(log) == [(3, b"3"), (4, b"4"), (5, b"5")]
    assert (log.log_start_offset, log.flushes.flushed_offset) == (5, 6)
    log.close()
    assert contents(open_topic_log(RealDisk(tmp_path, 100))) == contents(log)


@pytest.mark.parametrize("way", ["skipped", "too wide"])
def test_records_behind_a_gap_are_reported_once_they_are_flushed(way: str) -> None:
    """Recovery accepts a gap after a flushed segment only, also if the page cache has everything."""
    log = open_topic_log(MemoryDisk(), TopicSettings(flush_policy="os"))
    log.copying.append(stored(batch(b"0"), 0, 3), 3, NOW_MS)
    log.write()
    assert reported_offset(log) == 1
    flush(log)
    end = 20 if way == "skipped" else LIMIT
    allow_gaps(log, end)
    if way == "skipped":
        log.copying.skip_to(end, NOW_MS)
    log.copying.append(stored(batch(b"x"), end, 3), 3, NOW_MS)
    log.write()
    assert (reported_offset(log), log.written_offset) == (1, end + 1)
    flush(log)
    log.copying.append(stored(batch(b"y"), end + 1, 3), 3, NOW_MS)
    log.write()
    assert (reported_offset(log), log.flushes.flushed_offset) == (end + 2, end + 1)
