"""The owner of a metadata store that serves it over a socket, and its clients, all in one event loop."""

from pathlib import Path

from conveyor.adapters.sqlite_tree import SqliteTree
from conveyor.adapters.store_socket.socket_store import SocketStore
from conveyor.adapters.store_socket.store_server import StoreServer
from conveyor.kernel.errors import StorageFailure

KEY = "the key of this owner"
MAX_CLIENTS = 8


class StoreOwner:
    """failures: with which the server has failed. gone: the failures of clients whose owner was gone."""

    def __init__(self, directory: Path, session_timeout_ms: int = 2_000, key: str = KEY) -> None:
        self.path = directory / "store.sock"
        self.tree = SqliteTree(directory / "metadata.sqlite")
        self.failures: list[BaseException] = []
        self.gone: list[StorageFailure] = []
        self.server = StoreServer(
            self.tree,
            key=key,
            session_timeout_ms=session_timeout_ms,
            max_clients=MAX_CLIENTS,
            failed=self.failures.append,
        )

    async def start(self) -> "StoreOwner":
        await self.server.start(self.path)
        return self

    async def stop(self) -> None:
        await self.server.stop()
        await self.tree.close()
        assert not self.failures

    def client(self, key: str = KEY) -> SocketStore:
        return SocketStore(self.path, key, self.gone.append)

    async def connect(self) -> SocketStore:
        store = self.client()
        await store.open()
        return store
