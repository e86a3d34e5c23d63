"""Opening a log: what is kept, what is cut, and what is a hole that keeps the partition offline."""

from collections.abc import Iterator
from contextlib import contextmanager
from random import Random

import pytest

from conveyor.kernel.errors import ErrorKind, RequestError, StorageFailure
from conveyor.log.log import Log
from conveyor.log.log_probe import LogProbe
from conveyor.log.segments.lookup import find_time
from conveyor.log.segments.segment_indexes import IndexUnavailable
from conveyor.records.batch import batch_is_intact
from conveyor.records.checked_batch import own_batch
from conveyor.settings.tree import ProducerSettings, TopicSettings
from conveyor.testing import MemoryDisk
from tests.unit.log.logs import (
    DIRECTORY,
    NOW_MS,
    PAIR,
    append,
    batch,
    flush,
    idempotent_batch,
    open_topic_log,
    read_bytes,
    records_of,
    segment_file,
    values,
)
from tests.unit.log.power_switch import PowerSwitch

SIZE = len(idempotent_batch(0, b"a"))


def filled(disk: MemoryDisk, count: int) -> Log:
    """A log of one-record batches of one idempotent producer, two in each segment, written and not flushed."""
    log = open_topic_log(disk, PAIR)
    for number in range(count):
        append(log, idempotent_batch(number, b"%d" % number))
    return log


def numbers(count: int) -> list[bytes]:
    return [b"%d" % number for number in range(count)]


def damage(disk: MemoryDisk, path: str, position: int) -> None:
    disk.open(path).written[position] ^= 1


def test_open_of_nothing_is_an_empty_log() -> None:
    log = open_topic_log(MemoryDisk())
    assert (log.log_start_offset, log.written_offset, log.log_end_offset) == (0, 0, 0)
    assert log.read(0, 100, 0, at_least_one=True) is None


def test_new_log_and_one_that_was_closed_count_as_cleanly_stopped() -> None:
    disk = MemoryDisk()
    new = open_topic_log(disk)
    append(new, batch(b"a"))
    new.close()
    closed = open_topic_log(disk)
    append(closed, batch(b"b"))
    killed = open_topic_log(disk.process_crash())
    assert [log.recovered.was_stopped_cleanly for log in (new, closed, killed)] == [True, True, False]


@pytest.mark.parametrize("count", [1, 4])
def test_log_that_lost_its_unflushed_first_segment_was_not_stopped_cleanly(count: int) -> None:
    """Nor does it count as cleanly stopped if the start that finds this is interrupted, and repeated."""
    for operations in range(100):
        disk = MemoryDisk()
        filled(disk, count)
        cut = disk.process_crash()
        cut.remove(segment_file(0))
        is_interrupted = False
        with PowerSwitch(cut, operations):
            try:
                open_topic_log(cut, PAIR)
            except StorageFailure:
                is_interrupted = True
        log = open_topic_log(cut.process_crash(), PAIR)
        assert (log.log_end_offset, log.recovered.was_stopped_cleanly) == (0, False)
        if not is_interrupted:
            return
    pytest.fail("the start has more operations")


def test_killed_log_keeps_what_was_written_and_goes_on() -> None:
    disk = MemoryDisk()
    log = filled(disk, 5)
    log.append(own_batch(idempotent_batch(5, b"x")), 0, NOW_MS)
    probe = LogProbe()
    reopened = open_topic_log(disk, PAIR, probe)
    assert values(reopened) == numbers(5)
    assert (probe.recovered_segments, probe.truncated_bytes) == (3, 0)
    assert append(reopened, idempotent_batch(4, b"4")).duplicate
    assert append(reopened, idempotent_batch(5, b"5")).first_offset == 5


def test_recovery_scans_only_what_was_not_sealed() -> None:
    disk = MemoryDisk()
    flush(filled(disk, 5))
    probe = LogProbe()
    open_topic_log(disk, PAIR, probe)
    assert probe.recovered_segments == 1


