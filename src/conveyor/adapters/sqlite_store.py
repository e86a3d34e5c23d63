"""The embedded metadata store: the tree of `MetadataStore` in one SQLite file. Every change is on disk when it returns.

One thread does all the work, so that changes keep their order and the event loop never waits for the disk.
"""

import asyncio
import contextlib
import sqlite3
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from conveyor.kernel.errors import DiskFull, StorageFailure
from conveyor.kernel.ports import ANY_VERSION, Versioned

Result = TypeVar("Result")

_SCHEMA = """
CREATE TABLE IF NOT EXISTS nodes (
    path TEXT PRIMARY KEY, value BLOB NOT NULL, version INTEGER NOT NULL, ephemeral INTEGER NOT NULL
) WITHOUT ROWID
"""
_NO_ROOM = (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR_SHMSIZE)


class SqliteStore:
    """See `conveyor.kernel.ports.MetadataStore`."""

    def __init__(self, path: Path) -> None:
        self._thread = ThreadPoolExecutor(1, "metadata")
        self._watches: dict[object, tuple[str, Callable[[str], None]]] = {}
        try:
            self._connection = _connect(path, "NORMAL")
        except DiskFull:
            self._connection = _connect(path, "EXCLUSIVE")

    async def get(self, path: str) -> Versioned | None:
        def work() -> Versioned | None:
            row = self._connection.execute("SELECT value, version FROM nodes WHERE path = ?", (path,)).fetchone()
            return Versioned(*row) if row else None

        return await self._run(work)

    async def children(self, path: str) -> list[str]:
        start = len(path.rstrip("/")) + 1
        return sorted({each[start:].partition("/")[0] for each in await self.tree(path)})

    async def tree(self, path: str) -> dict[str, Versioned]:
        def work() -> dict[str, Versioned]:
            prefix = path.rstrip("/") + "/"
            rows = self._connection.execute(
                "SELECT path, value, version FROM nodes WHERE path >= ? AND path < ?", (prefix, prefix[:-1] + "0")
            )
            return {name: Versioned(value, version) for name, value, version in rows}

        return await self._run(work)

    async def put(self, path: str, value: bytes, version: int = ANY_VERSION, *, ephemeral: bool = False) -> int | None:
        def work() -> int | None:
            row = self._connection.execute("SELECT version FROM nodes WHERE path = ?", (path,)).fetchone()
            current = row[0] if row else 0
            if version not in (ANY_VERSION, current):
                return None
            self._connection.execute(
                "INSERT OR REPLACE INTO nodes VALUES (?, ?, ?, ?)", (path, value, current + 1, ephemeral)
            )
            return int(current) + 1

        written = await self._run(work)
        if written is not None:
            self._changed(path)
        return written

    async def delete(self, path: str, version: int = ANY_VERSION) -> bool:
        def work() -> bool:
            row = self._connection.execute("SELECT version FROM nodes WHERE path = ?", (path,)).fetchone()
            if row is None or version not in (ANY_VERSION, row[0]):
                return False
            self._connection.execute(
                "DELETE FROM nodes WHERE path = ? OR (path >= ? AND path < ?)", (path, path + "/", path + "0")
            )
            return True

        deleted = await self._run(work)
        if deleted:
            self._changed(path)
        return deleted

    def watch(self, path: str, changed: Callable[[str], None]) -> Callable[[], None]:
        handle = object()
        self._watches[handle] = (path, changed)

        def end() -> None:
            self._watches.pop(handle, None)

        return end

    async def close(self) -> None:
        await self._run(self._connection.close)
        self._thread.shutdown()

    async def _run(self, work: Callable[[], Result]) -> Result:
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, work)
        except sqlite3.Error as error:
            raise _failure("metadata store", error) from error

    def _changed(self, path: str) -> None:
        for watched, changed in list(self._watches.values()):
            if path == watched or path.startswith(watched.rstrip("/") + "/"):
                changed(path)


def _connect(path: Path, locking_mode: str) -> sqlite3.Connection:
    """Raises StorageFailure: DiskFull if there is no room for the index of the write-ahead log.

    locking_mode: EXCLUSIVE keeps that index in memory, and other connections out: so a store can be read all the same.
    """
    with contextlib.ExitStack() as stack:
        try:
            connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
            stack.callback(connection.close)
            connection.execute(f"PRAGMA locking_mode={locking_mode}")
            connection.execute("PRAGMA journal_mode=WAL")
            connection.execute("PRAGMA synchronous=FULL")
            connection.execute(_SCHEMA)
            connection.execute("DELETE FROM nodes WHERE ephemeral = 1")
        except sqlite3.Error as error:
            raise _failure(str(path), error) from error
        stack.pop_all()
        return connection


def _failure(where: str, error: sqlite3.Error) -> StorageFailure:
    kind = DiskFull if getattr(error, "sqlite_errorcode", None) in _NO_ROOM else StorageFailure
    return kind(f"{where}: {error}")
