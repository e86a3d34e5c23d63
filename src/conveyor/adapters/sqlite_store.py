"""Sessions with a metadata store in SQLite, in the process that has opened its file; see `SqliteTree`."""

from collections.abc import Callable
from pathlib import Path

from conveyor.adapters.sqlite_tree import SqliteTree
from conveyor.kernel.ports import SessionState, StoreOperation, Versioned


class SqliteSession:
    """One session, a `conveyor.kernel.ports.MetadataStore`. `close` ends it, and so does the end of the process."""

    session_state = SessionState.CONNECTED
    session_timeout_ms = 0

    def __init__(self, tree: SqliteTree) -> None:
        self.shared = tree
        self.number = tree.begin_session()

    def listen(self, changed: Callable[[SessionState], None]) -> None:
        """The state never changes."""

    async def get(self, path: str, changed: Callable[[], None] | None = None) -> Versioned | None:
        return await self.shared.get(self.number, path, changed)

    async def children(self, path: str, changed: Callable[[], None] | None = None) -> list[str]:
        return await self.shared.children(self.number, path, changed)

    async def tree(self, path: str) -> dict[str, Versioned]:
        return await self.shared.tree(path)

    async def commit(self, *operations: StoreOperation) -> tuple[int, ...] | None:
        return await self.shared.commit(self.number, operations)

    async def sync(self) -> None:
        """Nothing to do: reads always return the last commit."""

    async def close(self) -> None:
        await self.shared.end_session(self.number)


class SqliteStore(SqliteSession):
    """The embedded metadata store: the only session with its file."""

    def __init__(self, path: Path) -> None:
        super().__init__(SqliteTree(path))

    async def close(self) -> None:
        """Close the file; the next start deletes the ephemeral nodes. A full disk does not prevent this."""
        await self.shared.close()
