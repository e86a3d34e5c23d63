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


async def test_values_of_other_types_are_read_as_bytes_and_numbers(path: Path) -> None:
    """SQLite keeps whatever another program has put into a column."""
    await SqliteStore(path).close()
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("INSERT INTO nodes VALUES ('/a', 'text', 'many', 0), ('/b', 7, 2.5, 0)")
    store = SqliteStore(path)
    assert await store.tree("/") == {"/a": Versioned(b"text", 0), "/b": Versioned(b"7", 2)}
    assert await store.get("/b") == Versioned(b"7", 2)
    assert await store.commit(PutNode("/a", b""), PutNode("/b", b"", 2)) == (1, 3)
    await store.close()


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
