"""The store on ZooKeeper, beyond what every store promises: addresses, credentials, TLS, limits, concurrency."""

import asyncio
import logging
import ssl
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from conveyor.adapters.zookeeper.zookeeper_address import parse_zookeeper_address
from conveyor.adapters.zookeeper.zookeeper_store import MAX_REQUEST_BYTES, ZookeeperStore, open_zookeeper_store
from conveyor.adapters.zookeeper.zookeeper_tls import ZookeeperTls
from conveyor.kernel.errors import SettingsError, StorageFailure
from conveyor.kernel.ports import DeleteNode, PutNode, Versioned
from tests.coordination.conftest import OpenStore
from tests.coordination.tcp_proxy import TcpProxy
from tests.coordination.zookeeper_process import ZookeeperProcess

CERTIFICATE = Path(__file__).with_name("tls") / "cert.pem"
KEY = Path(__file__).with_name("tls") / "key.pem"


@pytest.fixture
async def tls_proxy(zookeeper: ZookeeperProcess) -> AsyncIterator[TcpProxy]:
    """A ZooKeeper that speaks TLS, and asks clients for a certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(CERTIFICATE, KEY)
    context.load_verify_locations(CERTIFICATE)
    context.verify_mode = ssl.CERT_REQUIRED
    proxy = await TcpProxy(zookeeper.port, context).start()
    yield proxy
    await proxy.stop()


async def test_root_is_created_and_keeps_stores_apart(zookeeper: ZookeeperProcess, open_store: OpenStore) -> None:
    base = f"zookeeper://{zookeeper.server}/roots"
    one, other = await open_store(f"{base}/one/deep"), await open_store(f"{base}/one")
    await one.commit(PutNode("/a", b"1"))
    assert await other.tree("/") == {"/deep": Versioned(b"", 1), "/deep/a": Versioned(b"1", 1)}
    assert await one.commit(DeleteNode("/a", 1)) == (0,)


async def test_store_at_the_root_hides_the_nodes_of_zookeeper_itself(
    own_zookeeper: ZookeeperProcess, open_store: OpenStore
) -> None:
    store = await open_store(f"zookeeper://{own_zookeeper.server}")
    await store.commit(PutNode("/a/b", b""))
    assert await store.children("/") == ["a"]
    assert list(await store.tree("/")) == ["/a", "/a/b"]


async def test_nodes_belong_to_the_user_who_creates_them(
    zookeeper: ZookeeperProcess, root: str, open_store: OpenStore, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    owner = await open_store(f"zookeeper://owner:s%40cret@{zookeeper.server}{root}")
    await owner.commit(PutNode("/a", b"1"))
    assert await owner.get("/a") == Versioned(b"1", 1)
    for stranger in (f"zookeeper://other:pw@{zookeeper.server}{root}", f"zookeeper://{zookeeper.server}{root}"):
        with pytest.raises(StorageFailure, match=r"no connection \(NoAuthError: the nodes belong to"):
            await open_zookeeper_store(parse_zookeeper_address(stranger), session_timeout_ms=2_000, wait_s=0.5)
    assert "s@cret" not in caplog.text


async def test_connection_by_tls(tls_proxy: TcpProxy, root: str) -> None:
    tls = ZookeeperTls(ca_file=str(CERTIFICATE), cert_file=str(CERTIFICATE), key_file=str(KEY))
    address = parse_zookeeper_address(f"zookeeper://localhost:{tls_proxy.port}{root}")
    store = await open_zookeeper_store(address, session_timeout_ms=2_000, tls=tls)
    assert await store.commit(PutNode("/a", bytes(500_000))) == (1,)
    assert await store.get("/a") == Versioned(bytes(500_000), 1)
    await store.close()


@pytest.mark.parametrize("tls", [ZookeeperTls(), ZookeeperTls(ca_file=str(CERTIFICATE)), None])
async def test_connection_fails_if_certificates_do_not_match(
    tls_proxy: TcpProxy, root: str, tls: ZookeeperTls | None
) -> None:
    """The server's is unknown; the client has none; the client does not use TLS."""
    address = parse_zookeeper_address(f"zookeeper://localhost:{tls_proxy.port}{root}")
    with pytest.raises(StorageFailure, match="no connection"):
        await open_zookeeper_store(address, session_timeout_ms=2_000, tls=tls, wait_s=1.0)


