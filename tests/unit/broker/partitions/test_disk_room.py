"""The required free space, the reserve, and when producers are refused."""

import pytest

from conveyor.broker.partitions.disk_room import RESERVE, DiskRoom
from conveyor.kernel.errors import DiskFull
from conveyor.settings.tree import DiskSettings
from conveyor.testing import MemoryDisk

MIB = 1 << 20
RESERVED = 8 * MIB


def room_of(disk: MemoryDisk, min_free_bytes: int = 10 * MIB) -> DiskRoom:
    room = DiskRoom(disk, DiskSettings(min_free_bytes=min_free_bytes))
    room.measure()
    return room


def disk_of(size_bytes: int) -> MemoryDisk:
    return MemoryDisk(free_bytes=size_bytes)


def leave(disk: MemoryDisk, free_bytes: int) -> None:
    """Let another program occupy all but `free_bytes` of the disk."""
    disk.faults.free_bytes = free_bytes


def test_a_disk_with_room_has_a_reserve() -> None:
    disk = disk_of(1000 * MIB)
    room = room_of(disk)
    assert (room.is_low, disk.exists(RESERVE)) == (False, True)
    assert room.usable_bytes == 1000 * MIB - RESERVED


@pytest.mark.parametrize(
    ("size_bytes", "min_free_bytes"), [(100_000 * MIB, 100 * MIB), (1000 * MIB, 50 * MIB), (8 * MIB, 8 * MIB // 20)]
)
def test_by_default_a_twentieth_of_a_disk_is_kept_free_and_at_most_100_mib(
    size_bytes: int, min_free_bytes: int
) -> None:
    assert room_of(disk_of(size_bytes), -1).min_free_bytes == min_free_bytes


def test_the_room_is_low_below_the_limit() -> None:
    disk = disk_of(1000 * MIB)
    room = room_of(disk)
    leave(disk, 10 * MIB - 1)
    room.measure()
    assert (room.is_low, disk.exists(RESERVE)) == (True, True)
    assert "has 10485759 bytes free, and accepts records from 10485760" in room.explanation
    leave(disk, 10 * MIB)
    room.measure()
    assert [room.is_low] == [False]


def test_the_reserve_goes_when_less_than_it_is_free_and_comes_back_above_the_limit() -> None:
    disk = disk_of(1000 * MIB)
    room = room_of(disk)
    leave(disk, RESERVED - 1)
    room.measure()
    assert (room.is_low, disk.exists(RESERVE), room.usable_bytes) == (True, False, 2 * RESERVED - 1)
    leave(disk, 10 * MIB + RESERVED - 1)
    room.measure()
    assert (room.is_low, disk.exists(RESERVE)) == (True, False)
    leave(disk, 10 * MIB + RESERVED)
    room.measure()
    assert (room.is_low, disk.exists(RESERVE)) == (False, True)


def test_a_disk_that_is_full_from_the_beginning_has_no_reserve() -> None:
    disk = disk_of(1000 * MIB)
    leave(disk, 0)
    room = room_of(disk)
    assert (room.is_low, disk.exists(RESERVE), room.usable_bytes) == (True, False, 0)


def test_after_a_write_has_found_no_room_more_is_waited_for_than_there_was() -> None:
    """A batch larger than the free space would fail repeatedly."""
    disk = disk_of(1000 * MIB)
    room = room_of(disk)
    leave(disk, 11 * MIB)
    room.found_full()
    states = []
    for free_bytes in (11 * MIB, 20 * MIB, 21 * MIB, 11 * MIB):
        leave(disk, free_bytes)
        room.measure()
        states.append(room.is_low)
    assert states == [True, True, False, False]


def test_what_a_disk_says_of_its_room_may_be_tried_again() -> None:
    """A quota of the system may have been exhausted."""
    disk = disk_of(1000 * MIB)
    room = room_of(disk)
    room.found_full()
    room.measure()
    states = [room.is_low]
    room.forget_full()
    room.measure()
    assert [*states, room.is_low] == [True, False]


def test_a_disk_that_does_not_say_how_much_room_it_has_is_full_when_a_write_finds_it_so() -> None:
    room = room_of(MemoryDisk())
    assert room.usable_bytes is None
    states = [room.is_low]
    room.found_full()
    states.append(room.is_low)
    assert "is full" in room.explanation
    room.measure()
    assert [*states, room.is_low] == [False, True, False]


class Racing(MemoryDisk):
    """Another program takes the space first."""

    def allocate(self, path: str, size: int) -> None:
        raise DiskFull(f"{path}: No space left on device")


def test_a_disk_without_room_for_a_reserve_is_low() -> None:
    disk = Racing(free_bytes=1000 * MIB)
    assert room_of(disk).is_low
