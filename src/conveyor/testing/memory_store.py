"""A metadata store in memory, which outlives the broker that uses it."""

from collections.abc import Callable

from conveyor.kernel.errors import DiskFull
from conveyor.kernel.ports import ANY_VERSION, Versioned


class MemoryStore:
    """See `conveyor.kernel.ports.MetadataStore`. is_full: changes fail with DiskFull."""

    def __init__(self) -> None:
        self.is_full = False
        self._nodes: dict[str, Versioned] = {}
        self._ephemeral: set[str] = set()
        self._watches: dict[object, tuple[str, Callable[[str], None]]] = {}

    async def get(self, path: str) -> Versioned | None:
        return self._nodes.get(path)

    async def children(self, path: str) -> list[str]:
        start = len(path.rstrip("/")) + 1
        return sorted({each[start:].partition("/")[0] for each in await self.tree(path)})

    async def tree(self, path: str) -> dict[str, Versioned]:
        prefix = path.rstrip("/") + "/"
        return {name: node for name, node in sorted(self._nodes.items()) if name.startswith(prefix)}

    async def put(self, path: str, value: bytes, version: int = ANY_VERSION, *, ephemeral: bool = False) -> int | None:
        current = self._nodes[path].version if path in self._nodes else 0
        if version not in (ANY_VERSION, current):
            return None
        self._check_room()
        self._nodes[path] = Versioned(value, current + 1)
        (self._ephemeral.add if ephemeral else self._ephemeral.discard)(path)
        self._changed(path)
        return current + 1

    async def delete(self, path: str, version: int = ANY_VERSION) -> bool:
        node = self._nodes.get(path)
        if node is None or version not in (ANY_VERSION, node.version):
            return False
        self._check_room()
        for name in [path, *await self.tree(path)]:
            del self._nodes[name]
        self._changed(path)
        return True

    def watch(self, path: str, changed: Callable[[str], None]) -> Callable[[], None]:
        handle = object()
        self._watches[handle] = (path, changed)

        def end() -> None:
            self._watches.pop(handle, None)

        return end

    async def close(self) -> None:
        """The session ends, and with it the ephemeral nodes."""
        for path in self._ephemeral:
            self._nodes.pop(path, None)
        self._ephemeral.clear()
        self._watches.clear()

    def _check_room(self) -> None:
        if self.is_full:
            raise DiskFull("metadata store: database or disk is full")

    def _changed(self, path: str) -> None:
        for watched, changed in list(self._watches.values()):
            if path == watched or path.startswith(watched.rstrip("/") + "/"):
                changed(path)
