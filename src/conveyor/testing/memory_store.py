"""A metadata store in memory that outlives its broker."""

from collections.abc import Callable
from dataclasses import dataclass, field

from conveyor.kernel.errors import DiskFull
from conveyor.kernel.ports import ANY_VERSION, DeleteNode, PutNode, StoreOperation, Versioned
from conveyor.kernel.store_watches import StoreWatches


class MemoryStore:
    """See `conveyor.kernel.ports.MetadataStore`. is_full: changes fail with DiskFull."""

    def __init__(self) -> None:
        self.is_full = False
        self._nodes: dict[str, Versioned] = {}
        self._ephemeral: set[str] = set()
        self._watches = StoreWatches()

    async def get(self, path: str, changed: Callable[[], None] | None = None) -> Versioned | None:
        self._watches.add_to_node(path, changed)
        return self._nodes.get(path)

    async def children(self, path: str, changed: Callable[[], None] | None = None) -> list[str]:
        self._watches.add_to_children(path, changed)
        start = len(path.rstrip("/")) + 1
        return sorted({child[start:].partition("/")[0] for child in await self.tree(path)})

    async def tree(self, path: str) -> dict[str, Versioned]:
        prefix = path.rstrip("/") + "/"
        return {name: node for name, node in sorted(self._nodes.items()) if name.startswith(prefix)}

    async def commit(self, *operations: StoreOperation) -> tuple[int, ...] | None:
        draft = _Draft(dict(self._nodes), set(self._ephemeral))
        versions = []
        for operation in operations:
            current = draft.nodes[operation.path].version if operation.path in draft.nodes else 0
            if operation.version not in (ANY_VERSION, current):
                return None
            versions.append(draft.apply(operation, current))
        if draft.changed and self.is_full:
            raise DiskFull("metadata store: database or disk is full")
        self._nodes, self._ephemeral = draft.nodes, draft.ephemeral
        self._watches.fire(draft.changed, draft.created_or_deleted)
        return tuple(versions)

    async def sync(self) -> None:
        """Nothing to do: reads always return the last commit."""

    async def close(self) -> None:
        """End the session, which removes its ephemeral nodes."""
        self._watches.clear()
        for path in self._ephemeral:
            self._nodes.pop(path, None)
        self._ephemeral.clear()


@dataclass(frozen=True, slots=True)
class _Draft:
    """The nodes after a commit, and the changed paths."""

    nodes: dict[str, Versioned]
    ephemeral: set[str]
    changed: list[str] = field(default_factory=list)
    created_or_deleted: list[str] = field(default_factory=list)

    def apply(self, operation: StoreOperation, current: int) -> int:
        """Apply one operation. Returns the node's new version; 0 if nothing is written."""
        if isinstance(operation, PutNode):
            return self._put(operation, current)
        if isinstance(operation, DeleteNode):
            self._delete(operation.path)
        return 0

    def _put(self, operation: PutNode, current: int) -> int:
        path = operation.path
        self.nodes[path] = Versioned(operation.value, current + 1)
        (self.ephemeral.add if operation.ephemeral else self.ephemeral.discard)(path)
        self.changed.append(path)
        if not current:
            self.created_or_deleted.append(path)
        return current + 1

    def _delete(self, path: str) -> None:
        deleted = [name for name in self.nodes if name == path or name.startswith(path + "/")]
        for name in deleted:
            del self.nodes[name]
        self.ephemeral.difference_update(deleted)
        self.changed.extend(deleted)
        self.created_or_deleted.extend(deleted)
