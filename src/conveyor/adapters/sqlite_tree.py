"""The tree of `MetadataStore` in one SQLite file, and the sessions of its clients in this process.

Every change is durable when its call returns. One thread does all the work, so changes keep their order and the event
loop never waits for the disk. The thread also hands watches to the loop in that order. A watch that a read has set
fires for each later change, and for no earlier one, and it fires before any reader sees the change.

An ephemeral node has the number of its session; every other node has 0. No session outlives the process that has opened
the file, so opening it deletes the ephemeral nodes of all earlier sessions.

SQLite believes the bytes that it finds. So each node has a checksum, which the opening of the file compares, and every
read, and the number of commits is compared with that beside the file when it is opened; see `commit_mark`.
"""

import asyncio
import contextlib
import errno
import os
import sqlite3
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path
from typing import TypeVar

import msgspec
from crc32c import crc32c

from conveyor.adapters.commit_mark import CommitMark
from conveyor.adapters.disk import RealDisk
from conveyor.kernel.errors import DiskFull, StorageFailure
from conveyor.kernel.ports import ANY_VERSION, CheckNode, PutNode, StoreOperation, Versioned
from conveyor.kernel.store_paths import below_an_ephemeral, parents
from conveyor.kernel.store_watches import StoreWatches, Watch

Result = TypeVar("Result")

_SCHEMA = """
CREATE TABLE IF NOT EXISTS nodes (
    path TEXT PRIMARY KEY, value BLOB NOT NULL, version INTEGER NOT NULL, ephemeral INTEGER NOT NULL,
    checksum INTEGER NOT NULL
) WITHOUT ROWID
"""
_COMMITS = "CREATE TABLE IF NOT EXISTS commits (id INTEGER PRIMARY KEY, count INTEGER NOT NULL)"
_HAS_CHECKSUMS = "SELECT count(*) FROM pragma_table_info('nodes') WHERE name = 'checksum'"
_COUNT = "SELECT CAST(coalesce(max(count), 0) AS INTEGER) FROM commits"
_COUNT_ONE = "INSERT INTO commits VALUES (0, 1) ON CONFLICT DO UPDATE SET count = count + 1 RETURNING count"
_ALL = "SELECT CAST(path AS TEXT), CAST(value AS BLOB), CAST(version AS INTEGER), ephemeral, checksum FROM nodes"
_NODE = f"{_ALL} WHERE path = ?"
_NODES = f"{_ALL} WHERE path >= ? AND path < ?"
_PATHS = "SELECT path FROM nodes WHERE path >= ? AND path < ?"
_IS_EPHEMERAL = "SELECT CAST(ephemeral AS INTEGER) FROM nodes WHERE path = ?"
_EPHEMERAL_PATHS = "SELECT path FROM nodes WHERE ephemeral = ?"
_CURRENT = "SELECT CAST(version AS INTEGER), CAST(ephemeral AS INTEGER) FROM nodes WHERE path = ?"
"""SQLite checks no column types; the casts convert any stored value to bytes or a number."""

_NO_ROOM = (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR_SHMSIZE)
_LASTING = (
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_CORRUPT,
    sqlite3.SQLITE_NOTADB,
    sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_READONLY,
)
"""Failures of the file itself. Other failures concern one call, such as a lock that another program holds."""
_PRIMARY_CODE = 0xFF


class NodeDamaged(StorageFailure):
    """The file has another node than was written."""


