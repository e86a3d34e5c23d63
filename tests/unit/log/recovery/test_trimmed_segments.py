"""Segments below the log start when a log is opened: a removal was interrupted. They never cost a record of the log."""

from contextlib import suppress
from random import Random

import pytest

from conveyor.kernel.errors import DiskFull, OutOfFiles, RequestError, StorageFailure
from conveyor.log.log import Log
from conveyor.log.segments.offset_file import LOG_START, write_offset
from conveyor.records.record import encode_batch
from conveyor.settings.tree import TopicSettings
from conveyor.testing import MemoryDisk
from tests.unit.log.compaction import test_key_compaction
from tests.unit.log.logs import (
    DIRECTORY,
    NOW_MS,
    PAIR,
    append,
    batch,
    contents,
    flush,
    idempotent_batch,
    open_topic_log,
    segment_file,
    values,
)

COUNT = 12
START = 6


def filled() -> tuple[MemoryDisk, Log]:
    """Batches of one idempotent producer, two in each segment."""
    disk = MemoryDisk()
    log = open_topic_log(disk, PAIR)
    for number in range(COUNT):
        append(log, idempotent_batch(number, b"%x" % number))
    flush(log)
    return disk, log


def killed_while_trimming(log: Log, disk: MemoryDisk, removed: int) -> MemoryDisk:
    """removed: how many files are removed before the process is killed."""
    trim = log.start.trim(START)
    write_offset(log.place, DIRECTORY, LOG_START, START)
    for path in trim.removed_paths[:removed]:
        disk.remove(path)
    return disk.process_crash()


def check_whole(disk: MemoryDisk) -> None:
    """The log has all records from its start on, also after another start, and knows its producer."""
    for _ in range(2):
        log = open_topic_log(disk, PAIR)
        assert (log.log_start_offset, log.log_end_offset, log.recovered.lacks_batches) == (START, COUNT, False)
        assert [segment.base_offset for segment in log.segments.all] == [6, 8, 10]
        assert values(log) == [b"%x" % number for number in range(START, COUNT)]
        last = append(log, idempotent_batch(COUNT - 1, b"b"))
        assert (last.first_offset, last.duplicate) == (COUNT - 1, True)
        disk = disk.process_crash()


@pytest.mark.parametrize("removed", range(16))
@pytest.mark.parametrize("snapshots", ["kept", "lost"])
def test_interrupted_removal_is_finished(removed: int, snapshots: str) -> None:
    disk, log = filled()
    killed = killed_while_trimming(log, disk, removed)
    if snapshots == "lost":
        for name in killed.list(DIRECTORY):
            if name.endswith(".producers"):
                killed.remove(f"{DIRECTORY}/{name}")
    check_whole(killed)


@pytest.mark.parametrize("removed", range(11))
def test_interrupted_removal_of_compacted_segments_is_finished(removed: int) -> None:
    """The end of the segments is compacted away, so that without its seal a segment seems to have lost its end."""
    keyed = keyed_topic("compact,delete")
    disk, log = compacted(keyed)
    reopened = open_topic_log(killed_while_trimming(log, disk, removed), keyed)
    assert (reopened.log_start_offset, reopened.log_end_offset, reopened.recovered.lacks_batches) == (
        START,
        COUNT,
        False,
    )
    assert contents(reopened) == [(6, b"6"), (8, b"8"), (9, b"9"), (10, b"a"), (11, b"b")]


def keyed_batch(key: bytes, value: bytes) -> bytes:
    return encode_batch([(NOW_MS, key, value, ())])


def keyed_topic(cleanup_policy: str) -> TopicSettings:
    """Two batches in each segment."""
    return TopicSettings(
        segment_bytes=2 * len(keyed_batch(b"a", b"0")),
        index_interval_bytes=0,
        cleanup_policy=cleanup_policy,
        min_cleanable_dirty_ratio=0.0,
    )


def compacted(topic: TopicSettings) -> tuple[MemoryDisk, Log]:
    """Twelve batches, of which every second one has had the same key."""
    disk = MemoryDisk()
    log = open_topic_log(disk, topic)
    for number, key in enumerate([b"u", b"a", b"v", b"a", b"w", b"a", b"x", b"a", b"y", b"a", b"z", b"a"]):
        append(log, keyed_batch(key, b"%x" % number))
    flush(log)
    test_key_compaction.compacted(disk, log)
    return disk, log


@pytest.mark.parametrize("removed", [0, 1])
@pytest.mark.parametrize("base", [0, 2, 4])
def test_damage_below_the_log_start_is_removed_with_its_segment(removed: int, base: int) -> None:
    disk, log = filled()
    killed = killed_while_trimming(log, disk, removed)
    size = len(killed.read(segment_file(base)))
    for position in {*Random(base).sample(range(size), 20), size - 1}:
        damaged = killed.process_crash()
        damaged.flip(segment_file(base), position, 1)
        check_whole(damaged)


