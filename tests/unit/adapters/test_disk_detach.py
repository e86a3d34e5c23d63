"""A file that lost its name is still there for whoever holds it."""

from pathlib import Path

import pytest

from conveyor.adapters.disk import Descriptor, OpenFiles, RealDisk
from conveyor.kernel.errors import ReadLater
from conveyor.testing import MemoryDisk


def test_detached_file_is_read_after_its_name_is_given_to_another(tmp_path: Path) -> None:
    disk = RealDisk(tmp_path, max_open_files=1)
    old = disk.open("a", create=True)
    old.append([b"old"])
    old.sync()
    old.detach()
    disk.write_atomic("a", b"new!")
    others = [disk.open(name, create=True) for name in ("b", "c", "d")]
    assert old.read(0, 10) == b"old"
    assert disk.open("a", create=True).read(0, 10) == b"new!"
    assert len(others) == 3


def test_file_whose_name_is_gone_is_not_made_anew(tmp_path: Path) -> None:
    disk = RealDisk(tmp_path, max_open_files=100)
    file = disk.open("a", create=True)
    file.detach()
    disk.remove("a")
    assert file.read(0, 1) == b""
    assert not (tmp_path / "a").exists()


@pytest.mark.parametrize("kind", ["real", "memory"])
def test_released_file_is_read_while_it_is_open_and_never_opened_again(kind: str, tmp_path: Path) -> None:
    disk = RealDisk(tmp_path, max_open_files=100) if kind == "real" else MemoryDisk()
    file = disk.open("a", create=True)
    file.append([b"old"])
    file.release()
    disk.write_atomic("a", b"another's")
    assert file.read(0, 10) == b"old"
    file.close()
    for read in (file.read, file.read_cached):
        with pytest.raises(ReadLater, match="no longer belongs to this log"):
            read(0, 1)


def test_file_that_is_released_while_a_thread_opens_it_stays_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = RealDisk(tmp_path, max_open_files=100)
    file = disk.open("a", create=True)
    file.append([b"old"])
    file.close()

    def descriptor_of_another(self: OpenFiles, path: Path, flags: int, dir_fd: int | None = None) -> Descriptor:
        file.release()
        disk.write_atomic("a", b"another's")
        return descriptor(self, path, flags, dir_fd)

    descriptor = OpenFiles.descriptor
    monkeypatch.setattr(OpenFiles, "descriptor", descriptor_of_another)
    for _ in range(2):
        with pytest.raises(ReadLater, match="no longer belongs to this log"):
            file.read(0, 1)


def test_fenced_file_never_shows_what_is_appended_after_the_cut(tmp_path: Path) -> None:
    disk = RealDisk(tmp_path, max_open_files=1)
    old = disk.open("a", create=True)
    old.append([b"keptcut"])
    old.fence(4)
    new = disk.open("a")
    new.truncate(4)
    new.append([b"NEW"])
    disk.open("b", create=True)
    for read in (old.read, old.read_cached):
        assert bytes(read(1, 3)) == b"ept"
        with pytest.raises(ReadLater, match="truncated"):
            read(1, 4)
    assert new.read(0, 10) == b"keptNEW"
    disk.write_atomic("a", b"another's")
    assert old.read(0, 4) == b"kept"