class SqliteTree:
    """See the module's docstring. Its sessions are `SqliteSession`.

    failed: called on the event loop when the file itself fails; the call that met the failure raises it, too.
    Raises StorageFailure if the file cannot be used.
    """

    def __init__(self, path: Path, failed: Callable[[StorageFailure], None] = lambda _: None) -> None:
        self._thread = ThreadPoolExecutor(1, "metadata")
        self._failed = failed
        self._sessions = count(1)
        self._watches: dict[int, StoreWatches] = {}
        try:
            self._connection, self._mark = _connect(path, "NORMAL")
        except DiskFull:
            self._connection, self._mark = _connect(path, "EXCLUSIVE")

    def begin_session(self) -> int:
        """Return the number of a new session."""
        session = next(self._sessions)
        self._watches[session] = StoreWatches()
        return session

    async def get(self, session: int, path: str, changed: Watch | None) -> Versioned | None:
        loop = asyncio.get_running_loop()

        def work() -> Versioned | None:
            row = self._connection.execute(_NODE, (path,)).fetchone()
            loop.call_soon_threadsafe(self._watch_node, session, path, changed)
            return _intact(*row) if row else None

        return await self._run(work)

    async def children(self, session: int, path: str, changed: Watch | None) -> list[str]:
        loop = asyncio.get_running_loop()

        def work() -> list[str]:
            start, last = _range_below(path)
            rows = self._connection.execute(_PATHS, (start, last))
            names = sorted({child_path[len(start) :].partition("/")[0] for (child_path,) in rows})
            loop.call_soon_threadsafe(self._watch_children, session, path, changed)
            return names

        return await self._run(work)

    async def tree(self, path: str) -> dict[str, Versioned]:
        def work() -> dict[str, Versioned]:
            rows = self._connection.execute(_NODES, _range_below(path))
            return {row[0]: _intact(*row) for row in rows}

        return await self._run(work)

    async def commit(self, session: int, operations: Sequence[StoreOperation]) -> tuple[int, ...] | None:
        return await self._transact(lambda: self._carry_out_all(session, operations))

    async def end_session(self, session: int) -> None:
        """Delete the ephemeral nodes of a session, and its watches."""
        self._watches.pop(session, None)

        def delete() -> _Committed:
            committed = _Committed()
            for (path,) in self._connection.execute(_EPHEMERAL_PATHS, (session,)).fetchall():
                self._delete(path, committed)
            return committed

        await self._transact(delete)

    async def close(self) -> None:
        await self._run(self._connection.close)
        self._mark.close()
        self._thread.shutdown()
        self._watches.clear()

    async def _run(self, work: Callable[[], Result]) -> Result:
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, work)
        except sqlite3.Error as error:
            failure = _failure("metadata store", error)
            if _is_lasting(error):
                self._failed(failure)
            raise failure from error
        except NodeDamaged as failure:
            self._failed(failure)
            raise

    async def _transact(self, change: "Callable[[], _Committed | None]") -> tuple[int, ...] | None:
        loop = asyncio.get_running_loop()

        def work() -> tuple[int, ...] | None:
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                committed = change()
                count = 0 if committed is None else self._connection.execute(_COUNT_ONE).fetchone()[0]
                self._connection.execute("ROLLBACK" if committed is None else "COMMIT")
            except BaseException:
                with contextlib.suppress(sqlite3.Error):  # SQLite has rolled back by itself after some failures.
                    self._connection.execute("ROLLBACK")
                raise
            if committed is None:
                return None
            loop.call_soon_threadsafe(self._fire, committed)
            self._mark.write(count)
            return tuple(committed.versions)

        return await self._run(work)

    def _watch_node(self, session: int, path: str, changed: Watch | None) -> None:
        if session in self._watches:
            self._watches[session].add_to_node(path, changed)

    def _watch_children(self, session: int, path: str, changed: Watch | None) -> None:
        if session in self._watches:
            self._watches[session].add_to_children(path, changed)

    def _fire(self, committed: "_Committed") -> None:
        for watches in list(self._watches.values()):
            watches.fire(committed.changed, committed.created_or_deleted)

    def _carry_out_all(self, session: int, operations: Sequence[StoreOperation]) -> "_Committed | None":
        committed = _Committed()
        for operation in operations:
            current, owner = self._connection.execute(_CURRENT, (operation.path,)).fetchone() or (0, 0)
            if operation.version not in (ANY_VERSION, current):
                return None
            if isinstance(operation, PutNode):
                if not current:
                    owner = session if operation.ephemeral else 0
                self._put(owner, operation, current, committed)
            else:
                committed.versions.append(0)
                if not isinstance(operation, CheckNode):
                    self._delete(operation.path, committed)
        return committed

    def _put(self, owner: int, operation: PutNode, current: int, committed: "_Committed") -> None:
        """owner: the session of an ephemeral node."""
        path, value = operation.path, operation.value
        if not current:
            self._create_parents(path, committed)
            committed.created_or_deleted.append(path)
        self._write(path, value, current + 1, owner)
        committed.versions.append(current + 1)
        committed.changed.append(path)

    def _create_parents(self, path: str, committed: "_Committed") -> None:
        for parent in parents(path):
            found = self._connection.execute(_IS_EPHEMERAL, (parent,)).fetchone()
            if found is None:
                self._write(parent, b"", 1, 0)
                committed.changed.append(parent)
                committed.created_or_deleted.append(parent)
            elif found[0]:
                raise below_an_ephemeral(path, parent)

    def _write(self, path: str, value: bytes, version: int, owner: int) -> None:
        row = (path, value, version, owner, _checksum(path, value, version, owner))
        self._connection.execute("INSERT OR REPLACE INTO nodes VALUES (?, ?, ?, ?, ?)", row)

    def _delete(self, path: str, committed: "_Committed") -> None:
        rows = self._connection.execute(
            "DELETE FROM nodes WHERE path = ? OR (path >= ? AND path < ?) RETURNING path",
            (path, path + "/", path + "0"),
        )
        deleted = [name for (name,) in rows]
        committed.changed.extend(deleted)
        committed.created_or_deleted.extend(deleted)


