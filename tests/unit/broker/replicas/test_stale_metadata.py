"""A broker starts by the newest metadata, also if the server of the metadata store that it reaches is behind."""

from collections.abc import Callable

from conveyor.kernel.ports import Versioned
from conveyor.testing.memory_store import MemoryStore, MemoryTree
from tests.unit.broker.replicas.brokers import SESSION_MS, BrokerCluster


class StoreBehind(MemoryStore):
    """A session with a server that shows earlier nodes until `sync`, or until it has caught up."""

    def __init__(self, tree: MemoryTree, earlier: dict[str, Versioned]) -> None:
        super().__init__(SESSION_MS, tree)
        self._earlier: dict[str, Versioned] | None = earlier

    async def get(self, path: str, changed: Callable[[], None] | None = None) -> Versioned | None:
        newest = await super().get(path, changed)
        return newest if self._earlier is None else self._earlier.get(path)

    async def tree(self, path: str) -> dict[str, Versioned]:
        nodes = await super().tree(path)
        return nodes if self._earlier is None else {name: node for name, node in self._earlier.items() if name in nodes}

    async def sync(self) -> None:
        await super().sync()
        self.catch_up()

    def catch_up(self) -> None:
        if self._earlier is not None:
            self._earlier = None
            self.shared.watches_of(self).fire_all()


def test_new_topic_that_the_first_server_does_not_show_keeps_its_records() -> None:
    """Its directory would be set aside as one of no topic, and its log would begin again."""
    cluster = BrokerCluster(2)
    one, _ = cluster.brokers
    earlier = dict(cluster.tree.nodes)
    cluster.create(replicas=(1,), config={"min.insync.replicas": "1"})
    assert one.publish() is None
    expected = one.records()
    one.kill()
    store = StoreBehind(cluster.tree, earlier)
    one.new_store = lambda: store
    cluster.loop.call_later(0.1, store.catch_up)
    one.start()
    cluster.until(lambda: one.partition().leader_term is not None)
    assert one.records() == expected
    assert one.disk.list("logs") == ["t-0"]
    cluster.stop()
