"""A `conveyor.kernel.ports.MetadataStore` on ZooKeeper.

A commit first reads which of its nodes exist, then sends one transaction (see `commit_plan`). If a node has changed in
between, ZooKeeper executes nothing and the commit starts again. Each such round means that another commit has
succeeded.
"""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError, RolledBackError, RuntimeInconsistency
from kazoo.protocol.serialization import Transaction

from conveyor.adapters.zookeeper.commit_plan import (
    CheckStep,
    CommitPlan,
    CreateStep,
    DeleteStep,
    FoundNode,
    SetStep,
    Step,
    plan_commit,
)
from conveyor.adapters.zookeeper.zookeeper_address import ZookeeperAddress
from conveyor.adapters.zookeeper.zookeeper_session import CONFLICTS, ZookeeperSession
from conveyor.adapters.zookeeper.zookeeper_tls import ZookeeperTls
from conveyor.kernel.errors import StorageFailure
from conveyor.kernel.ports import DeleteNode, SessionState, StoreOperation, Versioned
from conveyor.kernel.store_paths import parents

MAX_REQUEST_BYTES = 900 << 10
"""ZooKeeper closes the connection at a request above its jute.maxbuffer, 1 MiB by default."""

_REQUEST_HEADER_BYTES = 12
_MOST_ROUNDS = 100
_OWN_NAME = "zookeeper"
"""The node at the root of every ZooKeeper that holds its own configuration."""


class ZookeeperStore:
    """See `conveyor.kernel.ports.MetadataStore`. Make it with `open_zookeeper_store`."""

    def __init__(self, session: ZookeeperSession, root: str) -> None:
        self._session = session
        self._root = root

    @property
    def session_state(self) -> SessionState:
        return self._session.state

    @property
    def session_timeout_ms(self) -> int:
        return self._session.timeout_ms

    def listen(self, changed: Callable[[SessionState], None]) -> None:
        self._session.listeners.append(changed)

    async def get(self, path: str, changed: Callable[[], None] | None = None) -> Versioned | None:
        full, watch = self._full(path), changed and _Watch(changed)
        try:
            while True:
                try:
                    value, stat = await self._session.request(lambda client: client.get_async(full, watch))
                    return Versioned(value or b"", stat.version + 1)
                except NoNodeError:
                    if await self._is_absent(full, watch):
                        return None
        except StorageFailure:
            _cancel(watch)
            raise

    async def children(self, path: str, changed: Callable[[], None] | None = None) -> list[str]:
        full, watch = self._full(path), changed and _Watch(changed)
        try:
            while True:
                try:
                    names = await self._session.request(lambda client: client.get_children_async(full, watch))
                    return sorted(name for name in names if full != "/" or name != _OWN_NAME)
                except NoNodeError:
                    if await self._is_absent(full, watch):
                        return []
        except StorageFailure:
            _cancel(watch)
            raise

    async def tree(self, path: str) -> dict[str, Versioned]:
        paths = [path.rstrip("/") + "/" + name for name in await self._names_below(path)]
        nodes = await asyncio.gather(*map(self.get, paths))
        found = {name: node for name, node in zip(paths, nodes, strict=True) if node is not None}
        return dict(sorted(found.items()))

    async def commit(self, *operations: StoreOperation) -> tuple[int, ...] | None:
        is_refused = False
        for _ in range(_MOST_ROUNDS):
            plan = plan_commit(operations, await self._find_nodes(operations))
            if plan is not None:
                results = await self._execute(plan.steps)
                if results is not None:
                    return tuple(_written_version(plan, results, write) for write in plan.writes)
            elif is_refused:
                return None
            else:  # This server may be behind: only what it shows after a sync counts.
                is_refused = True
                await self.sync()
        raise StorageFailure(f"metadata store: others have changed {operations[0].path} {_MOST_ROUNDS} times meanwhile")

    async def sync(self) -> None:
        await self._session.request(lambda client: client.sync_async(self._root or "/"))

    async def close(self) -> None:
        await self._session.close()

    async def _is_absent(self, full: str, watch: "_Watch | None") -> bool:
        """Return whether a node is still missing, and set the watch that fires when it is created."""
        if watch is None:
            return True
        return await self._session.request(lambda client: client.exists_async(full, watch)) is None

    async def _find_nodes(self, operations: Sequence[StoreOperation]) -> dict[str, FoundNode]:
        """Return the existing nodes that `plan_commit` needs."""
        paths = {operation.path for operation in operations}
        paths |= {parent for operation in operations for parent in parents(operation.path)}
        for deleted in {operation.path for operation in operations if isinstance(operation, DeleteNode)}:
            paths |= {f"{deleted}/{name}" for name in await self._names_below(deleted)}
        ordered = sorted(paths)
        stats = await asyncio.gather(*map(self._stat, ordered))
        return {
            path: FoundNode(stat.version + 1, stat.ephemeralOwner != 0)
            for path, stat in zip(ordered, stats, strict=True)
            if stat is not None
        }

    async def _stat(self, path: str) -> Any:
        full = self._full(path)
        return await self._session.request(lambda client: client.exists_async(full))

    async def _names_below(self, path: str) -> list[str]:
        """Return the paths of all nodes below a path, relative to it."""
        below: list[str] = []
        level = await self.children(path)
        while level:
            below += level
            names = await asyncio.gather(*(self.children(f"{path.rstrip('/')}/{parent}") for parent in level))
            level = [f"{parent}/{name}" for parent, children in zip(level, names, strict=True) for name in children]
        return below

    async def _execute(self, steps: Sequence[Step]) -> list[Any] | None:
        """Run a transaction. Returns None if a node is not as the plan assumes."""
        if not steps:
            return []

        def send(client: KazooClient) -> Any:
            transaction = client.transaction()
            for step in steps:
                self._add(transaction, step)
            _check_size(transaction.operations)
            return transaction.commit_async()

        results: list[Any] = await self._session.request(send)
        errors = [result for result in results if isinstance(result, Exception)]
        decisive = [error for error in errors if not isinstance(error, RolledBackError | RuntimeInconsistency)]
        if decisive and not isinstance(decisive[0], CONFLICTS):
            raise StorageFailure(f"metadata store: ZooKeeper has refused a commit: {type(decisive[0]).__name__}")
        return None if errors else results

    def _add(self, transaction: Any, step: Step) -> None:
        full = self._full(step.path)
        match step:
            case CreateStep():
                transaction.create(full, step.value, ephemeral=step.is_ephemeral)
            case SetStep():
                transaction.set_data(full, step.value, step.version)
            case DeleteStep():
                transaction.delete(full, step.version)
            case CheckStep():
                transaction.check(full, step.version)

    def _full(self, path: str) -> str:
        return (self._root + path).rstrip("/") or "/"


