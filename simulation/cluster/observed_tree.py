"""The metadata store's tree of a simulated cluster. It folds the metadata log as it is written.

So the story knows the stored image at every moment, before any broker has observed it.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from conveyor.cluster.changes import fold
from conveyor.cluster.image import ClusterImage
from conveyor.cluster.metadata_log import HEAD_PATH, decode_entry, decode_head, entry_path
from conveyor.kernel.ports import StoreOperation
from conveyor.testing.memory_store import MemoryTree, TreeDraft

Observer = Callable[[ClusterImage, ClusterImage], None]


class ObservedTree(MemoryTree):
    """See the module's docstring. image: what the log contains now."""

    def __init__(self) -> None:
        super().__init__()
        self.image = ClusterImage()
        self._observers: list[Observer] = []
        self._node_observers: dict[Callable[[], None], None] = {}

    def observe(self, changed: Observer) -> None:
        """Call back with (old, new) after each entry. The callback must not raise."""
        self._observers.append(changed)

    @contextmanager
    def observed_nodes(self, changed: Callable[[], None]) -> Iterator[None]:
        """Call back after each change of the nodes, until the context ends."""
        self._node_observers[changed] = None
        try:
            yield
        finally:
            del self._node_observers[changed]

    def commit(self, session: object, operations: tuple[StoreOperation, ...]) -> tuple[int, ...] | None:
        versions = super().commit(session, operations)
        head = self.nodes.get(HEAD_PATH)
        if versions is not None and head is not None:
            for seq in range(self.image.seq + 1, decode_head(head.value).seq + 1):
                self._fold(seq)
        return versions

    def take(self, draft: TreeDraft) -> None:
        super().take(draft)
        for changed in list(self._node_observers):
            changed()

    def _fold(self, seq: int) -> None:
        old = self.image
        self.image = fold(old, decode_entry(seq, self.nodes[entry_path(seq)].value).changes, seq)
        for changed in self._observers:
            changed(old, self.image)
