"""Going through a log batch by batch."""

from functools import partial

import pytest

from conveyor.kernel.errors import LogDamaged
from conveyor.kernel.ports import FileSlice
from conveyor.log.batch_reading import batches_between, batches_in
from conveyor.log.compaction.key_compaction import compact
from conveyor.log.segments.files import SegmentFiles
from conveyor.records.batch import BatchHeader
from conveyor.records.record import encode_batch
from conveyor.settings.tree import TopicSettings
from conveyor.testing import MemoryDisk
from tests.unit.log.logs import DIRECTORY, NOW_MS, all_below, append, batch, contents, flush, open_topic_log


def offsets(offset: int, limit: int, piece_bytes: int = 1, segment_bytes: int = 300) -> list[int]:
    log = open_topic_log(MemoryDisk(), TopicSettings(segment_bytes=segment_bytes))
    for _ in range(10):
        append(log, batch(b"a", b"b"))
    return [found.header.base_offset for found in batches_between(log, offset, limit, piece_bytes)]


@pytest.mark.parametrize("piece_bytes", [1, 200, 1 << 20])
def test_every_batch_of_every_segment_comes_once(piece_bytes: int) -> None:
    assert offsets(0, 20, piece_bytes) == list(range(0, 20, 2))


def test_reading_begins_with_the_batch_that_holds_an_offset_and_ends_at_the_limit() -> None:
    assert offsets(7, 12) == [6, 8, 10]
    assert offsets(20, 20) == []


def test_a_batch_comes_with_its_bytes_and_its_place() -> None:
    log = open_topic_log(MemoryDisk())
    append(log, batch(b"a"))
    append(log, batch(b"b", b"c"))
    piece = log.read(0, 1 << 20, 3, at_least_one=True)
    assert piece is not None
    _, second = batches_in(piece, 0)
    assert second.header.records_count == 2
    assert second.place.file.read(second.place.position, second.place.length) == second.content
    assert len(second.content) == second.header.size


def test_bytes_that_have_changed_on_the_disk_are_found() -> None:
    disk = MemoryDisk()
    log = open_topic_log(disk)
    append(log, batch(b"first"))
    append(log, batch(b"second"))
    flush(log)
    disk.open(f"{DIRECTORY}/{0:020}.log").written[-1] ^= 1
    found = batches_between(log, 0, 2)
    assert next(found).header.base_offset == 0
    with pytest.raises(LogDamaged, match="the batch at offset 1 is damaged"):
        next(found)


@pytest.mark.parametrize("piece_bytes", [400, 600])
def test_a_thread_that_reads_misses_nothing_when_compacted_segments_are_swapped_in(
    piece_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log changes while the thread finds out where its next read begins, which is elsewhere in the new segment."""
    log = open_topic_log(
        disk := MemoryDisk(), TopicSettings(cleanup_policy="compact", segment_bytes=1_000, min_cleanable_dirty_ratio=0)
    )
    for number in range(60):
        append(log, encode_batch([(NOW_MS, b"%d" % number if number % 2 else b"hot", b"%d" % number, ())]))
    flush(log)
    plan = log.compaction.plan(all_below(log.segments.all[-1].base_offset), NOW_MS, 100)
    assert plan is not None
    result = compact(disk, plan)
    job = log.compaction.begin_swap(result)
    assert job is not None
    swaps = [partial(log.compaction.complete_swap, result, job.run())]

    def header_during_a_swap(files: SegmentFiles, position: int) -> BatchHeader:
        while swaps:
            swaps.pop()()
        return plain_header_at(files, position)

    plain_header_at = SegmentFiles.header_at
    monkeypatch.setattr(SegmentFiles, "header_at", header_during_a_swap)
    found = contents(log, max_bytes=piece_bytes)
    assert not swaps
    assert set(contents(log)) <= set(found)


@pytest.mark.timeout(20)
def test_a_batch_whose_length_is_damaged_ends_the_reading() -> None:
    log = open_topic_log(disk := MemoryDisk())
    for _ in range(3):
        append(log, batch(b"a"))
    disk.flip(f"{DIRECTORY}/{0:020}.log", len(batch(b"a")) + 9, 1)
    with pytest.raises(LogDamaged, match="no batch for offset 1"):
        list(batches_between(log, 0, 3))


def copy_of(piece: FileSlice) -> FileSlice:
    file = MemoryDisk().open("log", create=True)
    file.append([piece.file.read(piece.position, piece.length)])
    return FileSlice(file, 0, piece.length)


@pytest.mark.parametrize("position", range(8, 12), ids="length byte {}".format)
@pytest.mark.parametrize("bit", range(8))
def test_slice_is_read_to_its_end_or_damaged(position: int, bit: int) -> None:
    """The length of its second batch has another bit."""
    log = open_topic_log(MemoryDisk())
    for value in (b"a", b"b", bytes(1_000), b"d"):
        append(log, batch(value))
    whole = log.read(0, 1 << 20, 4, at_least_one=True)
    assert whole is not None
    piece = copy_of(whole)
    assert [found.header.base_offset for found in batches_in(piece, 0)] == [0, 1, 2, 3]
    piece.file.written[len(batch(b"a")) + position] ^= 1 << bit  # type: ignore[attr-defined]
    found: list[int] = []
    with pytest.raises(LogDamaged):
        found += (stored.header.base_offset for stored in batches_in(piece, 0))
    assert found in ([], [0], [0, 1])


def test_slice_of_a_file_that_has_become_shorter_is_damaged() -> None:
    log = open_topic_log(MemoryDisk())
    for _ in range(3):
        append(log, batch(b"a"))
    piece = log.read(0, 1 << 20, 3, at_least_one=True)
    assert piece is not None
    for kept_bytes in (0, 10, len(batch(b"a")), piece.length - 1):
        shorter = copy_of(piece)
        shorter.file.truncate(kept_bytes)
        with pytest.raises(LogDamaged):
            list(batches_in(shorter, 0))


def test_slice_whose_batches_do_not_follow_each_other_is_damaged() -> None:
    log = open_topic_log(MemoryDisk())
    for _ in range(2):
        append(log, batch(b"a", b"b"))
    piece = log.read(0, 1 << 20, 4, at_least_one=True)
    assert piece is not None
    assert len(list(batches_in(piece, 1))) == 2
    with pytest.raises(LogDamaged, match="for offset 2"):
        list(batches_in(piece, 2))
    piece.file.written[len(batch(b"a", b"b")) + 7] ^= 3  # type: ignore[attr-defined]
    with pytest.raises(LogDamaged, match="for offset 2"):
        list(batches_in(piece, 0))
