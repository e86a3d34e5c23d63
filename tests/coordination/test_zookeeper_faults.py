"""What the store does when its connection, its session or its ZooKeeper is lost."""

import asyncio
import contextlib
import random
import time
from collections.abc import AsyncIterator, Callable

import pytest

from conveyor.adapters.zookeeper.zookeeper_store import ZookeeperStore
from conveyor.kernel.errors import StorageFailure, StoreUnreachable
from conveyor.kernel.ports import ABSENT, CheckNode, PutNode, SessionState, Versioned
from tests.coordination.conftest import OpenStore
from tests.coordination.tcp_proxy import CONNECT, SYNC, TRANSACTION, TcpProxy
from tests.coordination.zookeeper_process import ZookeeperProcess

CONNECTED, SUSPENDED, LOST = SessionState.CONNECTED, SessionState.SUSPENDED, SessionState.LOST


class States:
    """The states that a store has reported."""

    def __init__(self, store: ZookeeperStore) -> None:
        self.seen: list[SessionState] = []
        self._changed = asyncio.Event()
        store.listen(self._note)

    async def wait_for(self, state: SessionState) -> None:
        while not self.seen or self.seen[-1] is not state:
            self._changed.clear()
            await self._changed.wait()

    def _note(self, state: SessionState) -> None:
        self.seen.append(state)
        self._changed.set()


class Watched:
    """Counts how often a watch fires."""

    def __init__(self) -> None:
        self.count = 0
        self.fired = asyncio.Event()

    def __call__(self) -> None:
        self.count += 1
        self.fired.set()


@pytest.fixture
async def proxy(zookeeper: ZookeeperProcess) -> AsyncIterator[TcpProxy]:
    proxy = await TcpProxy(zookeeper.port).start()
    yield proxy
    await proxy.stop()


@pytest.fixture
async def store(proxy: TcpProxy, root: str, open_store: OpenStore) -> ZookeeperStore:
    return await open_store(f"zookeeper://127.0.0.1:{proxy.port}{root}")


@pytest.fixture
async def other(address: str, open_store: OpenStore) -> ZookeeperStore:
    """Another session, which nothing disturbs."""
    return await open_store(address)


async def wait_until_gone(store: ZookeeperStore, path: str) -> Watched:
    """Wait for a node to be deleted. Returns the watch that has seen it."""
    watched = Watched()
    while await store.get(path, watched) is not None:
        await watched.fired.wait()
        watched.fired.clear()
    return watched


async def test_cut_connection_fires_every_watch_and_keeps_the_session(store: ZookeeperStore, proxy: TcpProxy) -> None:
    states, watches = States(store), [Watched() for _ in range(4)]
    await store.commit(PutNode("/live", b"", ephemeral=True))
    await store.get("/live", watches[0])
    await store.get("/missing", watches[1])
    await store.children("/", watches[2])
    await store.children("/missing", watches[3])
    proxy.cut()
    await asyncio.gather(*(watched.fired.wait() for watched in watches))
    proxy.heal()
    await states.wait_for(CONNECTED)
    assert await store.get("/live") == Versioned(b"", 1)
    assert states.seen == [SUSPENDED, CONNECTED]
    assert [watched.count for watched in watches] == [1] * 4


async def test_each_connection_begins_with_a_sync(store: ZookeeperStore, proxy: TcpProxy) -> None:
    states = States(store)
    proxy.cut()
    await states.wait_for(SUSPENDED)
    read = asyncio.ensure_future(store.get("/a"))
    proxy.heal()
    await read
    begun = [requests[:2] for requests in proxy.requests if requests[1:]]  # Others ended before they were answered.
    assert begun == [[CONNECT, SYNC]] * 2


