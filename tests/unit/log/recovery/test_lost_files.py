"""One file of a log is lost, or a bit flips: recovery loses no other record, or says that something is missing."""

from contextlib import suppress
from functools import partial
from random import Random

import pytest

from conveyor.kernel.errors import LogIncomplete, StorageFailure
from conveyor.log.log_parts import ExpectedLog
from conveyor.log.segments.offset_file import CLEANED, LOG_START, write_offset
from conveyor.records.batch import MAGIC_END, TRANSACTIONAL
from conveyor.records.record import encode_batch
from conveyor.settings.tree import TopicSettings
from conveyor.testing import MemoryDisk
from tests.unit.log.logs import (
    DIRECTORY,
    NOW_MS,
    PAIR,
    allow_gaps,
    append,
    batch,
    contents,
    flush,
    open_topic_log,
    segment_file,
)
from tests.unit.log.recovery.test_flipped_headers import placed, with_gaps
from tests.unit.log.recovery.test_trimmed_segments import COUNT, START, compacted, filled, keyed_batch, keyed_topic

KEYED = keyed_topic("compact")
BATCH_BYTES = len(batch(b"0"))
ONE_BATCH = TopicSettings(segment_bytes=BATCH_BYTES, index_interval_bytes=0, cleanup_policy="compact")


def trimmed_within_its_segment() -> MemoryDisk:
    """Ten batches in one segment; those below 5 are deleted."""
    disk = MemoryDisk()
    log = open_topic_log(disk)
    for number in range(10):
        append(log, batch(b"%d" % number))
    flush(log)
    log.start.trim(5).run()
    log.start.complete_trim()
    return disk.process_crash()


def compacted_and_grown() -> MemoryDisk:
    """A log whose segments up to the offset 12 have gaps, and whose end is 30."""
    disk, log = compacted(KEYED)
    for number in range(12, 30):
        append(log, keyed_batch(b"k%d" % number, b"%x" % number))
    flush(log)
    return disk.process_crash()


@pytest.mark.parametrize("damaged", [3, 7])
def test_batches_above_the_start_that_damage_below_it_takes_along_are_lacked(damaged: int) -> None:
    disk = trimmed_within_its_segment()
    disk.flip(segment_file(0), damaged * BATCH_BYTES + BATCH_BYTES - 1, 1)
    for _ in range(2):
        log = open_topic_log(disk)
        assert (log.log_start_offset, log.log_end_offset) == (5, max(5, damaged))
        assert log.recovered.lacks_batches
        disk = disk.process_crash()


def _kill(disk: MemoryDisk, killed: list[MemoryDisk]) -> None:
    killed.append(disk.process_crash())


def test_new_segment_is_there_before_the_one_below_the_start_is_removed() -> None:
    disk = trimmed_within_its_segment()
    disk.open(segment_file(0)).truncate(3 * BATCH_BYTES)
    killed: list[MemoryDisk] = []
    for operations in range(1, 200):
        tried = disk.process_crash()
        tried.faults.call_after(operations, partial(_kill, tried, killed))
        try:
            open_topic_log(tried)
            break
        except StorageFailure:
            pass
    assert len(killed) > 5
    for left in killed:
        assert any(name.endswith(".log") for name in left.list(DIRECTORY))
        log = open_topic_log(left, expected=ExpectedLog(may_be_new=False, has_segment=True))
        assert (log.log_start_offset, log.log_end_offset) == (5, 5)


def test_log_that_is_trimmed_and_has_lost_its_segment_is_not_empty() -> None:
    disk = trimmed_within_its_segment()
    disk.remove(segment_file(0))
    with pytest.raises(StorageFailure, match="segment files"):
        open_topic_log(disk)


def test_segment_below_a_sealed_one_was_flushed_although_its_own_seal_is_lost() -> None:
    disk = compacted_and_grown()
    seals = [name for name in disk.list(DIRECTORY) if name.endswith(".seal")]
    assert len(seals) > 5
    whole = contents(open_topic_log(disk.process_crash(), KEYED))
    for seal in seals[:-1]:
        lost = disk.process_crash()
        lost.remove(f"{DIRECTORY}/{seal}")
        log = open_topic_log(lost, KEYED)
        assert (log.log_end_offset, contents(log)) == (30, whole), seal


def test_damage_in_a_segment_below_a_sealed_one_is_no_interrupted_write() -> None:
    disk, _ = filled()
    disk = disk.process_crash()
    disk.remove(segment_file(2, "seal"))
    disk.flip(segment_file(2), len(disk.read(segment_file(2))) - 1, 1)
    with pytest.raises(StorageFailure, match="later segments"):
        open_topic_log(disk, PAIR)


