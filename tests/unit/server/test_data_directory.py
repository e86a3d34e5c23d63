"""The data directory belongs to one broker at a time."""

import errno
import os
import shutil
from pathlib import Path

import pytest

from conveyor.adapters.sqlite_tree import SqliteTree
from conveyor.kernel.errors import StartupError
from conveyor.server.data_directory import (
    CLUSTER_NAME,
    LOCK_NAME,
    METADATA_NAME,
    SHARED_METADATA_NAME,
    DataDirectory,
    holder_of,
)


def test_it_is_created_with_its_parents(tmp_path: Path) -> None:
    directory = DataDirectory(tmp_path / "a" / "b")
    assert directory.path.is_dir()
    directory.release()


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The directories that were synced since."""
    fsync, directories = os.fsync, []

    def note(descriptor: int) -> None:
        fsync(descriptor)
        directories.append(Path(f"/proc/self/fd/{descriptor}").readlink())

    monkeypatch.setattr(os, "fsync", note)
    return directories


def test_no_power_failure_removes_a_new_one_or_its_parents(tmp_path: Path, synced: list[Path]) -> None:
    DataDirectory(tmp_path / "a" / "b" / "c").release()
    assert {*synced} == {tmp_path, tmp_path / "a", tmp_path / "a" / "b"}


def test_one_whose_maker_may_have_synced_nothing_is_made_durable(tmp_path: Path, synced: list[Path]) -> None:
    (tmp_path / "volume" / "data").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "volume" / "data")
    DataDirectory(tmp_path / "link").release()
    assert synced == [tmp_path / "volume"]


@pytest.mark.parametrize("number", [errno.EACCES, errno.EINVAL])
def test_parent_that_cannot_be_synced_does_not_keep_a_broker_from_starting(
    tmp_path: Path, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", fail)
    DataDirectory(tmp_path / "data").release()


def test_parent_whose_sync_fails_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(StartupError, match=r"data is not writable \(Input/output error\)"):
        DataDirectory(tmp_path / "data")


@pytest.mark.parametrize("mask", [0o000, 0o022])
async def test_a_new_one_is_open_to_this_user_only(tmp_path: Path, mask: int, caplog: pytest.LogCaptureFixture) -> None:
    before = os.umask(mask)
    try:
        directory = DataDirectory(tmp_path / "a" / "b")
        directory.release()
        tree = SqliteTree(directory.check_embedded_metadata())
    finally:
        os.umask(before)
    assert mode(directory.path) == 0o700
    modes = {file.name: mode(file) for file in directory.path.glob(f"{METADATA_NAME}*")}
    await tree.close()
    assert len(modes) > 1, "the write-ahead log exists while the file is open"
    assert {*modes.values()} == {0o600}
    assert not caplog.records


@pytest.mark.parametrize("wider", [0o755, 0o750, 0o701])
def test_an_old_one_that_others_can_open_is_named(tmp_path: Path, wider: int, caplog: pytest.LogCaptureFixture) -> None:
    tmp_path.chmod(wider)
    DataDirectory(tmp_path).release()
    (record,) = caplog.records
    assert f"{tmp_path} is open to other users of this machine (mode {wider:04o})" in record.getMessage()
    assert mode(tmp_path) == wider


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


def test_a_second_broker_is_told_the_process_that_uses_it(tmp_path: Path) -> None:
    first = DataDirectory(tmp_path)
    with pytest.raises(StartupError, match=rf"in use by another broker \(process {os.getpid()}\): stop it, or choose"):
        DataDirectory(tmp_path)
    first.release()


def test_it_is_free_again_after_its_release(tmp_path: Path) -> None:
    DataDirectory(tmp_path).release()
    DataDirectory(tmp_path).release()


def test_a_refused_broker_keeps_the_process_id_of_the_owner(tmp_path: Path) -> None:
    (tmp_path / LOCK_NAME).write_text("a longer text from long ago")
    first = DataDirectory(tmp_path)
    for _ in range(2):
        with pytest.raises(StartupError, match=rf"\(process {os.getpid()}\)"):
            DataDirectory(tmp_path)
    first.release()


def test_a_file_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    with pytest.raises(StartupError, match="is a file: choose another with --data-dir"):
        DataDirectory(file)


def test_a_directory_that_is_not_writable_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StartupError, match=r"file/below is not writable \(Not a directory\): change its permissions"):
        DataDirectory(tmp_path / "file" / "below")


def test_directory_of_a_cluster_is_not_used_with_embedded_metadata_or_another_cluster(tmp_path: Path) -> None:
    directory = DataDirectory(tmp_path)
    directory.check_shared_metadata()
    (tmp_path / CLUSTER_NAME).touch()  # As after a crash of the first start.
    for _ in range(2):
        directory.join("the-cluster")
    with pytest.raises(StartupError, match="belongs to cluster the-cluster, and the metadata to cluster another"):
        directory.join("another")
    with pytest.raises(StartupError, match="whose metadata is in a ZooKeeper"):
        directory.check_embedded_metadata()
    directory.release()


def test_directory_with_embedded_metadata_is_not_used_with_another_store(tmp_path: Path) -> None:
    directory = DataDirectory(tmp_path)
    directory.check_embedded_metadata().touch()
    with pytest.raises(StartupError, match=r"has embedded metadata \(metadata.sqlite\)"):
        directory.check_shared_metadata()
    directory.release()


def test_directory_of_workers_is_not_used_by_one_broker(tmp_path: Path) -> None:
    directory = DataDirectory(tmp_path)
    assert directory.check_workers_metadata() == tmp_path / SHARED_METADATA_NAME
    (tmp_path / SHARED_METADATA_NAME).touch()
    with pytest.raises(StartupError, match=r"belongs to several workers.*: start with --workers, or choose another"):
        directory.check_embedded_metadata()
    with pytest.raises(StartupError, match="start with --workers and without --metadata, or choose another"):
        directory.check_shared_metadata()
    directory.release()


def test_directory_of_one_worker_is_not_used_by_one_broker(tmp_path: Path) -> None:
    (tmp_path / SHARED_METADATA_NAME).touch()
    worker = DataDirectory(tmp_path / "worker-1")
    worker.join("the-cluster")
    with pytest.raises(StartupError, match=rf"start them all with --workers and --data-dir {tmp_path}, or choose"):
        worker.check_embedded_metadata()
    worker.release()


@pytest.mark.parametrize(
    ("name", "owner"), [(METADATA_NAME, "a single broker"), (CLUSTER_NAME, "a broker of a cluster")]
)
def test_directory_of_one_broker_is_not_used_by_workers(tmp_path: Path, name: str, owner: str) -> None:
    (tmp_path / name).touch()
    directory = DataDirectory(tmp_path)
    with pytest.raises(StartupError, match=f"belongs to {owner}.*: start without --workers, or choose another"):
        directory.check_workers_metadata()
    directory.release()


def test_the_holder_of_a_directory_is_known_while_it_holds_it(tmp_path: Path) -> None:
    assert holder_of(tmp_path / "nothing") == ""
    directory = DataDirectory(tmp_path)
    assert holder_of(tmp_path) == str(os.getpid())
    directory.release()
    assert holder_of(tmp_path) == ""


def test_the_lock_of_a_copy_is_another_one(tmp_path: Path) -> None:
    directory = DataDirectory(tmp_path / "data")
    shutil.copytree(tmp_path / "data", tmp_path / "copy")
    first, copy = directory.lock_id("boot"), DataDirectory(tmp_path / "copy")
    assert len({first, copy.lock_id("boot"), directory.lock_id("another boot")}) == 3
    directory.release()
    copy.release()
    again = DataDirectory(tmp_path / "data")
    assert again.lock_id("boot") == first
    again.release()
