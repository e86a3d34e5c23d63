"""What recovery cuts off a log: every byte of it is kept aside, and told of."""

import pytest

from conveyor.kernel.errors import StorageFailure
from conveyor.log.log_probe import LogProbe
from conveyor.log.recovery.cut import KEPT_CUTS
from conveyor.records.batch import iterate_batches
from conveyor.testing import MemoryDisk
from tests.unit.log.logs import DIRECTORY, NOW_MS, PAIR, append, batch, open_topic_log, segment_file, values
from tests.unit.log.recovery.test_recovery import SIZE, damage, filled, numbers

CUT = f"{DIRECTORY}/cut-{NOW_MS}"


def cuts(disk: MemoryDisk) -> list[str]:
    return [name for name in disk.list(DIRECTORY) if name.startswith("cut-")]


def test_batches_after_a_flipped_bit_are_kept(caplog: pytest.LogCaptureFixture) -> None:
    disk = MemoryDisk()
    log = open_topic_log(disk)
    for value in (b"a", b"b", b"c"):
        append(log, batch(value))
    written = disk.read(segment_file(0))
    size = len(written) // 3
    damage(disk, segment_file(0), size + 65)
    damaged = disk.read(segment_file(0))
    assert values(open_topic_log(disk)) == [b"a"]
    kept = disk.read(f"{CUT}/{1:020d}.log")
    assert kept == damaged[size:]
    assert [header.base_offset for _, header in iterate_batches(kept)] == [1, 2]
    assert (
        f"offset=1 bytes={2 * size}: the end of the log was damaged or incomplete, and is kept as {CUT}/{1:020d}.log"
        in caplog.text
    )


def test_whole_segments_after_the_cut_are_kept(caplog: pytest.LogCaptureFixture) -> None:
    disk = MemoryDisk()
    filled(disk, 6)
    damage(disk, segment_file(2), SIZE + 65)
    last = disk.read(segment_file(4))
    probe = LogProbe()
    assert values(open_topic_log(disk, PAIR, probe)) == numbers(3)
    assert disk.list(CUT) == [f"{3:020d}.log", f"{4:020d}.log"]
    assert disk.read(f"{CUT}/{4:020d}.log") == last
    assert not disk.exists(segment_file(4))
    assert probe.truncated_bytes == SIZE + len(last)
    assert f"base_offset=4 bytes={len(last)}" in caplog.text


def test_only_the_newest_cuts_are_kept() -> None:
    disk = MemoryDisk()
    filled(disk, 1)
    for start in range(KEPT_CUTS + 2):
        disk.open(segment_file(0)).append([b"%d" % start])
        open_topic_log(disk, PAIR, now_ms=NOW_MS + start).abandon()
    assert cuts(disk) == [f"cut-{NOW_MS + start}" for start in range(2, KEPT_CUTS + 2)]
    assert disk.read(f"{DIRECTORY}/{cuts(disk)[-1]}/{1:020d}.log") == b"%d" % (KEPT_CUTS + 1)


def test_the_cut_of_this_start_is_kept_though_the_clock_was_set_back() -> None:
    disk = MemoryDisk()
    filled(disk, 1)
    for start in range(KEPT_CUTS + 2):
        disk.open(segment_file(0)).append([b"%d" % start])
        open_topic_log(disk, PAIR, now_ms=NOW_MS - start).abandon()
        assert disk.read(f"{DIRECTORY}/cut-{NOW_MS - start}/{1:020d}.log") == b"%d" % start
        assert len(cuts(disk)) == min(start + 1, KEPT_CUTS)


def test_start_with_nothing_to_cut_keeps_nothing() -> None:
    disk = MemoryDisk()
    filled(disk, 5)
    open_topic_log(disk, PAIR)
    assert cuts(disk) == []


def test_what_cannot_be_kept_is_not_cut() -> None:
    disk = MemoryDisk()
    filled(disk, 1)
    disk.open(segment_file(0)).append([b"torn"])
    disk.faults.fail("append")
    with pytest.raises(StorageFailure, match="append failed"):
        open_topic_log(disk, PAIR)
    assert disk.open(segment_file(0)).size == SIZE + 4
    disk.faults.heal()
    assert values(open_topic_log(disk, PAIR)) == numbers(1)
    assert disk.read(f"{CUT}/{1:020d}.log") == b"torn"
