"""The embedded metadata store's file: what is on disk, and what is there when it cannot be read or written."""

import errno
import os
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from conveyor.adapters.sqlite_store import SqliteStore
from conveyor.kernel.errors import DiskFull, StorageFailure
from conveyor.kernel.ports import DeleteNode, PutNode, Versioned


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "metadata.sqlite"


async def test_change_is_on_disk_when_it_returns(path: Path) -> None:
    """Another store on the same file shows it, though the first was never closed."""
    first = SqliteStore(path)
    await first.commit(PutNode("/a", b"one"))
    second = SqliteStore(path)
    try:
        assert await second.get("/a") == Versioned(b"one", 1)
    finally:
        await first.close()
        await second.close()


def test_full_disk_has_no_room_for_a_new_file(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "open", full)
    with pytest.raises(DiskFull, match=r"metadata\.sqlite: No space left on device"):
        SqliteStore(path)
    assert not path.exists()


async def test_file_of_an_earlier_version_opens(path: Path) -> None:
    """The table is as the first release has made it."""
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute(
            "CREATE TABLE IF NOT EXISTS nodes (path TEXT PRIMARY KEY, value BLOB NOT NULL, version INTEGER NOT NULL, "
            "ephemeral INTEGER NOT NULL) WITHOUT ROWID"
        )
        rows = [("/topics/t", b"{}", 3, 0), ("/cluster/id", b"c", 1, 0), ("/brokers/1", b"", 1, 1)]
        connection.executemany("INSERT INTO nodes VALUES (?, ?, ?, ?)", rows)
    store = SqliteStore(path)
    assert await store.tree("/") == {"/cluster/id": Versioned(b"c", 1), "/topics/t": Versioned(b"{}", 3)}
    assert await store.commit(PutNode("/topics/t", b"", 3), DeleteNode("/cluster/id", 1)) == (4, 0)
    await store.close()


@pytest.mark.parametrize(
    "change",
    ["path = '/b'", "path = 7", "value = x'6f6e64'", "version = 2", "version = 'many'", "ephemeral = 1",
     "checksum = checksum + 1"],
)  # fmt: skip
async def test_node_that_is_not_as_it_was_written_is_refused(path: Path, change: str) -> None:
    """SQLite keeps whatever a failing disk, or another program, has put into a column."""
    store = SqliteStore(path)
    await store.commit(PutNode("/a", b"one"))
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(f"UPDATE nodes SET {change} WHERE path = '/a'")
    if "path" not in change:
        with pytest.raises(StorageFailure, match="node /a is damaged"):
            await store.get("/a")
    await store.close()
    for _ in range(2):
        with pytest.raises(StorageFailure, match=r"node .* is damaged, its checksum does not match: restore a copy"):
            SqliteStore(path)


async def test_older_copy_is_refused(path: Path, tmp_path: Path) -> None:
    store = SqliteStore(path)
    await store.commit(PutNode("/a", b"one"))
    await store.close()
    older = shutil.copy(path, tmp_path / "copy")
    store = SqliteStore(path)
    await store.commit(PutNode("/a", b"two"))
    await store.close()
    newer = shutil.copy(path, tmp_path / "last")
    shutil.copy(older, path)
    with pytest.raises(StorageFailure, match=r"metadata\.sqlite shows 1 commits and has had 2: it is an older copy"):
        SqliteStore(path)
    shutil.copy(newer, path)
    store = SqliteStore(path)
    assert await store.get("/a") == Versioned(b"two", 2)
    await store.close()


async def test_missing_file_is_refused_unless_its_mark_is_removed(path: Path, tmp_path: Path) -> None:
    store = SqliteStore(path)
    await store.commit(PutNode("/a", b"one"))
    await store.close()
    shutil.move(path, tmp_path / "lost")
    for _ in range(2):
        with pytest.raises(StorageFailure, match=r"remove .*metadata\.commits to start without the later commits"):
            SqliteStore(path)
    shutil.move(path.with_suffix(".commits"), tmp_path / "removed")
    store = SqliteStore(path)
    assert await store.get("/a") is None
    await store.close()