def test_recovered_log_is_on_the_disk() -> None:
    disk = MemoryDisk()
    filled(disk, 5)
    recovered = open_topic_log(disk, PAIR)
    assert recovered.flushes.flushed_offset == 5
    for seed in range(5):
        assert values(open_topic_log(disk.power_cut(Random(seed)), PAIR)) == numbers(5)


def test_torn_tail_is_cut_and_counted() -> None:
    disk = MemoryDisk()
    filled(disk, 5)
    disk.open(segment_file(4)).append([idempotent_batch(5, b"5")[:-1]])
    probe = LogProbe()
    assert values(open_topic_log(disk, PAIR, probe)) == numbers(5)
    assert probe.truncated_bytes == SIZE - 1
    assert disk.open(segment_file(4)).size == SIZE


def test_damage_in_an_unflushed_segment_cuts_there_and_drops_what_follows() -> None:
    disk = MemoryDisk()
    filled(disk, 6)
    damage(disk, segment_file(2), SIZE + 65)
    assert values(open_topic_log(disk, PAIR)) == numbers(3)
    assert [name for name in disk.list(DIRECTORY) if name.endswith(".log")] == [f"{0:020d}.log", f"{2:020d}.log"]


@pytest.mark.parametrize("position", [11, 65], ids=["size", "record"])
def test_batch_that_is_followed_by_an_intact_one_was_complete(position: int) -> None:
    disk = MemoryDisk()
    log = open_topic_log(disk)
    for value in (b"a", b"b", b"c"):
        append(log, batch(value))
    size = len(disk.read(segment_file(0))) // 3
    assert not open_topic_log(disk).recovered.lacks_batches
    damage(disk, segment_file(0), size + position)
    opened = open_topic_log(disk)
    assert (values(opened), opened.recovered.lacks_batches) == ([b"a"], True)


