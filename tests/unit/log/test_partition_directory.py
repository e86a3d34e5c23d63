"""A partition's directory belongs to one topic id, and work on one topic's files never touches another's."""

import contextlib
import os
from collections.abc import Callable
from pathlib import Path
from random import Random
from uuid import UUID

import pytest

from conveyor.adapters.disk import RealDisk
from conveyor.kernel.errors import StorageFailure
from conveyor.kernel.ids import TopicId
from conveyor.kernel.ports import Disk
from conveyor.log.compaction.key_compaction import CompactionResult, compact
from conveyor.log.following.truncation_job import _cut_file
from conveyor.log.log import Log
from conveyor.log.log_probe import LogProbe
from conveyor.log.partition_directory import MARKER, decode_owner, encode_owner
from conveyor.log.recovery.recovery import open_log
from conveyor.settings.tree import ProducerSettings
from conveyor.testing import MemoryDisk
from tests.unit.log.compaction.test_key_compaction import FILLING, TOPIC, everything, filled, keyed
from tests.unit.log.logs import DIRECTORY, NOW_MS, TOPIC_ID, all_below, append, flush, open_topic_log

OTHER_ID = TopicId(UUID("78eccf1f-c0cc-4b13-b1b4-3db4b0b80d3b"))
MARK = f"{DIRECTORY}/{MARKER}"
PLACE = "logs/t-0.deleted"
NOTHING = CompactionResult(
    replaced=(), cleaned=(), cleaned_offset=1, bytes_before=0, bytes_after=0, unreadable_batches=0,
    first_unreadable_offset=-1,
)  # fmt: skip


def open_other(disk: Disk) -> Log:
    return open_log(disk, DIRECTORY, OTHER_ID, TOPIC, ProducerSettings(), LogProbe(), NOW_MS)


KAFKAS_MARK = b"version: 0\ntopic_id: eOzPH8DMSxOxtD20sLgNOw"


def test_mark_is_as_kafka_writes_it_with_a_checksum() -> None:
    assert encode_owner(OTHER_ID) == KAFKAS_MARK + b"\ncrc32c: fd21d0cf\n"
    assert decode_owner(encode_owner(OTHER_ID)) == OTHER_ID


@pytest.mark.parametrize("end", [b"", b"\n"])
def test_mark_without_a_checksum_is_read(end: bytes) -> None:
    """As Kafka and earlier versions have written it."""
    assert decode_owner(KAFKAS_MARK + end) == OTHER_ID


def test_flipped_bit_of_a_mark_gives_the_directory_to_nobody() -> None:
    mark = encode_owner(OTHER_ID)
    for position, byte in enumerate(mark):
        flipped = [mark[:position] + bytes([byte ^ 1 << bit]) + mark[position + 1 :] for bit in range(8)]
        assert [decode_owner(content) for content in flipped] == [None] * 8


@pytest.mark.parametrize(
    "content",
    [b"", b"version: 0\n", b"version: 1\ntopic_id: eOzPH8DMSxOxtD20sLgNOw\n", b"version: 0\ntopic_id: eOzPH8\n",
     b"version: 0\ntopic_id: e\n", b"\xff\xfe: \n", b"version: 0\ntopic_id: eOzPH8DMSxOxtD20sLgNOwAA\n",
     KAFKAS_MARK + b"\ncrc32c: fd21\n", KAFKAS_MARK + b"\n\n"],
)  # fmt: skip
def test_mark_that_does_not_check_out_names_nobody(content: bytes) -> None:
    assert decode_owner(content) is None


def test_directory_of_another_topic_is_not_opened() -> None:
    disk = MemoryDisk()
    log = filled(disk, keyed((b"a", FILLING)))
    with pytest.raises(StorageFailure, match=f"belongs to topic id {TOPIC_ID}, not to {OTHER_ID}"):
        open_other(disk)
    assert [each.key for each in everything(log)] == [b"a", b"last"]


def test_directory_without_a_mark_is_taken_over_for_good() -> None:
    """Brokers before the mark have left such directories."""
    disk = MemoryDisk()
    filled(disk, keyed((b"a", FILLING))).close()
    disk.remove(MARK)
    open_topic_log(disk, TOPIC)
    survivor = disk.power_cut(Random(1))
    assert decode_owner(survivor.read(MARK)) == TOPIC_ID
    assert [each.key for each in everything(open_topic_log(survivor, TOPIC))] == [b"a", b"last"]


def test_mark_is_durable_with_the_first_flush() -> None:
    disk = MemoryDisk()
    filled(disk, keyed((b"a", FILLING)))
    assert all(decode_owner(disk.power_cut(Random(seed)).read(MARK)) == TOPIC_ID for seed in range(20))


def open_names(root: Path) -> set[str]:
    """The files below a directory that this process has open."""
    names = {path.stat().st_ino: path.name for path in root.rglob("*") if path.is_file()}
    opened = set()
    for descriptor in Path("/dev/fd").iterdir():
        with contextlib.suppress(OSError):
            opened.add(os.fstat(int(descriptor.name)).st_ino)
    return {names[each] for each in opened & names.keys()}


def test_neither_marks_nor_index_files_stay_open(tmp_path: Path) -> None:
    disk = RealDisk(tmp_path, 100)
    log = filled(disk, keyed((b"a", FILLING)))
    log.close()
    log = open_topic_log(disk, TOPIC)
    for _ in range(2):
        append(log, keyed((b"b", bytes(1000))))
        flush(log)
    assert open_names(tmp_path) == {f"{segment.base_offset:020d}.log" for segment in log.segments.all}