@pytest.mark.parametrize("only_active", [False, True])
def test_log_whose_start_is_lost_begins_where_it_is_known_to_begin(only_active: bool) -> None:
    start = 10 if only_active else START
    disk, log = filled()
    log.start.trim(start).run()
    log.start.complete_trim()
    lost = disk.process_crash()
    lost.remove(f"{DIRECTORY}/{LOG_START}")
    with pytest.raises(StorageFailure, match="hole"):
        open_topic_log(lost.process_crash(), PAIR)
    expected = ExpectedLog(may_be_new=False, start_offset=start, end_offset=COUNT)
    for _ in range(2):
        log = open_topic_log(lost, PAIR, expected=expected)
        assert (log.log_start_offset, log.log_end_offset) == (start, COUNT)
        lost, expected = lost.process_crash(), ExpectedLog()


def test_records_that_are_deleted_again_are_removed_with_their_segments() -> None:
    disk, _ = filled()
    log = open_topic_log(disk.process_crash(), PAIR, expected=ExpectedLog(may_be_new=False, start_offset=START))
    assert log.log_start_offset == START
    assert [segment.base_offset for segment in log.segments.all] == [6, 8, 10]


def test_older_copy_that_ends_below_the_log_start_is_left_as_it_is() -> None:
    disk, _ = filled()
    before = {path: disk.read(path) for path in disk.paths()}
    with pytest.raises(LogIncomplete, match=f"ends at offset {COUNT}, and its log start was 20"):
        open_topic_log(disk, PAIR, expected=ExpectedLog(may_be_new=False, start_offset=20))
    assert {path: disk.read(path) for path in disk.paths()} == before


def test_older_file_of_the_log_start_does_not_bring_records_back() -> None:
    disk, log = filled()
    log.start.trim(START).run()
    lost = disk.process_crash()
    write_offset(lost, DIRECTORY, LOG_START, 1)
    again = open_topic_log(lost, PAIR, expected=ExpectedLog(may_be_new=False, start_offset=START))
    assert again.log_start_offset == START


def follower_that_truncates_into_a_gap() -> MemoryDisk:
    """Of the segments 0 to 3, the first is flushed. The truncation seals the last one, because a gap follows it."""
    disk = MemoryDisk()
    log = open_topic_log(disk, ONE_BATCH)
    allow_gaps(log, 100)
    log.copying.append(placed(0), 0, NOW_MS)
    flush(log)
    for offset in (1, 2, 3, 9):
        log.copying.append(placed(offset), 0, NOW_MS)
    log.write()
    log.truncation.truncate_to(7)
    job = log.truncation.begin(NOW_MS)
    assert job is not None
    log.truncation.complete(job, job.run())
    return disk


@pytest.mark.parametrize("seed", range(5))
def test_truncation_that_seals_a_segment_has_flushed_those_below_it(seed: int) -> None:
    disk = follower_that_truncates_into_a_gap().power_cut(Random(seed))
    log = open_topic_log(disk, ONE_BATCH)
    assert [offset for offset, _ in contents(log)] == [0, 1, 2, 3]
    assert log.log_end_offset == 7


@pytest.mark.parametrize("also_lost", [[], [4]])
def test_power_cut_while_trimmed_segments_are_removed_leaves_a_segment(also_lost: list[int]) -> None:
    """The removal may be durable although the names of later segments are not, unless they are made so before."""
    disk = MemoryDisk()
    log = open_topic_log(disk, PAIR)
    for number in range(2):
        append(log, batch(b"%d" % number))
    flush(log)
    log.start.trim(2).run()
    log.start.complete_trim()
    for number in range(2, 6):
        append(log, batch(b"%d" % number))
    killed = disk.process_crash()
    for operations in range(60):
        tried = killed.process_crash()
        tried.faults.call_after(operations, lambda: None)
        with suppress(StorageFailure):
            open_topic_log(tried, PAIR)
        if tried.exists(segment_file(0)):
            continue
        for base in (2, *also_lost):
            if segment_file(base) not in tried._durable_names:
                tried.remove(segment_file(base))
        log = open_topic_log(tried.process_crash(), PAIR, expected=ExpectedLog(False, 2, 2, 2))
        assert log.log_start_offset == 2
        assert log.log_end_offset >= 2


