"""A metadata store in memory that outlives its broker."""

from collections.abc import Callable
from dataclasses import dataclass, field

from conveyor.kernel.errors import DiskFull, StorageFailure
from conveyor.kernel.ports import ANY_VERSION, DeleteNode, PutNode, SessionState, StoreOperation, Versioned
from conveyor.kernel.store_paths import below_an_ephemeral, parents
from conveyor.kernel.store_watches import StoreWatches


class MemoryStore:
    """See `conveyor.kernel.ports.MetadataStore`.

    is_full: changes fail with DiskFull. `cut`, `expire` and `reconnect` move the session through its states.
    session_timeout_ms: what the store reports; 0 stands for an embedded store.
    """

    def __init__(self, session_timeout_ms: int = 0) -> None:
        self.is_full = False
        self.session_state = SessionState.CONNECTED
        self.session_timeout_ms = session_timeout_ms
        self._nodes: dict[str, Versioned] = {}
        self._ephemeral: set[str] = set()
        self._watches = StoreWatches()
        self._listeners: list[Callable[[SessionState], None]] = []

    def listen(self, changed: Callable[[SessionState], None]) -> None:
        self._listeners.append(changed)

    def cut(self) -> None:
        """Lose the connection: every watch fires, and calls fail until `reconnect`."""
        self._enter(SessionState.SUSPENDED)
        self._watches.fire_all()

    def expire(self) -> None:
        """End the session while the connection is cut: its ephemeral nodes are deleted."""
        assert self.session_state is SessionState.SUSPENDED, "a session expires only while its client is cut off"
        self._delete_ephemeral()
        self._enter(SessionState.LOST)

    def reconnect(self) -> None:
        """Connect again: with the same session, or with a new one after `expire`."""
        self._enter(SessionState.CONNECTED)

    async def get(self, path: str, changed: Callable[[], None] | None = None) -> Versioned | None:
        self._check_connection()
        self._watches.add_to_node(path, changed)
        return self._nodes.get(path)

    async def children(self, path: str, changed: Callable[[], None] | None = None) -> list[str]:
        self._check_connection()
        self._watches.add_to_children(path, changed)
        start = len(path.rstrip("/")) + 1
        return sorted({child[start:].partition("/")[0] for child in await self.tree(path)})

    async def tree(self, path: str) -> dict[str, Versioned]:
        self._check_connection()
        prefix = path.rstrip("/") + "/"
        return {name: node for name, node in sorted(self._nodes.items()) if name.startswith(prefix)}

    async def commit(self, *operations: StoreOperation) -> tuple[int, ...] | None:
        self._check_connection()
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
        """Nothing to wait for: reads always return the last commit."""
        self._check_connection()

    async def close(self) -> None:
        """End the session, which removes its ephemeral nodes."""
        self._watches.clear()
        self._listeners.clear()
        self._delete_ephemeral()

    def _delete_ephemeral(self) -> None:
        for path in self._ephemeral:
            self._nodes.pop(path, None)
        self._ephemeral.clear()

    def _enter(self, state: SessionState) -> None:
        self.session_state = state
        for changed in self._listeners:
            changed(state)

    def _check_connection(self) -> None:
        if self.session_state is not SessionState.CONNECTED:
            raise StorageFailure("metadata store: the connection is lost")


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
        if not current:
            self._create_parents(path)
            self.created_or_deleted.append(path)
            if operation.ephemeral:
                self.ephemeral.add(path)
        self.nodes[path] = Versioned(operation.value, current + 1)
        self.changed.append(path)
        return current + 1

    def _create_parents(self, path: str) -> None:
        for parent in parents(path):
            if parent in self.ephemeral:
                raise below_an_ephemeral(path, parent)
            if parent not in self.nodes:
                self.nodes[parent] = Versioned(b"", 1)
                self.changed.append(parent)
                self.created_or_deleted.append(parent)

    def _delete(self, path: str) -> None:
        deleted = [name for name in self.nodes if name == path or name.startswith(path + "/")]
        for name in deleted:
            del self.nodes[name]
        self.ephemeral.difference_update(deleted)
        self.changed.extend(deleted)
        self.created_or_deleted.extend(deleted)
