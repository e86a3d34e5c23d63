"""What a log lets go of, and that it stays gone."""

from collections.abc import Sequence
from random import Random
from uuid import UUID

import pytest

from conveyor.kernel.errors import StorageFailure
from conveyor.kernel.ids import NO_TIMESTAMP, TopicId
from conveyor.log.log import Log
from conveyor.log.log_probe import LogProbe
from conveyor.log.recovery.recovery import open_log
from conveyor.log.retention_limits import retained_from
from conveyor.log.segments.offset_file import LOG_START, read_offset, write_offset
from conveyor.records.checked_batch import own_batch
from conveyor.records.record import encode_batch
from conveyor.settings.tree import ProducerSettings, TopicSettings, topic_settings
from conveyor.testing import MemoryDisk

DIRECTORY = "logs/t-0"
TOPIC_ID = TopicId(UUID(int=1))
ONE_BATCH_A_SEGMENT = {"segment.bytes": "1024", "retention.ms": "1000"}
BATCH_BYTES = len(encode_batch([(0, None, bytes(900), ())]))


def opened(disk: MemoryDisk, **more: str) -> Log:
    config = ONE_BATCH_A_SEGMENT | {name.replace("_", "."): value for name, value in more.items()}
    topic = topic_settings(TopicSettings(), config)
    return open_log(disk, DIRECTORY, TOPIC_ID, topic, ProducerSettings(), LogProbe(), 0)


def filled(log: Log, times_ms: Sequence[int]) -> Log:
    """One record a segment, of these times; all of it on the disk."""
    for each in times_ms:
        log.append(own_batch(encode_batch([(each, None, bytes(900), ())])), 0, each)
        log.write()
    flush(log)
    return log


def flush(log: Log) -> None:
    job = log.flushes.begin()
    job.run()
    log.flushes.complete(job)


def due(log: Log, now_ms: int, limit: int | None = None) -> int:
    return retained_from(
        log.segments.all,
        log.log_start_offset,
        log.topic,
        log.flushes.flushed_offset if limit is None else limit,
        now_ms,
    )


def test_retention_by_time_lets_go_of_old_segments_from_the_start() -> None:
    log = filled(opened(MemoryDisk()), [100, 200, 5000, 300, 400])
    assert due(log, 1150) == 1
    assert due(log, 1500) == 2, "a segment behind a young one stays, however old"
    assert due(log, 7000) == 4, "the active segment stays"


def test_retention_by_time_closes_an_active_segment_that_is_too_old() -> None:
    log = filled(opened(MemoryDisk()), [100, 200])
    log.start.roll_if_too_old(1150)
    assert len(log.segments.all) == 2
    log.start.roll_if_too_old(1201)
    flush(log)
    assert due(log, 1201) == 2


def test_retention_by_time_closes_an_active_segment_that_a_clean_stop_has_sealed() -> None:
    disk = MemoryDisk()
    filled(opened(disk), [100, 200]).close()
    log = opened(disk)
    log.start.roll_if_too_old(1201)
    flush(log)
    assert due(log, 1201) == 2
    assert opened(disk.process_crash()).log_end_offset == 2


def test_retention_by_time_takes_the_last_append_where_records_have_no_timestamp() -> None:
    disk = MemoryDisk()
    log = opened(disk)
    for now_ms in (100, 200, 300):
        log.append(own_batch(encode_batch([(NO_TIMESTAMP, None, bytes(900), ())])), 0, now_ms)
        log.write()
    flush(log)
    assert [due(log, 1100), due(log, 1101), due(log, 9000)] == [0, 1, 2]
    log.close()
    assert due(opened(disk), 1101) == 1, "a seal keeps it"


def test_retention_by_time_counts_from_a_start_that_checked_records_without_timestamps() -> None:
    disk = MemoryDisk()
    log = opened(disk)
    log.append(own_batch(encode_batch([(NO_TIMESTAMP, None, bytes(900), ())])), 0, 100)
    log.write()
    flush(log)
    log = opened(disk.power_cut(Random(1)))
    log.start.roll_if_too_old(1000)
    assert len(log.segments.all) == 1
    log.start.roll_if_too_old(1001)
    assert len(log.segments.all) == 2


def test_retention_for_ever_keeps_everything() -> None:
    log = filled(opened(MemoryDisk(), retention_ms="-1"), [1, 2, 3])
    assert due(log, 1 << 50) == 0