def test_unlinks_may_be_durable_in_any_order() -> None:
    disk, log = filled()
    killed = killed_while_trimming(log, disk, 0)
    for path in [path for path in log.start.trim(START).removed_paths if f"{2:020}" in path]:
        killed.remove(path)
    check_whole(killed)


def test_missing_segment_with_the_log_start_is_a_hole_also_if_an_earlier_one_is_left() -> None:
    disk, log = filled()
    write_offset(log.place, DIRECTORY, LOG_START, START + 1)
    for suffix in ("log", "index", "timeindex"):
        disk.remove(segment_file(START, suffix))
    with pytest.raises(StorageFailure, match=f"{START:020}.log is missing, although it was on the disk"):
        open_topic_log(disk.process_crash(), PAIR)


# Producers whose only records are below the log start.


def with_departed_producer() -> MemoryDisk:
    """A removal was interrupted, and the snapshots are lost. Producer 8 has no record above the log start."""
    disk = MemoryDisk()
    log = open_topic_log(disk, PAIR)
    for number in range(START):
        append(log, idempotent_batch(number, b"%x" % number, producer_id=8, epoch=3))
    for number in range(COUNT - START):
        append(log, idempotent_batch(number, b"%x" % number))
    flush(log)
    killed = killed_while_trimming(log, disk, 0)
    for name in killed.list(DIRECTORY):
        if name.endswith(".producers"):
            killed.remove(f"{DIRECTORY}/{name}")
    return killed


def check_departed_producer(disk: MemoryDisk) -> None:
    """Its last batch is a duplicate, and its earlier epoch is fenced, also after another start."""
    for _ in range(2):
        log = open_topic_log(disk, PAIR)
        assert (log.log_start_offset, log.log_end_offset) == (START, COUNT)
        assert append(log, idempotent_batch(START - 1, b"5", producer_id=8, epoch=3)).duplicate
        with pytest.raises(RequestError, match="its current epoch is 3"):
            append(log, idempotent_batch(0, b"zombie", producer_id=8, epoch=2))
        disk = disk.process_crash()


def fail_once(disk: MemoryDisk, operations: int, failure: StorageFailure) -> None:
    """Let one operation of a disk fail, after so many others. All later ones succeed."""
    left = iter(range(operations))

    def check(operation: str, path: str) -> None:
        if next(left, None) is None:
            del disk.check
            raise failure

    disk.check = check  # type: ignore[method-assign]


@pytest.mark.slow
@pytest.mark.parametrize("kind", [StorageFailure, OutOfFiles, DiskFull])
def test_passing_failure_does_not_remove_the_only_record_of_a_producer(kind: type[StorageFailure]) -> None:
    for operations in range(200):
        disk = with_departed_producer()
        fail_once(disk, operations, kind("it passes"))
        with suppress(StorageFailure):
            open_topic_log(disk, PAIR)
        has_failed = "check" not in vars(disk)
        check_departed_producer(disk.process_crash())
        if not has_failed:
            return
    pytest.fail("the start has more operations")


def test_full_disk_does_not_remove_the_only_record_of_a_producer() -> None:
    disk = with_departed_producer()
    disk.faults.free_bytes = 0
    for _ in range(2):
        with pytest.raises(DiskFull):
            open_topic_log(disk, PAIR)
        disk = disk.process_crash()
    disk.faults.free_bytes = 1 << 20
    check_departed_producer(disk)


def test_full_disk_gets_room_for_producers_from_index_files() -> None:
    disk = with_departed_producer()
    opened = disk.process_crash()
    open_topic_log(opened, PAIR)
    disk.faults.free_bytes = len(opened.read(segment_file(START, "producers"))) - 1
    check_departed_producer(disk)


@pytest.mark.parametrize("removed", [0, 1])
def test_full_disk_is_no_obstacle_to_the_removal_that_frees_it(removed: int) -> None:
    """The segments have no producer that would have to be stored first."""
    disk = MemoryDisk()
    log = open_topic_log(disk, PAIR)
    for number in range(COUNT):
        append(log, batch(b"%x" % number))
    flush(log)
    killed = killed_while_trimming(log, disk, removed)
    for name in killed.list(DIRECTORY):
        if name.endswith((".producers", "index")):
            killed.remove(f"{DIRECTORY}/{name}")
    killed.faults.free_bytes = 0
    with pytest.raises(DiskFull):
        killed.write_atomic("any", b"byte")
    reopened = open_topic_log(killed, PAIR)
    assert (reopened.log_start_offset, reopened.log_end_offset) == (START, COUNT)
