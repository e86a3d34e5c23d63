"""A metadata store a network away: its calls take time, and fail while a story says so."""

import asyncio
from collections.abc import Callable
from enum import Enum
from random import Random

from conveyor.kernel.errors import StorageFailure
from conveyor.kernel.ports import StoreOperation, Versioned
from conveyor.testing.memory_store import MemoryStore

_LONGEST_HOP_S = 0.003


class StoreFault(Enum):
    """What goes wrong. REPLY_LOST: a commit fails after it has taken effect."""

    READ_FAILS = "read"
    COMMIT_FAILS = "commit"
    REPLY_LOST = "reply"


class FlakyStore(MemoryStore):
    """See the module's docstring. chance: how long each call takes, and which calls a fault hits.

    The process may die before a commit takes effect, and before it hears of that.
    """

    def __init__(self, chance: Random) -> None:
        super().__init__()
        self._chance = chance
        self._faults: set[StoreFault] = set()

    def fail(self, *faults: StoreFault) -> None:
        """From now on these happen to three calls of four; a caller may meet them again and again, or once."""
        self._faults.update(faults)

    def heal(self) -> None:
        """No fault any more, and room for everything."""
        self._faults.clear()
        self.is_full = False

    def nodes(self) -> dict[str, bytes]:
        """What is stored."""
        return {path: node.value for path, node in self._nodes.items()}

    async def get(self, path: str, changed: Callable[[], None] | None = None) -> Versioned | None:
        await self._hop()
        self._meet(StoreFault.READ_FAILS)
        found = await super().get(path, changed)
        await self._hop()
        return found

    async def sync(self) -> None:
        await self._hop()
        self._meet(StoreFault.READ_FAILS)

    async def commit(self, *operations: StoreOperation) -> tuple[int, ...] | None:
        await self._hop()
        self._meet(StoreFault.COMMIT_FAILS)
        committed = await super().commit(*operations)
        await self._hop()
        self._meet(StoreFault.REPLY_LOST)
        return committed

    async def _hop(self) -> None:
        await asyncio.sleep(self._chance.uniform(0, _LONGEST_HOP_S))

    def _meet(self, fault: StoreFault) -> None:
        if fault in self._faults and self._chance.random() < 0.75:
            raise StorageFailure(f"metadata store: connection lost ({fault.value})")