async def test_commits_behind_a_damaged_frame_are_missed(path: Path, tmp_path: Path) -> None:
    """SQLite ends its write-ahead log there, as if a power failure had interrupted the write."""
    store, killed = SqliteStore(path), tmp_path / "killed" / "metadata.sqlite"
    for number in range(3):
        await store.commit(PutNode(f"/{number}", b"."))
    killed.parent.mkdir()
    for name in (path.name, f"{path.name}-wal", "metadata.commits"):
        shutil.copy(path.with_name(name), killed.with_name(name))
    await store.close()
    log = killed.with_name(f"{path.name}-wal")
    content = bytearray(log.read_bytes())
    content[-100] ^= 1
    log.write_bytes(content)
    with pytest.raises(StorageFailure, match="shows 2 commits and has had 3"):
        SqliteStore(killed)


@pytest.mark.parametrize("position", [0, 19, 22, 28])
async def test_damaged_mark_is_refused_until_it_is_removed(path: Path, position: int) -> None:
    store = SqliteStore(path)
    await store.commit(PutNode("/a", b"one"))
    await store.close()
    mark = path.with_suffix(".commits")
    content = bytearray(mark.read_bytes())
    content[position] ^= 1
    mark.write_bytes(content)
    with pytest.raises(StorageFailure, match=r"metadata\.commits is damaged: restore .* or, .* remove the damaged"):
        SqliteStore(path)
    mark.unlink()
    store = SqliteStore(path)
    assert (await store.get("/a")) is not None
    await store.close()
    assert mark.exists()


async def test_mark_that_is_older_is_no_hindrance(path: Path) -> None:
    """A power failure may leave it so."""
    store, mark = SqliteStore(path), path.with_suffix(".commits")
    before = mark.read_bytes()
    await store.commit(PutNode("/a", b"one"))
    assert mark.read_bytes() != before
    await store.close()
    mark.write_bytes(before)
    await SqliteStore(path).close()


async def test_full_disk_refuses_changes_and_lets_them_be_read(path: Path) -> None:
    store = SqliteStore(path)
    await store.commit(PutNode("/a", b"one"))
    pages = store.shared._connection.execute("PRAGMA page_count").fetchone()[0]
    store.shared._connection.execute(f"PRAGMA max_page_count={pages}")
    with pytest.raises(DiskFull):
        await store.commit(PutNode("/a", b"two"), PutNode("/large", bytes(1 << 20)))
    assert await store.tree("/") == {"/a": Versioned(b"one", 1)}
    store.shared._connection.execute(f"PRAGMA max_page_count={pages + 1000}")
    assert await store.commit(PutNode("/large", bytes(1 << 20))) == (1,)
    await store.close()


def test_file_that_is_no_database_is_a_failure_that_names_it(path: Path) -> None:
    path.write_bytes(b"this is no database, and long enough to be seen as none" * 20)
    with pytest.raises(StorageFailure, match=r"metadata\.sqlite: file is not a database"):
        SqliteStore(path)


async def test_table_of_another_program_is_a_failure(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("CREATE TABLE nodes (name TEXT)")
    with pytest.raises(StorageFailure, match=r"metadata\.sqlite: no such column"):
        SqliteStore(path)


def test_store_in_no_directory_is_a_failure(tmp_path: Path) -> None:
    with pytest.raises(StorageFailure, match="No such file or directory"):
        SqliteStore(tmp_path / "nowhere" / "metadata.sqlite")


async def test_start_after_a_kill_reads_the_write_ahead_log_from_the_disk(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If a sync of it has failed, only memory may have what it shows, and no later commit must follow that."""
    running, killed = SqliteStore(path), tmp_path / "killed.sqlite"
    dropped: list[bytes] = []
    await running.commit(PutNode("/a", b"one"))
    for suffix in ("", "-wal"):
        shutil.copy(f"{path}{suffix}", f"{killed}{suffix}")
    await running.close()

    def drop_pages(descriptor: int, *_: int) -> None:
        dropped.append(os.pread(descriptor, 1 << 20, 0))

    monkeypatch.setattr(os, "posix_fadvise", drop_pages)
    store = SqliteStore(killed)
    assert b"/a" in dropped[0]
    assert await store.get("/a") == Versioned(b"one", 1)
    await store.close()
