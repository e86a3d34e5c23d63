"""The end of a log, cut and damaged at every byte of its last batch: what was before it stays, and the log goes on."""

from collections.abc import Callable
from pathlib import Path

import pytest

from conveyor.adapters.disk import RealDisk
from conveyor.kernel.errors import ErrorKind, RequestError, StorageFailure
from conveyor.kernel.ports import Disk
from conveyor.log.log import Log
from conveyor.log.log_probe import LogProbe
from conveyor.records.batch import LENGTH_PREFIX_BYTES, batch_is_intact, read_header
from conveyor.settings.tree import TopicSettings
from conveyor.testing import MemoryDisk
from tests.unit.log.logs import (
    DIRECTORY,
    append,
    flush,
    idempotent_batch,
    open_topic_log,
    read_bytes,
    segment_file,
    values,
)

BATCHES = [[b"first", b"second"], [b"third"], [b"fourth", b"fifth", b"sixth"], [b"seventh", b"eighth"]]
SEQUENCES = [sum(map(len, BATCHES[:number])) for number in range(len(BATCHES) + 1)]
SENT = [idempotent_batch(sequence, *batch) for sequence, batch in zip(SEQUENCES, BATCHES, strict=False)]
LAST = len(BATCHES) - 1
LEADER_EPOCH = range(LENGTH_PREFIX_BYTES, LENGTH_PREFIX_BYTES + 4)
ONE_SEGMENT = TopicSettings()
INDEXED = TopicSettings(index_interval_bytes=0)
LAST_ALONE = TopicSettings(segment_bytes=sum(map(len, SENT[:LAST])), index_interval_bytes=0)

Files = dict[str, bytes]


def files_of(topic: TopicSettings, *, closed: bool) -> Files:
    """The files of a log of all batches that was killed before any flush, or closed."""
    disk = MemoryDisk()
    log = open_topic_log(disk, topic)
    for sent in SENT:
        append(log, sent)
    if closed:
        log.close()
    return {name: disk.read(f"{DIRECTORY}/{name}") for name in disk.list(DIRECTORY)}


def disk_of(files: Files) -> MemoryDisk:
    disk = MemoryDisk()
    for name, content in files.items():
        disk.write_atomic(f"{DIRECTORY}/{name}", content)
    return disk


def last_log_file(files: Files) -> str:
    return max(name for name in files if name.endswith(".log"))


def check_goes_on(disk: MemoryDisk, topic: TopicSettings, kept: int) -> None:
    """The log has so many of its batches, knows their producer, and takes the rest anew."""
    log = open_topic_log(disk, topic)
    assert values(log) == [value for batch in BATCHES[:kept] for value in batch]
    check_producer(log, kept)
    for number in range(kept, len(BATCHES)):
        info = append(log, SENT[number])
        assert (info.first_offset, info.duplicate) == (SEQUENCES[number], False)
    flush(log)
    log.abandon()
    assert values(open_topic_log(disk, topic)) == [value for batch in BATCHES for value in batch]


def check_producer(log: Log, kept: int) -> None:
    for number in range(kept):
        again = append(log, SENT[number])
        assert (again.first_offset, again.last_offset) == (SEQUENCES[number], SEQUENCES[number + 1] - 1)
        assert again.duplicate
    with pytest.raises(RequestError) as refused:
        append(log, idempotent_batch(SEQUENCES[kept] + 1, b"too early"))
    assert refused.value.kind is ErrorKind.OUT_OF_ORDER_SEQUENCE


@pytest.fixture(params=[ONE_SEGMENT, INDEXED, LAST_ALONE], ids=["one segment", "indexed", "last batch alone"])
def topic(request: pytest.FixtureRequest) -> TopicSettings:
    chosen: TopicSettings = request.param
    return chosen


@pytest.fixture(params=[False, True], ids=["killed", "closed"])
def files(request: pytest.FixtureRequest, topic: TopicSettings) -> Files:
    return files_of(topic, closed=request.param)


def test_log_tail_whole_is_kept(topic: TopicSettings, files: Files) -> None:
    check_goes_on(disk_of(files), topic, len(BATCHES))


def test_log_tail_cut_anywhere_loses_only_the_last_batch(topic: TopicSettings, files: Files) -> None:
    name = last_log_file(files)
    for missing in range(1, len(SENT[LAST]) + 1):
        check_goes_on(disk_of(files | {name: files[name][:-missing]}), topic, LAST)


def test_log_tail_of_zeros_is_cut(topic: TopicSettings, files: Files) -> None:
    """As file systems leave it that make a file longer before its content is on the disk."""
    name = last_log_file(files)
    for size in (1, 16, 60, 61, 4096):
        check_goes_on(disk_of(files | {name: files[name] + bytes(size)}), topic, len(BATCHES))