def test_log_lacks_complete_batches_until_others_take_their_place() -> None:
    """The next start finds no damage, and the first may have ended before anybody knew of it."""
    disk = MemoryDisk()
    log = open_topic_log(disk)
    for value in (b"a", b"b", b"c"):
        append(log, batch(value))
    damage(disk, segment_file(0), len(disk.read(segment_file(0))) // 3 + 65)
    open_topic_log(disk)
    again = open_topic_log(disk)
    assert (values(again), again.recovered.lacks_batches) == ([b"a"], True)
    append(again, batch(b"b"))
    assert not open_topic_log(disk).recovered.lacks_batches


@contextmanager
def reads_of(disk: MemoryDisk) -> Iterator[list[str]]:
    """The paths that are read meanwhile."""
    read: list[str] = []

    def note(operation: str, path: str) -> None:
        if operation == "read":
            read.append(path)

    disk.check = note  # type: ignore[method-assign]
    yield read
    del disk.check


def test_start_after_a_clean_stop_reads_no_segment() -> None:
    disk = MemoryDisk()
    filled(disk, 5).close()
    with reads_of(disk) as read:
        reopened = open_topic_log(disk, PAIR)
    assert [path for path in read if path.endswith((".log", "index"))] == []
    assert values(reopened) == numbers(5)
    assert append(reopened, idempotent_batch(4, b"4")).duplicate


def test_start_after_a_second_clean_stop_without_appends_reads_no_segment() -> None:
    disk = MemoryDisk()
    filled(disk, 5).close()
    open_topic_log(disk, PAIR).close()
    with reads_of(disk) as read:
        open_topic_log(disk, PAIR).close()
    assert [path for path in read if path.endswith(".log")] == []


def test_damage_after_a_clean_stop_is_served_as_it_is_and_the_log_goes_on_after_it() -> None:
    """The client that reads it finds by its checksum that it is damaged."""
    disk = MemoryDisk()
    filled(disk, 4).close()
    damage(disk, segment_file(2), SIZE + 65)
    reopened = open_topic_log(disk, PAIR)
    assert not batch_is_intact(read_bytes(reopened, 3))
    assert append(reopened, idempotent_batch(4, b"4")).first_offset == 4
    assert records_of(read_bytes(reopened, 4)) == [(4, b"4")]


def test_end_that_is_shorter_than_at_a_clean_stop_is_checked_and_cut() -> None:
    disk = MemoryDisk()
    filled(disk, 4).close()
    disk.open(segment_file(2)).truncate(2 * SIZE - 1)
    reopened = open_topic_log(disk, PAIR)
    assert values(reopened) == numbers(3)
    assert append(reopened, idempotent_batch(3, b"3")).first_offset == 3


@pytest.mark.parametrize("position", [7, 65, SIZE + 7, SIZE + 65])
def test_wrong_batch_in_the_last_segment_of_a_killed_log_is_cut(position: int) -> None:
    """The checksum does not cover the base offset, so that only its neighbours tell that it is wrong."""
    disk = MemoryDisk()
    log = open_topic_log(disk)
    append(log, batch(b"a"))
    append(log, batch(b"b"))
    damage(disk, segment_file(0), position)
    assert values(open_topic_log(disk)) == ([] if position < SIZE else [b"a"])


def test_damaged_flushed_segment_in_the_middle_is_a_failure_that_names_it() -> None:
    disk = MemoryDisk()
    flush(filled(disk, 6))
    damage(disk, segment_file(2), SIZE + 65)
    before = disk.open(segment_file(2)).size
    with pytest.raises(StorageFailure, match=rf"{2:020d}\.log"):
        open_topic_log(disk, PAIR)
    assert disk.open(segment_file(2)).size == before


@pytest.mark.parametrize("size", [0, 1, SIZE, 2 * SIZE - 1])
def test_cut_flushed_segment_in_the_middle_is_a_failure(size: int) -> None:
    disk = MemoryDisk()
    flush(filled(disk, 6))
    disk.open(segment_file(2)).truncate(size)
    with pytest.raises(StorageFailure, match=rf"{2:020d}\.log"):
        open_topic_log(disk, PAIR)
    assert disk.exists(segment_file(4))


def test_missing_flushed_segment_is_a_failure() -> None:
    disk = MemoryDisk()
    flush(filled(disk, 6))
    disk.remove(segment_file(2))
    with pytest.raises(StorageFailure, match=rf"{2:020d}\.log is missing"):
        open_topic_log(disk, PAIR)


def test_hole_after_what_was_never_flushed_is_the_end_of_the_log() -> None:
    """A power cut may forget one new file and keep a newer one; nothing behind the hole was ever flushed."""
    disk = MemoryDisk()
    filled(disk, 6)
    disk.remove(segment_file(2))
    reopened = open_topic_log(disk, PAIR)
    assert values(reopened) == numbers(2)
    assert append(reopened, idempotent_batch(2, b"2")).first_offset == 2


def test_start_that_was_never_flushed_may_be_missing() -> None:
    disk = MemoryDisk()
    filled(disk, 6)
    disk.remove(segment_file(0))
    reopened = open_topic_log(disk, PAIR)
    assert (reopened.log_start_offset, values(reopened)) == (0, [])
    assert append(reopened, idempotent_batch(0, b"0")).first_offset == 0


def test_missing_start_of_a_flushed_log_is_a_failure() -> None:
    disk = MemoryDisk()
    flush(filled(disk, 6))
    disk.remove(segment_file(0))
    with pytest.raises(StorageFailure, match=rf"{0:020d}\.log is missing"):
        open_topic_log(disk, PAIR)
    assert disk.exists(segment_file(2))


def test_recovery_that_was_interrupted_is_finished_by_the_next() -> None:
    disk = MemoryDisk()
    filled(disk, 6)
    disk.open(segment_file(0)).truncate(SIZE)
    assert values(open_topic_log(disk, PAIR)) == numbers(1)


def test_recovered_segment_counts_as_flushed_from_then_on() -> None:
    disk = MemoryDisk()
    filled(disk, 6)
    open_topic_log(disk, PAIR).abandon()
    damage(disk, segment_file(2), SIZE + 65)
    with pytest.raises(StorageFailure, match=rf"{2:020d}\.log"):
        open_topic_log(disk, PAIR)


def test_half_written_indexes_do_not_say_that_a_segment_is_flushed() -> None:
    disk = MemoryDisk()
    filled(disk, 3)
    disk.write_atomic(segment_file(0, "timeindex"), b"")
    probe = LogProbe()
    assert values(open_topic_log(disk, PAIR, probe)) == numbers(3)
    assert probe.recovered_segments == 2


def test_recovered_indexes_find_what_the_first_ones_found() -> None:
    disk = MemoryDisk()
    log = open_topic_log(disk, PAIR)
    for number in range(6):
        append(log, batch(b"v", at_ms=100 + number))
    reopened = open_topic_log(disk, PAIR)
    for number in range(6):
        record = find_time(reopened.segments.all, 100 + number, 6)
        assert record is not None
        assert record.offset == number


@pytest.mark.parametrize("clean", [True, False], ids=["clean", "killed"])
@pytest.mark.parametrize("snapshots", ["kept", "damaged", "lost"])
def test_producers_are_recovered_with_or_without_snapshots(clean: bool, snapshots: str) -> None:
    disk = MemoryDisk()
    log = filled(disk, 5)
    flush(log)
    append(log, idempotent_batch(5, b"5"))
    if clean:
        log.close()
    for name in disk.list(DIRECTORY):
        if name.endswith(".producers") and snapshots != "kept":
            damage(disk, f"{DIRECTORY}/{name}", -1) if snapshots == "damaged" else disk.remove(f"{DIRECTORY}/{name}")
    reopened = open_topic_log(disk, PAIR)
    for number in range(1, 6):
        again = append(reopened, idempotent_batch(number, b"%d" % number))
        assert (again.first_offset, again.duplicate) == (number, True)
    with pytest.raises(RequestError) as refused:
        append(reopened, idempotent_batch(7, b"7"))
    assert refused.value.kind is ErrorKind.OUT_OF_ORDER_SEQUENCE


def test_snapshot_beyond_a_cut_is_not_believed_even_when_the_log_has_passed_it() -> None:
    disk = MemoryDisk()
    filled(disk, 4).close()
    disk.open(segment_file(2)).truncate(2 * SIZE - 1)
    shorter = open_topic_log(disk, PAIR)
    append(shorter, batch(b"another's"))
    append(shorter, batch(b"another's"))
    reopened = open_topic_log(disk, PAIR)
    taken = append(reopened, idempotent_batch(3, b"3"))
    assert (taken.first_offset, taken.duplicate) == (5, False)


def test_producers_silent_for_too_long_are_forgotten_at_open() -> None:
    disk = MemoryDisk()
    filled(disk, 2).close()
    expiration_ms = ProducerSettings().producer_id_expiration_ms
    assert len(open_topic_log(disk, PAIR, now_ms=NOW_MS + expiration_ms).producers) == 1
    assert len(open_topic_log(disk, PAIR, now_ms=NOW_MS + expiration_ms + 1).producers) == 0


@pytest.mark.parametrize("suffix", ["index", "timeindex"])
@pytest.mark.parametrize("damage", [b"", b"nonsense", None])
def test_wrong_index_file_is_rebuilt_off_the_loop(suffix: str, damage: bytes | None) -> None:
    disk = MemoryDisk()
    log = open_topic_log(disk, TopicSettings(index_interval_bytes=0))
    for number in range(100):
        append(log, batch(bytes(100), at_ms=100 + number))
    log.close()
    disk.remove(segment_file(0, suffix))
    if damage is not None:
        disk.write_atomic(segment_file(0, suffix), damage)
    reopened = open_topic_log(disk)
    with pytest.raises(IndexUnavailable) as raised:
        find_time(reopened.segments.all, 150, 100)
    raised.value.indexes.prepare()
    assert records_of(read_bytes(reopened, 70))[0][0] == 70
    found = find_time(reopened.segments.all, 150, 100)
    assert found is not None
    assert found.offset == 50


@pytest.mark.parametrize("damage", [b"", b"nonsense", None])
def test_wrong_index_file_is_replaced_by_the_start_after_a_crash(damage: bytes | None) -> None:
    disk = MemoryDisk()
    log = filled(disk, 6)
    flush(log)
    path = segment_file(2, "index")
    sound = disk.read(path)
    disk.remove(path)
    if damage is not None:
        disk.write_atomic(path, damage)
    assert values(open_topic_log(disk, PAIR)) == numbers(6)
    assert disk.read(path) == sound


@pytest.mark.parametrize("suffix", ["index", "timeindex"])
def test_index_that_is_rebuilt_after_the_other_one_was_used_replaces_both(suffix: str) -> None:
    """The entries of the new pair are further apart."""
    disk = MemoryDisk()
    log = open_topic_log(disk, TopicSettings(index_interval_bytes=0))
    for number in range(100):
        append(log, batch(bytes(100), at_ms=100 + number))
    log.close()
    disk.remove(segment_file(0, suffix))
    reopened = open_topic_log(disk)
    segment = reopened.segments.all[0]
    _ = segment.indexes.times if suffix == "index" else segment.indexes.offsets
    append(reopened, batch(b"next", at_ms=200))
    segment.indexes.stored.prepare()
    reopened.truncation.truncate_to(70)
    job = reopened.truncation.begin(NOW_MS)
    assert job is not None
    reopened.truncation.complete(job, job.run())
    assert records_of(read_bytes(reopened, 60))[0][0] == 60
    found = find_time(reopened.segments.all, 150, 70)
    assert found is not None
    assert found.offset == 50


@pytest.mark.parametrize("base", [0, 2, 4])
def test_segment_file_that_is_gone_is_a_failure(base: int) -> None:
    disk = MemoryDisk()
    filled(disk, 6).close()
    disk.remove(segment_file(base))
    with pytest.raises(StorageFailure, match=r"hole|gone"):
        open_topic_log(disk, PAIR)


def test_log_whose_segment_files_are_all_gone_is_a_failure() -> None:
    disk = MemoryDisk()
    flush(filled(disk, 1))
    disk.remove(segment_file(0))
    with pytest.raises(StorageFailure, match="missing"):
        open_topic_log(disk, PAIR)


def test_newest_segment_file_that_is_gone_after_a_kill_is_a_failure() -> None:
    """Nothing of it was sealed; but the seal before it says that it was there."""
    disk = MemoryDisk()
    flush(filled(disk, 5))
    disk.remove(segment_file(4))
    with pytest.raises(StorageFailure, match=rf"a segment followed .*{2:020d}\.log, at offset 4, and is missing"):
        open_topic_log(disk, PAIR)


def test_files_with_other_names_are_told_and_let_be(caplog: pytest.LogCaptureFixture) -> None:
    disk = MemoryDisk()
    flush(filled(disk, 3))
    for name in ("2.log", "copy.log", "copy.seal"):
        disk.write_atomic(f"{DIRECTORY}/{name}", b"another's")
    assert values(open_topic_log(disk, PAIR)) == numbers(3)
    told = [message for message in caplog.messages if "file ignored" in message]
    assert [
        f"{DIRECTORY}/{name}: the name of a segment is its base offset" in each
        for name, each in zip(("2.log", "copy.log"), told, strict=True)
    ] == [True, True]
    assert disk.read(f"{DIRECTORY}/copy.log") == b"another's"


def test_producers_of_segments_that_a_start_has_sealed_are_known_after_those_are_deleted() -> None:
    disk, topic = MemoryDisk(), TopicSettings(segment_bytes=SIZE)
    log = open_topic_log(disk, topic)
    append(log, idempotent_batch(0, b"a"))
    append(log, idempotent_batch(0, b"b", producer_id=8))
    log.abandon()
    open_topic_log(disk, topic).start.trim(1).run()
    log = open_topic_log(disk.power_cut(Random(1)), topic)
    assert log.log_start_offset == 1
    assert append(log, idempotent_batch(0, b"a")).duplicate