def test_retention_by_size_keeps_at_least_the_size() -> None:
    log = filled(opened(MemoryDisk(), retention_ms="-1", retention_bytes=str(2 * BATCH_BYTES)), [1, 2, 3, 4, 5])
    assert due(log, 0) == 3
    log = filled(opened(MemoryDisk(), retention_ms="-1", retention_bytes=str(2 * BATCH_BYTES + 1)), [1, 2, 3, 4, 5])
    assert due(log, 0) == 2


def test_retention_stops_at_the_high_watermark() -> None:
    log = filled(opened(MemoryDisk()), [100, 200, 300, 400])
    assert due(log, 9000, limit=2) == 2


def test_trim_moves_the_start_into_a_segment() -> None:
    disk = MemoryDisk()
    log = opened(disk, segment_bytes="1000000")
    log.append(own_batch(encode_batch([(each, None, b"x", ()) for each in range(10)])), 0, 0)
    log.write()
    flush(log)
    log.start.trim(4).run()
    assert log.log_start_offset == 4
    assert len(log.segments.all) == 1
    assert opened(disk).log_start_offset == 4


def test_trim_drops_whole_segments_and_readers_finish_what_they_have() -> None:
    disk = MemoryDisk()
    log = filled(opened(disk), [1, 2, 3])
    held = log.read(0, 10_000, log.flushes.flushed_offset, at_least_one=True)
    log.start.trim(2).run()
    assert [each.base_offset for each in log.segments.all] == [2]
    assert held is not None
    assert len(held.file.read(held.position, held.length)) == BATCH_BYTES
    assert not disk.exists(f"{DIRECTORY}/{0:020d}.log")
    assert not disk.exists(f"{DIRECTORY}/{1:020d}.index")


def test_a_new_start_counts_as_flushed_when_its_files_are_written() -> None:
    log = filled(opened(MemoryDisk()), [1, 2, 3])
    earlier, later = log.start.trim(1), log.start.trim(2)
    starts = [(log.log_start_offset, log.start.flushed_offset)]
    for job in (earlier, later):
        job.run()
        log.start.complete_trim()
        starts.append((log.log_start_offset, log.start.flushed_offset))
    assert starts == [(2, 0), (2, 0), (2, 2)]


def test_recovery_finishes_a_trim_whose_files_were_not_removed() -> None:
    disk = MemoryDisk()
    log = filled(opened(disk), [1, 2, 3])
    write_offset(disk, DIRECTORY, LOG_START, log.start.trim(2).log_start_offset)
    after = opened(disk.power_cut(Random(1)))
    assert after.log_start_offset == 2
    assert [each.base_offset for each in after.segments.all] == [2]
    assert after.log_end_offset == 3


def test_recovery_starts_a_log_that_ends_before_its_start_at_its_start() -> None:
    disk = MemoryDisk()
    filled(opened(disk), [1, 2, 3])
    write_offset(disk, DIRECTORY, LOG_START, 5)
    after = opened(disk)
    assert (after.log_start_offset, after.log_end_offset) == (5, 5)
    filled(after, [9])
    assert after.log_end_offset == 6


def test_an_emptied_log_without_its_segment_is_damaged() -> None:
    disk = MemoryDisk()
    log = filled(opened(disk), [1, 2, 3])
    log.start.trim(3).run()
    disk.remove(f"{DIRECTORY}/{2:020d}.log")
    with pytest.raises(StorageFailure, match="segment files"):
        opened(disk)


def test_recovery_removes_nothing_if_a_bit_of_the_start_offset_is_flipped() -> None:
    disk = MemoryDisk()
    segments = [segment.files.path("log") for segment in filled(opened(disk), [1, 2, 3]).segments.all]
    write_offset(disk, DIRECTORY, LOG_START, 1)
    path = f"{DIRECTORY}/{LOG_START}"
    sound = disk.read(path).removesuffix(b"\n")
    for bit in range(8 * len(sound)):
        damaged = int.from_bytes(sound) ^ 1 << bit
        disk.write_atomic(path, damaged.to_bytes(len(sound)))
        with pytest.raises(StorageFailure, match="log-start-offset is damaged"):
            opened(disk)
        assert all(disk.exists(segment) for segment in segments)


def test_start_offset_without_a_file_is_zero() -> None:
    assert read_offset(MemoryDisk(), DIRECTORY, LOG_START) == 0
