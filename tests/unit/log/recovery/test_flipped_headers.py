"""A file was shortened, or a bit flipped that no checksum covers: recovery serves no hole, and says what is missing."""

from unittest.mock import patch

import pytest

from conveyor.kernel.errors import StorageFailure
from conveyor.log.log import Log
from conveyor.log.log_parts import ExpectedLog
from conveyor.records.batch import LENGTH_PREFIX_BYTES, MAGIC_END, iterate_batches, placed_prefix, read_header
from conveyor.settings.tree import TopicSettings
from conveyor.testing import MemoryDisk
from conveyor.testing.memory_disk import MemoryFile
from tests.unit.log.logs import (
    DIRECTORY,
    NOW_MS,
    allow_gaps,
    append,
    batch,
    contents,
    flush,
    open_topic_log,
    segment_file,
)
from tests.unit.log.recovery.test_trimmed_segments import compacted, keyed_topic

COMPACTED = TopicSettings(cleanup_policy="compact")
EPOCH_BYTE = LENGTH_PREFIX_BYTES + 3
"""The last byte of the leader epoch: the checksum covers what follows the magic byte."""


def placed(offset: int) -> bytes:
    content = batch(b"%d" % offset)
    return bytes(placed_prefix(offset, read_header(content), 0)) + content[MAGIC_END:]


def with_gaps(*offsets: int, gap_offset: int) -> tuple[MemoryDisk, Log]:
    """A follower of a compacted log, whose one segment begins where offsets may be missing."""
    disk = MemoryDisk()
    log = open_topic_log(disk, COMPACTED)
    allow_gaps(log, gap_offset)
    for offset in offsets:
        log.copying.append(placed(offset), 0, NOW_MS)
    flush(log)
    return disk, log


def positions(disk: MemoryDisk, base: int = 0) -> list[int]:
    return [position for position, _ in iterate_batches(disk.read(segment_file(base)))]


@pytest.mark.parametrize("is_clean", [True, False], ids=["stopped", "killed"])
@pytest.mark.parametrize("left", [0, 1], ids=["empty", "a batch"])
def test_sealed_segment_of_another_size_is_a_hole(is_clean: bool, left: int) -> None:
    """Whatever is missing in a compacted segment would look like compacted records."""
    topic = keyed_topic("compact")
    disk, log = compacted(topic)
    second = next(segment for segment in log.segments.all[1:] if segment.sealed and segment.size)
    if is_clean:
        log.close()
    size = left * positions(disk, second.base_offset)[-1]
    disk.open(segment_file(second.base_offset)).truncate(size)
    disk = disk.process_crash()
    for _ in range(2):
        with pytest.raises(StorageFailure, match="had another size when it was sealed"):
            open_topic_log(disk, topic)


@pytest.mark.parametrize("damaged", [3, 5, 7], ids=["first dense", "middle", "last"])
@pytest.mark.parametrize("bit", [0, 4, 20, 40])
def test_flipped_base_offset_opens_no_gap_above_those_of_the_compaction(damaged: int, bit: int) -> None:
    disk, _ = with_gaps(0, 4, 8, 20, 21, 22, 23, 24, gap_offset=20)
    disk.flip(segment_file(0), positions(disk)[damaged] + 7 - bit // 8, bit % 8)
    log = open_topic_log(disk.process_crash(), COMPACTED)
    assert [offset for offset, _ in contents(log)] == [0, 4, 8, 20, 21, 22, 23, 24][:damaged]
    assert log.recovered.lacks_batches, "the batch was complete, and so others may have it"


def test_gap_that_ends_at_the_gap_offset_is_no_damage() -> None:
    disk, _ = with_gaps(0, 4, 20, 21, gap_offset=20)
    log = open_topic_log(disk.process_crash(), COMPACTED)
    assert [offset for offset, _ in contents(log)] == [0, 4, 20, 21]
    assert not log.recovered.lacks_batches


def test_flipped_leader_epoch_is_found() -> None:
    disk = MemoryDisk()
    log = open_topic_log(disk)
    for number in range(3):
        append(log, batch(b"%d" % number))
    disk.flip(segment_file(0), positions(disk)[1] + EPOCH_BYTE, 7)
    disk = disk.process_crash()
    for _ in range(2):
        with pytest.raises(StorageFailure, match="has records of leader epoch 128, and the newest is 3: a bit"):
            open_topic_log(disk, expected=ExpectedLog(leader_epoch=3))
    assert len(positions(disk)) == 3, "nothing is cut"


def test_search_for_a_batch_after_a_torn_one_reads_a_bounded_number_of_bytes() -> None:
    """The content of the torn batch says at each place that the next batch begins there, and is 250 kB long."""
    disk = MemoryDisk()
    log = open_topic_log(disk)
    header = placed_prefix(1, read_header(batch(bytes(250_000))), 0)
    append(log, batch(bytes(header) * (500_000 // len(header))))
    size = disk.open(segment_file(0)).size
    disk.open(segment_file(0)).truncate(size - 100)
    read_bytes = 0
    real = MemoryFile.read

    def read(file: MemoryFile, position: int, length: int) -> bytes:
        nonlocal read_bytes
        content = real(file, position, length)
        read_bytes += len(content)
        return content

    with patch.object(MemoryFile, "read", read):
        log = open_topic_log(disk.process_crash())
    assert log.log_end_offset == 0
    assert log.recovered.lacks_batches, "it is not known"
    assert read_bytes < 20 << 20


def test_copy_of_a_cut_that_does_not_fit_leaves_nothing() -> None:
    disk = MemoryDisk()
    log = open_topic_log(disk)
    for _ in range(4):
        append(log, batch(bytes(1 << 20)))
    disk.flip(segment_file(0), 200, 1)
    disk = disk.process_crash()
    disk.faults.free_bytes = 3 << 20
    for now_ms in (1, 2):
        with pytest.raises(StorageFailure):
            open_topic_log(disk, now_ms=now_ms)
        assert disk.list(f"{DIRECTORY}/cut-{now_ms:013d}") == []
    assert len(positions(disk)) == 4