async def test_session_expires_while_the_connection_is_cut(
    store: ZookeeperStore, other: ZookeeperStore, proxy: TcpProxy
) -> None:
    states = States(store)
    await store.commit(PutNode("/live", b"", ephemeral=True))
    proxy.cut()
    await other.commit(PutNode("/changed", b"meanwhile"))
    gone = await wait_until_gone(other, "/live")
    proxy.heal()
    await states.wait_for(CONNECTED)
    assert states.seen == [SUSPENDED, LOST, CONNECTED]
    assert (await store.get("/live"), await store.get("/changed")) == (None, Versioned(b"meanwhile", 1))
    await store.commit(PutNode("/live", b"again", ephemeral=True))
    assert await other.get("/live") == Versioned(b"again", 1)
    assert gone.count == 2, "it was deleted once and created once"


async def test_commit_whose_reply_is_lost_has_happened(
    store: ZookeeperStore, other: ZookeeperStore, proxy: TcpProxy
) -> None:
    states = States(store)
    proxy.lose_replies_to(TRANSACTION)
    with pytest.raises(StorageFailure, match="metadata store: ZooKeeper at"):
        await store.commit(PutNode("/a", b"1"))
    assert await other.get("/a") == Versioned(b"1", 1)
    proxy.heal()
    await states.wait_for(CONNECTED)
    assert await store.commit(PutNode("/a", b"2", 1)) == (2,)


async def test_commit_that_does_not_arrive_has_not_happened(
    store: ZookeeperStore, other: ZookeeperStore, proxy: TcpProxy
) -> None:
    states = States(store)
    proxy.stall()
    with pytest.raises(StorageFailure):
        await store.commit(PutNode("/a", b"1"))
    await states.wait_for(SUSPENDED)
    proxy.heal()
    await states.wait_for(CONNECTED)
    await store.sync()
    assert (await store.get("/a"), await other.get("/a")) == (None, None)


async def test_stalled_connection_is_noticed_under_a_stream_of_requests(store: ZookeeperStore, proxy: TcpProxy) -> None:
    """kazoo looks for a dead server only while it has nothing to send."""
    states = States(store)
    proxy.stall()
    reads = [asyncio.ensure_future(store.get(f"/{number}")) for number in range(300)]
    await states.wait_for(SUSPENDED)
    assert {type(result) for result in await asyncio.gather(*reads, return_exceptions=True)} == {StoreUnreachable}
    proxy.heal()
    await states.wait_for(CONNECTED)
    assert await store.get("/a") is None


async def test_calls_wait_for_a_short_interruption_and_then_fail_at_once(
    store: ZookeeperStore, proxy: TcpProxy
) -> None:
    states, loop = States(store), asyncio.get_running_loop()
    proxy.cut()
    await states.wait_for(SUSPENDED)
    begun = loop.time()
    with pytest.raises(StorageFailure, match="no connection"):
        await store.get("/a")
    assert loop.time() - begun <= 1.1 * store.session_timeout_ms / 1000
    begun = loop.time()
    with pytest.raises(StorageFailure, match="no connection"):
        await store.commit(PutNode("/a", b""))
    assert loop.time() - begun < 0.1
    proxy.heal()
    await states.wait_for(CONNECTED)
    assert await store.commit(PutNode("/a", b"")) == (1,)


async def test_reply_that_cannot_be_read_ends_the_session(store: ZookeeperStore, proxy: TcpProxy) -> None:
    """kazoo then gives up. The session is LOST only when its ephemeral nodes are gone."""
    states, watched = States(store), Watched()
    await store.commit(PutNode("/live", b"", ephemeral=True))
    await store.get("/a", watched)
    proxy.send((2).to_bytes(4) + b"no")
    await states.wait_for(CONNECTED)
    assert (states.seen, watched.count) == ([SUSPENDED, LOST, CONNECTED], 1)
    assert await store.commit(CheckNode("/live", ABSENT), PutNode("/a", b"")) == (0, 1)


async def test_store_closes_while_it_gives_up_a_session(store: ZookeeperStore, proxy: TcpProxy) -> None:
    states = States(store)
    proxy.send((2).to_bytes(4) + b"no")
    await states.wait_for(SUSPENDED)
    await store.close()
    assert states.seen == [SUSPENDED]