def test_certificate_that_cannot_be_read_is_a_failure_that_names_the_setting() -> None:
    with pytest.raises(SettingsError, match=r"/nowhere/ca.pem \(zookeeper.tls_ca_file\) cannot be used: No such"):
        ZookeeperTls(ca_file="/nowhere/ca.pem")


async def test_commit_above_the_limit_is_refused_before_it_is_sent(address: str, open_store: OpenStore) -> None:
    store = await open_store(address)
    await store.commit(PutNode("/a", b""))
    room = MAX_REQUEST_BYTES - 100
    assert await store.commit(PutNode("/a", bytes(room))) == (2,)
    with pytest.raises(StorageFailure, match=f"above the limit of {MAX_REQUEST_BYTES} bytes for ZooKeeper: divide it"):
        await store.commit(PutNode("/a", b"x"), PutNode("/b", bytes(room)))
    assert list(await store.tree("/")) == ["/a"]
    assert await store.get("/a") == Versioned(bytes(room), 2)


async def test_zookeeper_that_is_not_there_is_a_failure_that_says_why() -> None:
    with pytest.raises(StorageFailure, match=r"ZooKeeper at 127\.0\.0\.1:1: no connection .*refused"):
        await open_zookeeper_store(
            parse_zookeeper_address("zookeeper://127.0.0.1:1/x"), session_timeout_ms=2_000, wait_s=0.5
        )


async def test_name_that_zookeeper_does_not_accept_is_a_failure(address: str, open_store: OpenStore) -> None:
    store = await open_store(address)
    with pytest.raises(StorageFailure, match="BadArguments"):
        await store.commit(PutNode("/a\x00b", b""))


async def test_long_session_that_the_server_grants_is_reported(
    tmp_path: Path, open_store: OpenStore, caplog: pytest.LogCaptureFixture
) -> None:
    stock = ZookeeperProcess(tmp_path, tick_ms=2_000).start()
    try:
        store = await open_store(f"zookeeper://{stock.server}/x")
        assert store.session_timeout_ms == 4_000
        assert "granted a session timeout of 4000 ms, 2000 ms were asked for" in caplog.text
        await store.close()
    finally:
        stock.kill()


async def test_commits_of_several_sessions_are_all_or_nothing(address: str, open_store: OpenStore) -> None:
    """Each adds one to a number, in two nodes."""
    stores = [await open_store(address) for _ in range(3)]
    await stores[0].commit(PutNode("/a", b"0"), PutNode("/b", b"0"))

    async def add(store: ZookeeperStore) -> None:
        while True:
            node = await store.get("/a")
            assert node is not None
            value = str(int(node.value) + 1).encode()
            if await store.commit(PutNode("/a", value, node.version), PutNode("/b", value)) is not None:
                return

    await asyncio.gather(*(add(store) for store in stores for _ in range(10)))
    assert await stores[0].tree("/") == {"/a": Versioned(b"30", 31), "/b": Versioned(b"30", 31)}


async def test_commits_that_create_and_delete_the_same_nodes_all_succeed(address: str, open_store: OpenStore) -> None:
    """Each finds other nodes than it has planned for, again and again."""
    stores = [await open_store(address) for _ in range(3)]

    async def churn(store: ZookeeperStore, number: int) -> None:
        for _ in range(10):
            assert await store.commit(PutNode(f"/d/{number}/x", b"")) is not None
            assert await store.commit(DeleteNode("/d"), PutNode(f"/{number}", b"")) is not None

    await asyncio.gather(*(churn(store, number) for number, store in enumerate(stores)))
    nodes = await stores[0].tree("/")
    assert [nodes[f"/{number}"].version for number in range(3)] == [10, 10, 10]
