"""A metadata store behind a network: its calls take time, and fail while the story injects a fault."""

import asyncio
from collections.abc import Callable
from enum import Enum
from random import Random

from conveyor.kernel.errors import StorageFailure
from conveyor.kernel.ports import StoreOperation, Versioned
from conveyor.testing.memory_store import MemoryStore, MemoryTree

_LONGEST_HOP_S = 0.003


class StoreFault(Enum):
    """A fault of the store. REPLY_LOST: a commit fails after it has taken effect."""

    READ_FAILS = "read"
    COMMIT_FAILS = "commit"
    REPLY_LOST = "reply"


class FlakyStore(MemoryStore):
    """See the module's docstring. chance: the source of the latency of each call, and of the calls that fail.
    lost_replies: the number of commits that have failed after they had taken effect.

    The process may die before a commit takes effect, or before the reply arrives.
    """

    def __init__(self, chance: Random, session_timeout_ms: int = 0, tree: MemoryTree | None = None) -> None:
        super().__init__(session_timeout_ms, tree)
        self._chance = chance
        self._faults: set[StoreFault] = set()
        self.lost_replies = 0

    def fail(self, *faults: StoreFault) -> None:
        """Make three calls of four fail from now on."""
        self._faults.update(faults)

    @property
    def is_sound(self) -> bool:
        """True if calls take effect and are answered."""
        return not (self._faults or self.is_full)

    def heal(self) -> None:
        """End all faults, including a full store."""
        self._faults.clear()
        self.is_full = False

    def nodes(self) -> dict[str, bytes]:
        """Return the value of every stored node, by path."""
        return {path: node.value for path, node in self.shared.nodes.items()}

    async def get(self, path: str, changed: Callable[[], None] | None = None) -> Versioned | None:
        await self._hop()
        self._fail_by_chance(StoreFault.READ_FAILS)
        node = await super().get(path, changed)
        await self._reply()
        return node

    async def sync(self) -> None:
        await self._hop()
        self._fail_by_chance(StoreFault.READ_FAILS)

    async def commit(self, *operations: StoreOperation) -> tuple[int, ...] | None:
        await self._hop()
        self._fail_by_chance(StoreFault.COMMIT_FAILS)
        committed = await super().commit(*operations)
        try:
            await self._reply()
            self._fail_by_chance(StoreFault.REPLY_LOST)
        except StorageFailure:
            self.lost_replies += 1
            raise
        return committed

    async def _hop(self) -> None:
        await asyncio.sleep(self._chance.uniform(0, _LONGEST_HOP_S))

    async def _reply(self) -> None:
        """Let a reply arrive."""
        await self._hop()

    def _fail_by_chance(self, fault: StoreFault) -> None:
        if fault in self._faults and self._chance.random() < 0.75:
            raise StorageFailure(f"metadata store: connection lost ({fault.value})")
