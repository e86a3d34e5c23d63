"""Turns the operations of a commit into the steps of one ZooKeeper transaction, given the nodes that exist.

ZooKeeper knows neither "write, whether it exists or not" nor "delete with everything below" nor "require that it does
not exist", and it creates no parents. The plan resolves these by the nodes that were read before. If one of these nodes
changes before the transaction runs, a step fails and ZooKeeper executes none; the caller then reads and plans again.

    put, existing node        set
    put, missing node         create its missing parents, create it
    delete                    delete every node below, the deepest first, then the node
    check of a version        check
    check of absence          create it with its missing parents, then delete them: fails if it exists

ZooKeeper's versions start at 0, the port's at 1.
"""

from collections.abc import Mapping, Sequence

import msgspec

from conveyor.kernel.ports import ABSENT, ANY_VERSION, DeleteNode, PutNode, StoreOperation
from conveyor.kernel.store_paths import below_an_ephemeral, parents


class FoundNode(msgspec.Struct, frozen=True):
    """An existing node: its version by the port's count, and whether it is ephemeral."""

    version: int
    is_ephemeral: bool


class CreateStep(msgspec.Struct, frozen=True):
    path: str
    value: bytes = b""
    is_ephemeral: bool = False


class SetStep(msgspec.Struct, frozen=True):
    """version: ZooKeeper's count, -1 for any; likewise in the other steps."""

    path: str
    value: bytes
    version: int


class DeleteStep(msgspec.Struct, frozen=True):
    path: str
    version: int = ANY_VERSION


class CheckStep(msgspec.Struct, frozen=True):
    path: str
    version: int


Step = CreateStep | SetStep | DeleteStep | CheckStep


class CommitPlan(msgspec.Struct, frozen=True):
    """steps: the transaction. writes: for each operation the index of the step that writes its node, or None."""

    steps: list[Step] = msgspec.field(default_factory=list)
    writes: list[int | None] = msgspec.field(default_factory=list)


def plan_commit(operations: Sequence[StoreOperation], found: Mapping[str, FoundNode]) -> CommitPlan | None:
    """Return the plan; None if a node does not have the version that an operation requires.

    found: the existing nodes among the operations' paths, their parents, and everything below a node to delete.
    Raises StorageFailure for a node below an ephemeral one.
    """
    planning = _Planning(found)
    for operation in operations:
        if not planning.add(operation):
            return None
    return planning.plan


class _Planning:
    """nodes: the tree as the steps so far would leave it."""

    def __init__(self, found: Mapping[str, FoundNode]) -> None:
        self.plan = CommitPlan()
        self._found = found
        self._nodes = dict(found)

    def add(self, operation: StoreOperation) -> bool:
        """Return whether the node has the required version."""
        node = self._nodes.get(operation.path)
        if operation.version not in (ANY_VERSION, ABSENT if node is None else node.version):
            return False
        write = None
        if isinstance(operation, PutNode):
            write = self._put(operation, node)
        elif operation.version == ABSENT:
            self._check_absence(operation.path)
        elif isinstance(operation, DeleteNode):
            self._delete(operation)
        elif operation.version != ANY_VERSION:
            self.plan.steps.append(CheckStep(operation.path, operation.version - 1))
        self.plan.writes.append(write)
        return True

    def _put(self, operation: PutNode, node: FoundNode | None) -> int:
        path = operation.path
        if node is None:
            self._create_parents(path)
            self.plan.steps.append(CreateStep(path, operation.value, operation.ephemeral))
            self._nodes[path] = FoundNode(1, operation.ephemeral)
        else:
            version = ANY_VERSION if operation.version == ANY_VERSION else operation.version - 1
            self.plan.steps.append(SetStep(path, operation.value, version))
            self._nodes[path] = FoundNode(node.version + 1, node.is_ephemeral)
        return len(self.plan.steps) - 1

    def _create_parents(self, path: str) -> list[str]:
        created = []
        for parent in parents(path):
            node = self._nodes.get(parent)
            if node is None:
                self.plan.steps.append(CreateStep(parent))
                self._nodes[parent] = FoundNode(1, is_ephemeral=False)
                created.append(parent)
            elif node.is_ephemeral:
                raise below_an_ephemeral(path, parent)
        return created

    def _delete(self, operation: DeleteNode) -> None:
        path = operation.path
        for name in sorted((name for name in self._nodes if name.startswith(path + "/")), reverse=True):
            self.plan.steps.append(DeleteStep(name))
            del self._nodes[name]
        if path in self._nodes:
            version = ANY_VERSION if operation.version == ANY_VERSION else operation.version - 1
            self.plan.steps.append(DeleteStep(path, version))
            del self._nodes[path]

    def _check_absence(self, path: str) -> None:
        if path in self._found:
            return  # An earlier step deletes it.
        if ephemeral := [parent for parent in parents(path) if self._is_ephemeral(parent)]:
            self.plan.steps.append(CheckStep(ephemeral[0], self._nodes[ephemeral[0]].version - 1))
            return
        created = [*self._create_parents(path), path]
        self.plan.steps.append(CreateStep(path))
        for name in reversed(created):
            self.plan.steps.append(DeleteStep(name))
            self._nodes.pop(name, None)

    def _is_ephemeral(self, path: str) -> bool:
        node = self._nodes.get(path)
        return node is not None and node.is_ephemeral
