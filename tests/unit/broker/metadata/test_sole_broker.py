"""One broker for a metadata store that several processes can reach."""

import asyncio
from uuid import UUID, uuid4

import pytest

from conveyor.broker.metadata.sole_broker import ACTIVE_BROKER_PATH, SoleBroker
from conveyor.broker.tasks import Tasks
from conveyor.cluster.image import BrokerImage
from conveyor.kernel.errors import StartupError, StorageFailure
from conveyor.kernel.ids import NodeId
from conveyor.kernel.ports import DeleteNode, PutNode
from conveyor.testing.memory_store import MemoryStore

BROKER = BrokerImage(node_id=NodeId(1), host="broker.example", port=9092, rack=None)
OTHER = b'{"node_id":2,"host":"other.example","port":9093,"incarnation":"00000000-0000-0000-0000-000000000001"}'


class Displaced:
    """What a broker is stopped with."""

    def __init__(self) -> None:
        self.failures: list[BaseException] = []
        self.changed = asyncio.Event()

    def __call__(self, failure: BaseException) -> None:
        self.failures.append(failure)
        self.changed.set()


def sole_broker(store: MemoryStore, displaced: Displaced, incarnation: UUID | None = None) -> SoleBroker:
    return SoleBroker(store, Tasks(displaced), lambda: incarnation or uuid4(), displaced)


async def changed(store: MemoryStore) -> None:
    """Wait until the node has changed."""
    gone = asyncio.Event()
    await store.get(ACTIVE_BROKER_PATH, gone.set)
    await gone.wait()


async def test_embedded_store_is_left_as_it_is() -> None:
    store = MemoryStore()
    await sole_broker(store, Displaced()).claim(BROKER)
    assert await store.tree("/") == {}


async def test_second_broker_is_told_who_is_there() -> None:
    store = MemoryStore(session_timeout_ms=10)
    await store.commit(PutNode(ACTIVE_BROKER_PATH, OTHER))
    with pytest.raises(
        StartupError, match=r"^broker 2 at other.example:9093 uses this metadata store, which serves one"
    ):
        await sole_broker(store, Displaced()).claim(BROKER)


async def test_broker_waits_for_the_end_of_an_earlier_session() -> None:
    store = MemoryStore(session_timeout_ms=60_000)
    await store.commit(PutNode(ACTIVE_BROKER_PATH, OTHER))
    claim = asyncio.ensure_future(sole_broker(store, Displaced()).claim(BROKER))
    await asyncio.sleep(0)
    assert not claim.done()
    await store.commit(DeleteNode(ACTIVE_BROKER_PATH))
    await claim
    node = await store.get(ACTIVE_BROKER_PATH)
    assert node is not None
    assert b"broker.example" in node.value


async def test_broker_that_kept_its_session_stays() -> None:
    store, displaced = MemoryStore(session_timeout_ms=2_000), Displaced()
    await sole_broker(store, displaced).claim(BROKER)
    before = await store.get(ACTIVE_BROKER_PATH)
    store.cut()
    store.reconnect()
    await store.sync()
    assert (await store.get(ACTIVE_BROKER_PATH), displaced.failures) == (before, [])


async def test_broker_registers_again_after_a_lost_session() -> None:
    store, displaced = MemoryStore(session_timeout_ms=2_000), Displaced()
    await sole_broker(store, displaced).claim(BROKER)
    before = await store.get(ACTIVE_BROKER_PATH)
    store.cut()
    store.expire()
    store.reconnect()
    await changed(store)
    assert (await store.get(ACTIVE_BROKER_PATH), displaced.failures) == (before, [])


async def test_broker_that_another_has_replaced_stops() -> None:
    store, displaced = MemoryStore(session_timeout_ms=2_000), Displaced()
    await sole_broker(store, displaced).claim(BROKER)
    await store.commit(DeleteNode(ACTIVE_BROKER_PATH), PutNode(ACTIVE_BROKER_PATH, OTHER))
    store.cut()
    store.reconnect()
    await displaced.changed.wait()
    [failure] = displaced.failures
    assert "broker 2 at other.example:9093 has taken its place" in str(failure)


async def test_damaged_node_is_named() -> None:
    store = MemoryStore(session_timeout_ms=2_000)
    await store.commit(PutNode(ACTIVE_BROKER_PATH, b"{"))
    with pytest.raises(StorageFailure, match="node /active-broker is damaged"):
        await sole_broker(store, Displaced()).claim(BROKER)
