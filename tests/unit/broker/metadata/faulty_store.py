"""A metadata store whose calls fail on request."""

from collections.abc import Callable

from conveyor.kernel.errors import StorageFailure
from conveyor.kernel.ports import StoreOperation, Versioned
from conveyor.testing.memory_store import MemoryStore


class FaultyStore(MemoryStore):
    """Counts calls from 0.

    fails: whether a call fails before it has any effect, with `failure`. loses_reply: whether a commit fails after it
    has taken effect.
    """

    def __init__(self) -> None:
        super().__init__()
        self.failure: type[StorageFailure] = StorageFailure
        self.heal()

    def heal(self) -> None:
        """Let all further calls succeed, and count from 0 again."""
        self.calls = 0
        self.fails: Callable[[int], bool] = lambda _: False
        self.loses_reply: Callable[[int], bool] = lambda _: False

    async def get(self, path: str, changed: Callable[[], None] | None = None) -> Versioned | None:
        self._call()
        return await super().get(path, changed)

    async def tree(self, path: str) -> dict[str, Versioned]:
        self._call()
        return await super().tree(path)

    async def sync(self) -> None:
        self._call()

    async def commit(self, *operations: StoreOperation) -> tuple[int, ...] | None:
        call = self._call()
        committed = await super().commit(*operations)
        if self.loses_reply(call):
            raise StorageFailure("the reply is lost")
        return committed

    def _call(self) -> int:
        call, self.calls = self.calls, self.calls + 1
        if self.fails(call):
            raise self.failure("the store is away")
        return call
