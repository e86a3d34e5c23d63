"""The disk of a gateway is empty, and stays so."""

from collections.abc import Callable

import pytest

from conveyor.adapters.no_disk import NoDisk
from conveyor.broker.partitions.disk_room import DiskRoom
from conveyor.kernel.errors import StorageFailure
from conveyor.kernel.ports import Disk
from conveyor.settings.tree import DiskSettings


def test_nothing_exists() -> None:
    disk: Disk = NoDisk()
    disk.remove("a")
    disk.remove_tree("logs")
    assert (disk.exists("a"), disk.list("logs")) == (False, [])


@pytest.mark.parametrize(
    "use",
    [
        lambda disk: disk.open("a", create=True),
        lambda disk: disk.read("a"),
        lambda disk: disk.write_atomic("a", b""),
        lambda disk: disk.rename("a", "b"),
        lambda disk: disk.sync_directory("logs"),
        lambda disk: disk.allocate("a", 1),
        lambda disk: disk.hold("logs"),
        lambda disk: disk.make_directory("logs"),
    ],
)
def test_nothing_can_be_stored(use: Callable[[Disk], object]) -> None:
    with pytest.raises(StorageFailure, match="a gateway stores nothing"):
        use(NoDisk())


def test_requests_are_never_refused_for_lack_of_space() -> None:
    room = DiskRoom(NoDisk(), DiskSettings(min_free_bytes=1 << 40))
    room.measure()
    assert not room.is_low