class _Committed(msgspec.Struct, frozen=True):
    """The result of a commit: the new version for each operation, and the changed paths."""

    versions: list[int] = msgspec.field(default_factory=list)
    changed: list[str] = msgspec.field(default_factory=list)
    created_or_deleted: list[str] = msgspec.field(default_factory=list)


def _connect(path: Path, locking_mode: str) -> tuple[sqlite3.Connection, CommitMark]:
    """Open the store. Raises StorageFailure; DiskFull if there is no space for the index of the write-ahead log.

    locking_mode: EXCLUSIVE keeps this index in memory and locks other connections out, so that the store can be read on
    a full disk.
    """
    _create(path)
    _reload_log(path)
    with contextlib.ExitStack() as stack:
        try:
            connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
            stack.callback(connection.close)
            connection.execute(f"PRAGMA locking_mode={locking_mode}")
            connection.execute("PRAGMA journal_mode=WAL")
            connection.execute("PRAGMA synchronous=FULL")
            connection.execute(_SCHEMA)
            connection.execute(_COMMITS)
            if not connection.execute(_HAS_CHECKSUMS).fetchone()[0]:
                _add_checksums(connection)
            mark = CommitMark(path, connection.execute(_COUNT).fetchone()[0])
            stack.callback(mark.close)
            for row in connection.execute(_ALL):
                _intact(*row)
            connection.execute("DELETE FROM nodes WHERE ephemeral != 0")
        except sqlite3.Error as error:
            raise _failure(str(path), error) from error
        stack.pop_all()
        return connection, mark


def _add_checksums(connection: sqlite3.Connection) -> None:
    """Let a file that an earlier version has written have checksums."""
    connection.execute("BEGIN IMMEDIATE")
    connection.execute("ALTER TABLE nodes ADD COLUMN checksum INTEGER NOT NULL DEFAULT 0")
    nodes = connection.execute(_ALL).fetchall()
    checksums = [(_checksum(*node[:-1]), node[0]) for node in nodes]
    connection.executemany("UPDATE nodes SET checksum = ? WHERE path = ?", checksums)
    connection.execute("COMMIT")


def _checksum(path: str, value: bytes, version: int, ephemeral: object) -> int:
    return int(crc32c(value, crc32c(f"{path} {version} {ephemeral} ".encode())))


def _intact(path: str, value: bytes, version: int, ephemeral: object, checksum: object) -> Versioned:
    """Raise NodeDamaged."""
    if checksum != _checksum(path, value, version, ephemeral):
        raise NodeDamaged(
            f"metadata store: node {path} is damaged, its checksum does not match: restore a copy of the data directory"
        )
    return Versioned(value, version)


def _reload_log(path: Path) -> None:
    """Let SQLite read the write-ahead log that the disk has: after a failed sync memory may show more, and no commit
    behind that would survive a power failure. Raises StorageFailure.
    """
    disk, log = RealDisk(path.parent, max_open_files=1), f"{path.name}-wal"
    if disk.exists(log):
        with contextlib.closing(disk.open(log)) as file:
            file.reload()


def _create(path: Path) -> None:
    """Create a new file that only this user can open: it holds secrets. SQLite gives its journals the same mode."""
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    except FileExistsError:
        pass
    except OSError as error:
        kind = DiskFull if error.errno in (errno.ENOSPC, errno.EDQUOT) else StorageFailure
        raise kind(f"{path}: {error.strerror}") from error


def _range_below(path: str) -> tuple[str, str]:
    """Return the range of paths below a path: [first, second)."""
    parent = path.rstrip("/")
    return parent + "/", parent + "0"


def _failure(where: str, error: sqlite3.Error) -> StorageFailure:
    kind = DiskFull if getattr(error, "sqlite_errorcode", None) in _NO_ROOM else StorageFailure
    return kind(f"{where}: {error}")


def _is_lasting(error: sqlite3.Error) -> bool:
    code = getattr(error, "sqlite_errorcode", None)
    return code is not None and code not in _NO_ROOM and code & _PRIMARY_CODE in _LASTING