class _Watch:
    """A watch that fires once, even if it is set on several kinds of change."""

    def __init__(self, changed: Callable[[], None]) -> None:
        self._changed: Callable[[], None] | None = changed

    def __call__(self, event: object) -> None:
        changed, self._changed = self._changed, None
        if changed is not None:
            changed()

    def cancel(self) -> None:
        self._changed = None


async def open_zookeeper_store(
    address: ZookeeperAddress,
    *,
    session_timeout_ms: int,
    tls: ZookeeperTls | None = None,
    sets_acl: bool = False,
    wait_s: float = 10.0,
) -> ZookeeperStore:
    """Connect to a ZooKeeper. Raises StorageFailure if it is not reached within this time.

    sets_acl: nodes belong to whom the certificate in `tls` names. With a user in the address they always belong to it.
    """
    owns_nodes = sets_acl or address.credentials is not None
    session = ZookeeperSession(address, session_timeout_ms, tls, owns_nodes=owns_nodes)
    await session.open(wait_s)
    return ZookeeperStore(session, address.root)


def _cancel(watch: _Watch | None) -> None:
    if watch is not None:
        watch.cancel()


def _written_version(plan: CommitPlan, results: Sequence[Any], write: int | None) -> int:
    """Return the version that an operation has written: of a created node 1, 0 if the operation writes nothing."""
    if write is None:
        return 0
    return results[write].version + 1 if isinstance(plan.steps[write], SetStep) else 1


def _check_size(operations: Iterable[Any]) -> None:
    size = len(Transaction(list(operations)).serialize()) + _REQUEST_HEADER_BYTES
    if size > MAX_REQUEST_BYTES:
        raise StorageFailure(
            f"metadata store: a commit of {size} bytes is above the limit of {MAX_REQUEST_BYTES} bytes for ZooKeeper:"
            " divide it"
        )
