"""Recovery of batches that are larger than one read, and of those whose damaged size says so."""

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from unittest.mock import patch

import pytest

from conveyor.kernel.errors import StorageFailure
from conveyor.log.log import Log
from conveyor.log.log_probe import LogProbe
from conveyor.records.batch import HEADER_BYTES
from conveyor.settings.tree import TopicSettings
from conveyor.testing import MemoryDisk
from conveyor.testing.memory_disk import MemoryFile
from tests.unit.log.logs import append, batch, flush, open_topic_log, segment_file

PIECE_BYTES = 1 << 20
SEARCHED_BYTES = 1 << 24
TOP_BYTE_OF_SIZE = 8
"""Its lowest bit counts 16 MiB."""


@contextmanager
def lengths_of_reads() -> Iterator[list[int]]:
    """Yield the lengths of the reads of files meanwhile."""
    lengths: list[int] = []
    read = MemoryFile.read

    def note(file: MemoryFile, position: int, length: int) -> bytes:
        lengths.append(length)
        return read(file, position, length)

    with patch.object(MemoryFile, "read", note):
        yield lengths


def batch_of_size(size: int) -> bytes:
    shorter = size - 100
    made = batch(bytes(shorter + size - len(batch(bytes(shorter)))))
    assert len(made) == size
    return made


def filled(disk: MemoryDisk, topic: TopicSettings, *sizes: int) -> Log:
    log = open_topic_log(disk, topic)
    for size in sizes:
        append(log, batch_of_size(size))
    return log


SIZES = (500, PIECE_BYTES, PIECE_BYTES + 1, 500, 2 * PIECE_BYTES, PIECE_BYTES - 1, 3 * PIECE_BYTES - 1, 500)
STARTS = [sum(SIZES[:number]) for number in range(len(SIZES) + 1)]


def test_large_batches_are_checked_in_pieces() -> None:
    disk, probe = MemoryDisk(), LogProbe()
    filled(disk, TopicSettings(), *SIZES)
    disk = disk.process_crash()
    with lengths_of_reads() as lengths:
        log = open_topic_log(disk, probe=probe)
    assert (log.log_end_offset, probe.recovered_segments, probe.truncated_bytes) == (len(SIZES), 1, 0)
    assert max(lengths) == PIECE_BYTES


@pytest.mark.parametrize("place", ["header", "start", "end"])
def test_damage_in_any_piece_of_a_large_batch_is_found(place: str) -> None:
    for number, (start, end) in enumerate(pairwise(STARTS)):
        disk = MemoryDisk()
        filled(disk, TopicSettings(), *SIZES)
        positions = {"header": start + HEADER_BYTES - 1, "start": start + HEADER_BYTES, "end": end - 1}
        disk.flip(segment_file(0), positions[place], 3)
        log = open_topic_log(disk.process_crash())
        assert log.log_end_offset == number
        assert log.recovered.lacks_batches == (number < len(SIZES) - 1), "an intact batch follows all but the last"


@pytest.mark.parametrize("is_damaged", [False, True], ids=["sound", "damaged"])
def test_end_of_a_sealed_segment_is_checked_in_pieces(is_damaged: bool) -> None:
    topic, probe = TopicSettings(segment_bytes=3 * PIECE_BYTES), LogProbe()
    disk = MemoryDisk()
    flush(filled(disk, topic, 3 * PIECE_BYTES, 500))
    if is_damaged:
        disk.flip(segment_file(0), 3 * PIECE_BYTES - 1, 0)
    disk = disk.process_crash()
    with lengths_of_reads() as lengths:
        if is_damaged:
            with pytest.raises(StorageFailure, match="is damaged at 0"):
                open_topic_log(disk, topic, probe)
        else:
            open_topic_log(disk, topic, probe)
            assert probe.recovered_segments == 1, "only the second was not sealed"
    assert max(lengths) == PIECE_BYTES


def test_damaged_size_does_not_decide_how_much_is_read_at_once() -> None:
    size = PIECE_BYTES - 1
    disk = MemoryDisk()
    filled(disk, TopicSettings(), *[size] * 20)
    disk.flip(segment_file(0), size + TOP_BYTE_OF_SIZE, 0)
    disk = disk.process_crash()
    with lengths_of_reads() as lengths:
        opened = open_topic_log(disk)
    assert (opened.log_end_offset, opened.recovered.lacks_batches) == (1, True)
    assert max(lengths) == SEARCHED_BYTES