@pytest.mark.parametrize("bit", [0, 7])
def test_log_tail_flipped_anywhere_loses_only_the_last_batch(topic: TopicSettings, bit: int) -> None:
    files = files_of(topic, closed=False)
    name = last_log_file(files)
    size = len(SENT[LAST])
    for position in set(range(size)) - set(LEADER_EPOCH):
        damaged = bytearray(files[name])
        damaged[position - size] ^= 1 << bit
        check_goes_on(disk_of(files | {name: bytes(damaged)}), topic, LAST)


def test_log_tail_flipped_after_a_clean_stop_is_served_so_that_the_reader_finds_it(topic: TopicSettings) -> None:
    files = files_of(topic, closed=True)
    name = last_log_file(files)
    damaged = bytearray(files[name])
    damaged[-1] ^= 1
    log = open_topic_log(disk_of(files | {name: bytes(damaged)}), topic)
    assert not batch_is_intact(read_bytes(log, SEQUENCES[LAST]))
    check_producer(log, len(BATCHES))
    assert append(log, idempotent_batch(SEQUENCES[-1], b"ninth")).first_offset == SEQUENCES[-1]


def test_log_tail_flipped_leader_epoch_goes_unnoticed_and_harms_no_record(topic: TopicSettings, files: Files) -> None:
    """The checksum leaves the leader epoch out, so that a broker can set it: a flip there cannot be told from it."""
    name = last_log_file(files)
    for position in LEADER_EPOCH:
        damaged = bytearray(files[name])
        damaged[position - len(SENT[LAST])] ^= 1
        disk = disk_of(files | {name: bytes(damaged)})
        stored = read_bytes(open_topic_log(disk, topic), SEQUENCES[LAST])
        assert read_header(stored).leader_epoch == 1 << 8 * (LEADER_EPOCH[-1] - position)
        check_goes_on(disk_of(files | {name: bytes(damaged)}), topic, len(BATCHES))


def test_log_killed_and_damaged_earlier_is_cut_there() -> None:
    files = files_of(INDEXED, closed=False)
    name = last_log_file(files)
    for number in range(1, len(SENT)):
        damaged = bytearray(files[name])
        damaged[sum(map(len, SENT[:number])) + 65] ^= 1
        check_goes_on(disk_of(files | {name: bytes(damaged)}), INDEXED, number)


def cut_out_a_batch(content: bytes) -> bytes:
    return content[: len(SENT[0])] + content[len(SENT[0]) + len(SENT[1]) :]


def flip_the_end(content: bytes) -> bytes:
    return content[:-1] + bytes([content[-1] ^ 1])


HOLES: dict[str, Callable[[bytes], bytes]] = {
    "emptied": lambda content: content[:0],
    "cut": lambda content: content[:-1],
    "cut by a batch": lambda content: content[: -len(SENT[LAST])],
    "without a batch in the middle": cut_out_a_batch,
    "flipped": flip_the_end,
    "overwritten": lambda content: bytes(len(content)),
    "longer": lambda content: content + SENT[0],
}


SAME_SIZE = {"flipped", "overwritten"}
"""After a clean stop only sizes are looked at."""


@pytest.mark.parametrize(
    ("name", "closing"),
    [(name, closing) for name in HOLES for closing in (False, True) if not closing or name not in SAME_SIZE],
)
def test_log_hole_in_a_flushed_segment_is_a_failure_that_names_it(tmp_path: Path, name: str, closing: bool) -> None:
    topic = TopicSettings(segment_bytes=sum(map(len, SENT)), index_interval_bytes=200)
    disk = RealDisk(tmp_path, max_open_files=100)
    log = fill_three_segments(disk, topic)
    log.close() if closing else flush(log)
    middle = tmp_path / segment_file(8)
    before = HOLES[name](middle.read_bytes())
    middle.write_bytes(before)
    probe = LogProbe()
    with pytest.raises(StorageFailure, match=rf"{8:020d}\.log"):
        open_topic_log(disk, topic, probe)
    assert middle.read_bytes() == before
    assert (tmp_path / segment_file(16)).stat().st_size == sum(map(len, SENT))
    assert probe.truncated_bytes == 0


def fill_three_segments(disk: Disk, topic: TopicSettings) -> Log:
    log = open_topic_log(disk, topic)
    for turn in range(3):
        for sequence, batch in zip(SEQUENCES, BATCHES, strict=False):
            append(log, idempotent_batch(turn * SEQUENCES[-1] + sequence, *batch))
    assert [segment.base_offset for segment in log.segments.all] == [0, 8, 16]
    return log
