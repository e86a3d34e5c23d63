"""A metadata store in memory that outlives its brokers: one tree of nodes, and sessions that share it."""

from collections.abc import Callable
from contextvars import copy_context
from dataclasses import dataclass, field

from conveyor.kernel.errors import DiskFull, StorageFailure
from conveyor.kernel.ports import ANY_VERSION, DeleteNode, PutNode, SessionState, StoreOperation, Versioned
from conveyor.kernel.store_paths import below_an_ephemeral, parents
from conveyor.kernel.store_watches import StoreWatches, Watch


class MemoryTree:
    """The nodes that several `MemoryStore` share.

    is_full: changes fail with DiskFull.
    """

    def __init__(self) -> None:
        self.is_full = False
        self.nodes: dict[str, Versioned] = {}
        self._owners: dict[str, object] = {}
        """The session of each ephemeral node."""
        self._watches: dict[object, StoreWatches] = {}

    def open_session(self, session_timeout_ms: int) -> "MemoryStore":
        """Return another client of this tree, connected."""
        return MemoryStore(session_timeout_ms, self)

    def watches_of(self, session: object) -> StoreWatches:
        return self._watches.setdefault(session, StoreWatches())

    def forget_watches(self, session: object) -> None:
        self._watches.pop(session, None)

    def commit(self, session: object, operations: tuple[StoreOperation, ...]) -> tuple[int, ...] | None:
        """Execute the operations of a session and call the watches of all sessions. See `MetadataStore.commit`."""
        draft = TreeDraft(session, dict(self.nodes), dict(self._owners))
        versions = []
        for operation in operations:
            current = draft.nodes[operation.path].version if operation.path in draft.nodes else 0
            if operation.version not in (ANY_VERSION, current):
                return None
            versions.append(draft.apply(operation, current))
        if draft.changed and self.is_full:
            raise DiskFull("metadata store: database or disk is full")
        self.take(draft)
        return tuple(versions)

    def end_session(self, session: object) -> None:
        """Delete the ephemeral nodes of a session."""
        draft = TreeDraft(session, dict(self.nodes), dict(self._owners))
        for path in [path for path, owner in self._owners.items() if owner is session]:
            draft.apply(DeleteNode(path), 0)
        self.take(draft)

    def take(self, draft: "TreeDraft") -> None:
        """Let a draft become the tree, and call the watches."""
        self.nodes, self._owners = draft.nodes, draft.owners
        for watches in list(self._watches.values()):
            watches.fire(draft.changed, draft.created_or_deleted)


class MemoryStore:
    """One session with a tree; see `conveyor.kernel.ports.MetadataStore`.

    session_timeout_ms: what the store reports; 0 stands for an embedded store. tree: by default a tree of its own.
    `cut`, `expire` and `reconnect` move the session through its states; nothing else ends it, whatever the time.
    A watch or a listener is called in the context in which it was set. After `close` the next call begins a session.
    """

    def __init__(self, session_timeout_ms: int = 0, tree: MemoryTree | None = None) -> None:
        self.session_state = SessionState.CONNECTED
        self.session_timeout_ms = session_timeout_ms
        self.shared = MemoryTree() if tree is None else tree
        self._listeners: list[Callable[[SessionState], None]] = []

    @property
    def is_full(self) -> bool:
        """True if changes of the tree fail with DiskFull."""
        return self.shared.is_full

    @is_full.setter
    def is_full(self, is_full: bool) -> None:
        self.shared.is_full = is_full

    def listen(self, changed: Callable[[SessionState], None]) -> None:
        context = copy_context()
        self._listeners.append(lambda state: context.copy().run(changed, state))

    def cut(self) -> None:
        """Lose the connection: every watch fires, and calls fail until `reconnect`."""
        self._enter(SessionState.SUSPENDED)
        self.shared.watches_of(self).fire_all()

    def expire(self) -> None:
        """End the session while the connection is cut: its ephemeral nodes are deleted."""
        assert self.session_state is SessionState.SUSPENDED, "a session expires only while its client is cut off"
        self.shared.end_session(self)
        self._enter(SessionState.LOST)

    def reconnect(self) -> None:
        """Connect again: with the same session, or with a new one after `expire`."""
        self._enter(SessionState.CONNECTED)

    def abandon(self) -> None:
        """Cut the session of a process that has died: no watcher is called any more. `expire` then ends the session."""
        self._listeners.clear()
        self.shared.forget_watches(self)
        self.session_state = SessionState.SUSPENDED

    async def get(self, path: str, changed: Callable[[], None] | None = None) -> Versioned | None:
        self._check_connection()
        self.shared.watches_of(self).add_to_node(path, _in_this_context(changed))
        return self.shared.nodes.get(path)

    async def children(self, path: str, changed: Callable[[], None] | None = None) -> list[str]:
        self._check_connection()
        self.shared.watches_of(self).add_to_children(path, _in_this_context(changed))
        start = len(path.rstrip("/")) + 1
        return sorted({child[start:].partition("/")[0] for child in await self.tree(path)})

    async def tree(self, path: str) -> dict[str, Versioned]:
        self._check_connection()
        prefix = path.rstrip("/") + "/"
        return {name: node for name, node in sorted(self.shared.nodes.items()) if name.startswith(prefix)}

    async def commit(self, *operations: StoreOperation) -> tuple[int, ...] | None:
        self._check_connection()
        return self.shared.commit(self, operations)

    async def sync(self) -> None:
        """Nothing to wait for: reads always return the last commit."""
        self._check_connection()

    async def close(self) -> None:
        """End the session, which removes its ephemeral nodes."""
        self._listeners.clear()
        self.shared.forget_watches(self)
        self.shared.end_session(self)

    def _enter(self, state: SessionState) -> None:
        self.session_state = state
        for changed in list(self._listeners):
            changed(state)

    def _check_connection(self) -> None:
        if self.session_state is not SessionState.CONNECTED:
            raise StorageFailure("metadata store: the connection is lost")


@dataclass(frozen=True, slots=True)
class TreeDraft:
    """The nodes after a commit of a session, and the changed paths."""

    session: object
    nodes: dict[str, Versioned]
    owners: dict[str, object]
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
                self.owners[path] = self.session
        self.nodes[path] = Versioned(operation.value, current + 1)
        self.changed.append(path)
        return current + 1

    def _create_parents(self, path: str) -> None:
        for parent in parents(path):
            if parent in self.owners:
                raise below_an_ephemeral(path, parent)
            if parent not in self.nodes:
                self.nodes[parent] = Versioned(b"", 1)
                self.changed.append(parent)
                self.created_or_deleted.append(parent)

    def _delete(self, path: str) -> None:
        deleted = [name for name in self.nodes if name == path or name.startswith(path + "/")]
        for name in deleted:
            del self.nodes[name]
            self.owners.pop(name, None)
        self.changed.extend(deleted)
        self.created_or_deleted.extend(deleted)


def _in_this_context(changed: Watch | None) -> Watch | None:
    if changed is None:
        return None
    context = copy_context()
    return lambda: context.run(changed)