@pytest.mark.parametrize("left_bytes", [0, BATCH_BYTES, BATCH_BYTES + 1])
def test_end_that_is_missing_since_a_clean_stop_is_lacked(left_bytes: int) -> None:
    """Also if the start that finds it is interrupted anywhere."""
    disk = MemoryDisk()
    log = open_topic_log(disk)
    for number in range(3):
        append(log, batch(b"%d" % number))
    log.close()
    disk.open(segment_file(0)).truncate(left_bytes)
    killed: list[MemoryDisk] = []
    for operations in range(60):
        tried = disk.process_crash()
        tried.faults.call_after(operations, partial(_kill, tried, killed))
        with suppress(StorageFailure):
            open_topic_log(tried)
    for found in [disk, *killed]:
        log = open_topic_log(found)
        assert (log.log_end_offset, log.recovered.lacks_batches) == (left_bytes // BATCH_BYTES, True)


def killed_before_a_flush() -> MemoryDisk:
    """Three segments without seals, of two batches each."""
    disk = MemoryDisk()
    log = open_topic_log(disk, TopicSettings(segment_bytes=2 * BATCH_BYTES))
    for number in range(6):
        append(log, batch(b"%d" % number))
    return disk.process_crash()


@pytest.mark.parametrize("left_bytes", [0, BATCH_BYTES, 2 * BATCH_BYTES - 1])
@pytest.mark.parametrize("has_power", [True, False], ids=["killed", "power cut"])
def test_segment_behind_a_gap_was_complete_unless_the_power_has_failed(left_bytes: int, has_power: bool) -> None:
    disk = killed_before_a_flush()
    disk.open(segment_file(0)).truncate(left_bytes)
    for _ in range(2):
        log = open_topic_log(disk, expected=ExpectedLog(may_be_new=False, has_segment=has_power))
        assert (log.log_end_offset, log.recovered.lacks_batches) == (left_bytes // BATCH_BYTES, has_power)
        disk = disk.process_crash()


def test_first_segment_without_a_seal_is_missing_unless_the_power_has_failed() -> None:
    disk = killed_before_a_flush()
    disk.remove(segment_file(0))
    with pytest.raises(StorageFailure, match="the log has a hole: it starts at offset 0"):
        open_topic_log(disk, expected=ExpectedLog(may_be_new=False, has_segment=True))
    assert open_topic_log(disk, expected=ExpectedLog(may_be_new=False)).log_end_offset == 0


def test_compacted_segment_without_its_seal_was_flushed_nevertheless() -> None:
    """Its last record was in an aborted transaction, and is missing. The next segment is the active one."""
    disk, log = with_gaps(0, 1, gap_offset=3)
    log.copying.skip_to(3, NOW_MS)
    log.copying.append(placed(3), 0, NOW_MS)
    flush(log)
    write_offset(log.place, DIRECTORY, CLEANED, 3)
    disk = disk.process_crash()
    disk.remove(segment_file(0, "seal"))
    damaged = disk.process_crash()
    log = open_topic_log(disk, KEYED)
    assert contents(log) == [(0, b"0"), (1, b"1"), (3, b"3")]
    damaged.flip(segment_file(0), BATCH_BYTES + MAGIC_END, 1)
    with pytest.raises(StorageFailure, match=f"is damaged at {BATCH_BYTES}, and later segments follow it"):
        open_topic_log(damaged, KEYED)


def test_segment_behind_a_gap_that_a_kill_keeps_from_its_flush_is_lacked() -> None:
    """With `flush.policy=os`, its records may be committed."""
    disk, log = with_gaps(0, gap_offset=3)
    log.copying.skip_to(3, NOW_MS)
    log.copying.append(placed(3), 0, NOW_MS)
    log.write()
    killed = open_topic_log(disk.process_crash(), KEYED, expected=ExpectedLog(may_be_new=False, has_segment=True))
    assert (killed.log_end_offset, killed.recovered.lacks_batches) == (1, True)


def test_new_records_below_the_end_of_a_lost_compaction_are_not_compacted() -> None:
    """The log has lost closed segments, and its new records are where the lost ones were."""
    disk = MemoryDisk()
    flush(open_topic_log(disk))
    write_offset(disk, DIRECTORY, CLEANED, 100)
    log = open_topic_log(disk)
    log.copying.begin_epoch(1)
    begun = encode_batch(
        [(NOW_MS, None, b"v", ())], attributes=TRANSACTIONAL, producer_id=1, producer_epoch=0, base_sequence=0
    )
    append(log, begun)
    flush(log)
    again = open_topic_log(disk)
    assert list(again.producers.transactions.opened) == [1]
    assert again.compaction.cleaned_offset == 0
