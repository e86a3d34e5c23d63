"""One-shot watches of a metadata store that runs in this process."""

from collections.abc import Callable, Iterable

Watch = Callable[[], None]


class StoreWatches:
    """Watches of nodes and of the names below them. Each watch is called once, then removed."""

    def __init__(self) -> None:
        self._of_nodes: dict[str, list[Watch]] = {}
        self._of_children: dict[str, list[Watch]] = {}

    def add_to_node(self, path: str, watch: Watch | None) -> None:
        if watch is not None:
            self._of_nodes.setdefault(path, []).append(watch)

    def add_to_children(self, path: str, watch: Watch | None) -> None:
        if watch is not None:
            self._of_children.setdefault(path.rstrip("/"), []).append(watch)

    def fire(self, changed: Iterable[str], created_or_deleted: Iterable[str]) -> None:
        """Call the watches of changed nodes, and of the parents of created or deleted nodes."""
        due = [watch for path in changed for watch in self._of_nodes.pop(path, ())]
        for path in created_or_deleted:
            due += self._of_children.pop(path.rpartition("/")[0], ())
        for watch in due:
            watch()

    def fire_all(self) -> None:
        """Call every watch."""
        of_nodes, of_children = self._of_nodes, self._of_children
        self._of_nodes, self._of_children = {}, {}
        for watches in (*of_nodes.values(), *of_children.values()):
            for watch in watches:
                watch()