async def test_no_commit_is_lost_or_done_twice_while_connections_break(
    store: ZookeeperStore, other: ZookeeperStore, proxy: TcpProxy
) -> None:
    """Each commit adds one. After a failure, `sync` settles whether it has happened."""
    seed = random.randrange(1 << 32)
    chance, failures = random.Random(seed), 0
    await store.commit(PutNode("/count", b"0"))
    proxy.cut_after(lambda: chance.randint(4, 30))
    proxy.cut()
    proxy.accept()
    for number in range(60):
        while (count := await reading(store, "/count")) is not None and int(count.value) == number:
            try:
                await store.commit(PutNode("/count", b"%d" % (number + 1), count.version), PutNode(f"/{number}", b""))
            except StorageFailure:
                failures += 1
        assert count is None or int(count.value) == number + 1, seed
    nodes = await other.tree("/")
    assert nodes == {"/count": Versioned(b"60", 61)} | {f"/{number}": Versioned(b"", 1) for number in range(60)}, seed
    assert failures, seed


async def reading(store: ZookeeperStore, path: str) -> Versioned | None:
    """Read the newest state, however often the connection breaks."""
    while True:
        with contextlib.suppress(StorageFailure):
            await store.sync()
            return await store.get(path)


async def test_killed_zookeeper_is_found_again(own_zookeeper: ZookeeperProcess, open_store: OpenStore) -> None:
    store = await open_store(f"zookeeper://{own_zookeeper.server}/x")
    states = States(store)
    await store.commit(PutNode("/a", b"kept"), PutNode("/live", b"", ephemeral=True))
    own_zookeeper.kill()
    await states.wait_for(SUSPENDED)
    with pytest.raises(StorageFailure, match="no connection"):
        await store.sync()
    await asyncio.to_thread(own_zookeeper.start)
    await states.wait_for(CONNECTED)
    assert await store.get("/a") == Versioned(b"kept", 1)
    assert await store.commit(CheckNode("/a", 1), PutNode("/a", b"new")) == (0, 2)


async def test_paused_zookeeper_is_found_again(own_zookeeper: ZookeeperProcess, open_store: OpenStore) -> None:
    """A stopped process accepts connections and answers nothing."""
    store = await open_store(f"zookeeper://{own_zookeeper.server}/x")
    states = States(store)
    own_zookeeper.pause()
    try:
        commit = asyncio.ensure_future(store.commit(PutNode("/a", b"")))
        await states.wait_for(SUSPENDED)
        with pytest.raises(StorageFailure):
            await commit
    finally:
        own_zookeeper.resume()
    await states.wait_for(CONNECTED)
    await store.sync()
    assert await store.get("/a") in (None, Versioned(b"", 1))


@pytest.mark.parametrize("fault", [TcpProxy.cut, TcpProxy.stall])
async def test_store_closes_without_its_zookeeper(
    store: ZookeeperStore, proxy: TcpProxy, fault: Callable[[TcpProxy], None]
) -> None:
    states, watched = States(store), Watched()
    await store.get("/a", watched)
    fault(proxy)
    await store.close()
    assert (states.seen, watched.count) == ([], 0)
    with pytest.raises(StorageFailure):
        await store.get("/a")


async def test_session_ends_when_the_event_loop_hangs(address: str, open_store: OpenStore) -> None:
    """Although kazoo has a thread of its own, which could keep the session alive."""
    store = await open_store(address)
    states = States(store)
    await store.commit(PutNode("/live", b"", ephemeral=True))
    time.sleep(3 * store.session_timeout_ms / 1000)  # noqa: ASYNC251 - the loop hangs
    await states.wait_for(SUSPENDED)
    await states.wait_for(CONNECTED)
    assert states.seen == [SUSPENDED, LOST, CONNECTED]
    assert await store.get("/live") is None


async def test_session_survives_when_the_event_loop_hangs_for_less_than_a_timeout(
    address: str, open_store: OpenStore
) -> None:
    store = await open_store(address)
    await store.commit(PutNode("/live", b"", ephemeral=True))
    time.sleep(0.6 * store.session_timeout_ms / 1000)  # noqa: ASYNC251 - the loop hangs
    assert await store.get("/live") is not None