def test_torn_mark_is_made_again_before_the_first_flush_and_is_a_failure_after_it() -> None:
    disk = MemoryDisk()
    log = open_topic_log(disk, TOPIC)
    append(log, keyed((b"a", b"1")))
    disk.open(MARK).truncate(5)
    assert [each.key for each in everything(open_topic_log(disk, TOPIC))] == [b"a"]
    assert decode_owner(disk.read(MARK)) == TOPIC_ID
    flush(log)
    disk.open(MARK).truncate(5)
    with pytest.raises(StorageFailure, match="is damaged"):
        open_topic_log(disk, TOPIC)


Work = Callable[[], object]


def flush_of(log: Log, _: Disk) -> Work:
    append(log, keyed((b"more", bytes(1000))))
    return log.flushes.begin().run


def trim_of(log: Log, _: Disk) -> Work:
    return log.start.trim(log.flushes.flushed_offset).run


def swap_of(log: Log, _: Disk) -> Work:
    job = log.compaction.begin_swap(NOTHING)
    assert job is not None
    return job.run


def discard_of(log: Log, disk: Disk) -> Work:
    plan = log.compaction.plan(all_below(log.flushes.flushed_offset), NOW_MS, 1000)
    assert plan is not None
    result = compact(disk, plan)
    return lambda: log.compaction.discard([each.base_offset for each in result.cleaned])


def truncation_of(log: Log, _: Disk) -> Work:
    log.truncation.truncate_to(2)
    job = log.truncation.begin(NOW_MS)
    assert job is not None
    return job.run


def compaction_of(log: Log, disk: Disk) -> Work:
    plan = log.compaction.plan(all_below(log.flushes.flushed_offset), NOW_MS, 1000)
    assert plan is not None
    return lambda: compact(disk, plan)


@pytest.mark.parametrize("kind", ["real", "memory"])
@pytest.mark.parametrize("work_of", [flush_of, trim_of, swap_of, discard_of, compaction_of, truncation_of])
def test_work_on_a_deleted_topic_leaves_its_successor_alone(
    kind: str, work_of: Callable[[Log, Disk], Work], tmp_path: Path
) -> None:
    """It was begun before the deletion, on a thread or in a process that comes to it after the topic was made again."""
    disk = RealDisk(tmp_path, 100) if kind == "real" else MemoryDisk()
    log = filled(disk, keyed((b"a", FILLING)), keyed((b"a", FILLING)), keyed((b"b", FILLING)), keyed((b"b", FILLING)))
    work = work_of(log, disk)
    log.abandon()
    disk.rename(DIRECTORY, PLACE)
    successor = open_other(disk)
    append(successor, keyed((b"new", b"1")))
    flush(successor)
    before = {name: disk.read(f"{DIRECTORY}/{name}") for name in disk.list(DIRECTORY)}
    with pytest.raises(StorageFailure):
        work()
    assert {name: disk.read(f"{DIRECTORY}/{name}") for name in disk.list(DIRECTORY)} == before
    assert [each.key for each in everything(open_other(disk))] == [b"new"]


@pytest.mark.parametrize("kind", ["real", "memory"])
@pytest.mark.parametrize("work_of", [flush_of, trim_of, swap_of, discard_of, truncation_of])
def test_work_on_a_replica_that_was_taken_away_leaves_its_successor_alone(
    kind: str, work_of: Callable[[Log, Disk], Work], tmp_path: Path
) -> None:
    """The successor has the same topic id, and has copied the same records since."""
    disk = RealDisk(tmp_path, 100) if kind == "real" else MemoryDisk()
    batches = [keyed((key, FILLING)) for key in (b"a", b"a", b"b", b"b")]
    log = filled(disk, *batches)
    work = work_of(log, disk)
    log.place.end()
    log.abandon()
    disk.rename(DIRECTORY, PLACE)
    filled(disk, *batches)
    before = {name: disk.read(f"{DIRECTORY}/{name}") for name in disk.list(DIRECTORY)}
    with pytest.raises(StorageFailure):
        work()
    assert {name: disk.read(f"{DIRECTORY}/{name}") for name in disk.list(DIRECTORY)} == before


def test_truncation_cuts_the_file_that_it_has_opened(tmp_path: Path) -> None:
    """Also if its directory ends just then, and the limit of open files closes those that are idle."""
    disk = RealDisk(tmp_path, 1)
    batches = [keyed((b"a", FILLING)), keyed((b"b", FILLING))]
    log = filled(disk, *batches)
    sync = log.place.sync_directory

    def sync_and_end(path: str) -> None:
        sync(path)
        disk.open(MARK)
        log.place.end()
        log.abandon()
        disk.rename(DIRECTORY, PLACE)
        filled(disk, *batches)

    log.place.sync_directory = sync_and_end  # type: ignore[method-assign]
    _cut_file(log.place, DIRECTORY, 0, 10)
    first = "00000000000000000000.log"
    assert (len(disk.read(f"{PLACE}/{first}")), len(disk.read(f"{DIRECTORY}/{first}")) > 10) == (10, True)


def test_file_that_is_opened_after_the_end_may_be_another_replicas() -> None:
    disk = MemoryDisk()
    log = filled(disk, keyed((b"a", FILLING)))
    log.place.end()
    with pytest.raises(StorageFailure, match="not this replica's any more"):
        log.place.open(MARK)
