"""A whole server on the test's event loop: its advertised address, its start and stop."""

import asyncio
import logging
import subprocess
import sys
from pathlib import Path

import pytest

from conveyor.kernel.errors import SettingsError, StartupError
from conveyor.kernel.ids import NodeId
from conveyor.kernel.peers import PeerAddress, PeerIdentity, PeerService
from conveyor.kernel.ports import Bytes
from conveyor.server.addresses import Address, bind, bound_address
from conveyor.server.server import Server
from conveyor.testing import MemoryDisk
from conveyor.testing.memory_store import MemoryStore, MemoryTree
from tests.unit.kafka_api.requests import API_VERSIONS, framed, request
from tests.unit.server.memory_server import running, server


async def advertised(made: Server) -> str:
    async with running(made):
        [broker] = made.broker.metadata.image.brokers.values()
        return f"{broker.host}:{broker.port}"


async def test_the_bound_address_is_advertised() -> None:
    made = server()
    assert await advertised(made) == str(made.kafka_address)


async def test_the_advertised_setting_is_advertised() -> None:
    assert await advertised(server(network__advertised="broker.example:19092")) == "broker.example:19092"


async def test_a_wildcard_is_never_advertised() -> None:
    endpoint = await advertised(server(network__kafka="0.0.0.0:0", network__insecure=True))
    assert not endpoint.startswith("0.0.0.0:")


async def test_other_brokers_are_told_where_to_find_this_one() -> None:
    made = server((MemoryDisk(), MemoryStore(session_timeout_ms=2_000)), network__insecure=True)
    async with running(made):
        [broker] = made.broker.metadata.image.brokers.values()
        assert broker.peer_host == "127.0.0.1"
        assert broker.http_url == f"http://{made.http_address}"
        _, writer = await asyncio.open_connection(broker.peer_host, broker.peer_port)
        writer.close()
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection(broker.peer_host, broker.peer_port)


async def test_brokers_of_a_cluster_let_each_other_in() -> None:
    tree = MemoryTree()
    one, two = (
        server((MemoryDisk(), tree.open_session(2_000)), broker__node_id=number, network__insecure=True)
        for number in (1, 2)
    )
    async with running(one), running(two):
        brokers = one.broker.metadata.image.brokers
        while 2 not in brokers:
            await asyncio.sleep(0.01)
            brokers = one.broker.metadata.image.brokers
        target = brokers[NodeId(2)]
        address = PeerAddress(PeerIdentity(NodeId(2), target.incarnation), target.peer_host, target.peer_port)
        ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        assert one.peers is not None
        link = await one.peers.dial(address, PeerService.CALLS, lambda _: _End(ended))
        link.close("seen")
        assert ended.result() == "seen"


class _End:
    def __init__(self, reason: asyncio.Future[str]) -> None:
        self._reason = reason

    def received(self, frame: Bytes) -> None:
        """Nothing is sent."""

    def ended(self, reason: str) -> None:
        self._reason.set_result(reason)


async def test_other_brokers_are_told_no_wildcard() -> None:
    storage = (MemoryDisk(), MemoryStore(session_timeout_ms=2_000))
    async with running(server(storage, network__peer="0.0.0.0:0")) as made:
        [broker] = made.broker.metadata.image.brokers.values()
        assert broker.peer_host not in ("", "0.0.0.0")


async def test_a_broker_with_embedded_metadata_has_no_listener_for_others() -> None:
    async with running(server()) as made:
        [broker] = made.broker.metadata.image.brokers.values()
        assert (broker.peer_host, broker.peer_port) == ("", 0)


async def test_a_port_for_other_brokers_that_is_in_use_is_named() -> None:
    bound = bind(Address("127.0.0.1", 0), "peer")
    storage = (MemoryDisk(), MemoryStore(session_timeout_ms=2_000))
    address = str(bound_address(bound))
    with pytest.raises(StartupError, match=r"in use by another process: .* --peer 127\.0\.0\.1:PORT"):
        await server(storage, network__peer=address).start()
    bound.close()


def test_a_broker_with_embedded_metadata_does_not_load_the_links_to_others() -> None:
    program = "import sys, conveyor.server.server\nassert 'conveyor.adapters.peers' not in sys.modules"
    subprocess.run([sys.executable, "-c", program], check=True)


@pytest.mark.parametrize("which", ["network.kafka", "network.http", "network.advertised"])
async def test_a_wrong_address_is_named(which: str) -> None:
    with pytest.raises(SettingsError, match=f"setting '{which}' is 'nowhere'"):
        await server(None, **{which.replace(".", "__"): "nowhere"}).start()


async def test_an_address_open_to_other_machines_is_refused() -> None:
    with pytest.raises(SettingsError, match=r"^--http 0\.0\.0\.0:0 can be reached from other machines"):
        await server(network__http="0.0.0.0:0").start()


async def test_a_start_that_fails_leaves_nothing_open(tmp_path: Path) -> None:
    (tmp_path / "metadata.sqlite").write_bytes(b"this is no database, whatever its name says")
    failed = server(tmp_path)
    with pytest.raises(StartupError, match=r"the data directory cannot be used: .*not a database"):
        await failed.start()
    bind(failed.kafka_address, "kafka").close()
    (tmp_path / "metadata.sqlite").unlink()
    async with running(server(tmp_path)):
        pass


@pytest.mark.parametrize("library", ["kazoo", "joserfc", "cryptography", "wsproto", "h11"])
def test_library_is_not_loaded_without_need(library: str) -> None:
    """kazoo is for ZooKeeper, joserfc for tokens, cryptography for certificates and tokens, wsproto for WebSockets."""
    program = f"import sys, conveyor.server.server, conveyor.http.engine.site\nassert {library!r} not in sys.modules"
    subprocess.run([sys.executable, "-c", program], check=True)


async def test_a_bug_stops_the_server(caplog: pytest.LogCaptureFixture) -> None:
    async def bug() -> None:
        raise AssertionError("this cannot be")

    with caplog.at_level(logging.CRITICAL):
        async with running(server()) as made:
            made.broker.tasks.start(bug())
            await made.stopping.wait()
    assert repr(made.failure) == "AssertionError('this cannot be')"
    assert "broker stops: unexpected error" in caplog.text


async def test_a_stop_closes_the_connections_of_clients() -> None:
    made = server()
    async with running(made):
        reader, writer = await asyncio.open_connection(*made.kafka_address)
        writer.write(framed(request(API_VERSIONS, 0)))
        assert await reader.read(1)
    await reader.read()
    assert reader.at_eof()
    writer.close()


def test_one_broker_does_not_pass_for_several_workers() -> None:
    with pytest.raises(SettingsError, match=r"broker\.workers is 2, and this process is one broker"):
        server(broker__workers=2)
