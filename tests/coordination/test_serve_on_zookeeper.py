"""A broker process whose metadata is in a ZooKeeper: restarts, a second broker, outages, an expired session."""

import asyncio
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import msgspec
import pytest

from conveyor.adapters.zookeeper.zookeeper_store import ZookeeperStore
from conveyor.broker.metadata.broker_session import BROKERS_PATH, registration_path
from conveyor.cluster.controller.registrations import Registration
from conveyor.kernel.ids import NodeId
from conveyor.kernel.ports import ABSENT, PutNode
from tests.coordination.conftest import OpenStore
from tests.coordination.tcp_proxy import TcpProxy
from tests.coordination.zookeeper_process import ZookeeperProcess
from tests.processes import BrokerProcess

FREE = ("--kafka", "127.0.0.1:0", "--http", "127.0.0.1:0")


class Rest:
    """Requests to a broker, on a thread of their own, each on a connection of its own."""

    def __init__(self, broker: BrokerProcess) -> None:
        self._broker = broker

    async def ask(self, method: str, path: str, body: object = None) -> tuple[int, Any]:
        return await asyncio.to_thread(self._ask, method, path, body)

    async def publish(self, text: str) -> None:
        assert (await self.ask("POST", "/topics/t/messages", {"text": text}))[0] == 201

    async def texts(self) -> list[str]:
        _, page = await self.ask("GET", "/topics/t/messages?from=earliest&limit=100")
        return [msgspec.json.decode(message["payload"])["text"] for message in page["messages"]]

    async def texts_when_possible(self) -> list[str]:
        """The same, once the broker leads again: it resigns when its session has ended."""
        while (await self.ask("GET", "/topics/t/messages?from=earliest&limit=1"))[0] == 503:
            pass
        return await self.texts()

    async def create(self, topic: str) -> tuple[int, Any]:
        return await self.ask("POST", "/topics", {"name": topic})

    async def create_when_possible(self, topic: str) -> None:
        while (await self.create(topic))[0] != 201:
            pass

    def _ask(self, method: str, path: str, body: object) -> tuple[int, Any]:
        connection = HTTPConnection(self._broker.http, timeout=60)
        try:
            connection.request(method, path, msgspec.json.encode(body), {"Content-Type": "application/json"})
            response = connection.getresponse()
            return response.status, msgspec.json.decode(response.read() or b"null")
        finally:
            connection.close()


@pytest.fixture
def broker(tmp_path: Path, address: str) -> Iterator[BrokerProcess]:
    process = BrokerProcess(tmp_path / "data", "--metadata", address).start()
    yield process
    process.end()


@pytest.fixture
async def store(address: str, open_store: OpenStore) -> ZookeeperStore:
    """Another client of the broker's nodes."""
    return await open_store(address)


@pytest.fixture
async def proxy(zookeeper: ZookeeperProcess) -> AsyncIterator[TcpProxy]:
    proxy = await TcpProxy(zookeeper.port).start()
    yield proxy
    await proxy.stop()


async def incarnation(store: ZookeeperStore) -> str | None:
    """The incarnation that has registered; None if there is none."""
    names = await store.children(BROKERS_PATH)
    return names[0].partition(".")[2] if names else None


async def wait_for(store: ZookeeperStore, *, registered: bool) -> None:
    """Wait until a broker has registered, or until its session has ended."""
    changed = asyncio.Event()
    while bool(await store.children(BROKERS_PATH, changed.set)) is not registered:
        await changed.wait()
        changed.clear()


def error_of(*arguments: str) -> str:
    """Return the last line of a broker that does not start."""
    command = [sys.executable, "-m", "conveyor.cli.main", "serve", *FREE, *arguments]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (ended.returncode, ended.stdout) == (1, ""), ended.stderr
    return ended.stderr.splitlines()[-1]


@pytest.mark.parametrize("kills", [False, True])
async def test_restarted_broker_finds_its_metadata(broker: BrokerProcess, store: ZookeeperStore, kills: bool) -> None:
    rest = Rest(broker)
    assert (await rest.create("t"))[0] == 201
    await rest.publish("before")
    if kills:
        broker.kill()
    else:
        assert await asyncio.to_thread(broker.stop) == 0
        assert await incarnation(store) is None, "a broker that stops ends its session"
    await asyncio.to_thread(broker.start)
    await rest.publish("after")
    assert await rest.texts() == ["before", "after"]
    assert await store.get("/log/head") is not None


async def test_second_broker_with_the_same_id_is_refused(broker: BrokerProcess, address: str, tmp_path: Path) -> None:
    error = await asyncio.to_thread(error_of, "--metadata", address, "--data-dir", str(tmp_path / "other"))
    assert error.startswith(f"conveyor: broker 1 at {broker.kafka} is running, with another data directory: ")
    assert (await Rest(broker).create("t"))[0] == 201


async def test_data_directory_stays_with_its_metadata(
    broker: BrokerProcess, address: str, zookeeper: ZookeeperProcess, tmp_path: Path
) -> None:
    """Otherwise the broker would set aside the directories of all topics."""
    data = ("--data-dir", str(tmp_path / "data"))
    assert broker.stop() == 0
    assert "belongs to a cluster whose metadata is in a ZooKeeper" in await asyncio.to_thread(error_of, *data)
    elsewhere = ("--metadata", f"{address}/elsewhere")
    assert "and the metadata to cluster" in await asyncio.to_thread(error_of, *data, *elsewhere)
    embedded = BrokerProcess(tmp_path / "embedded" / "data")
    (tmp_path / "embedded").mkdir()
    assert embedded.start().stop() == 0
    error = await asyncio.to_thread(error_of, "--data-dir", str(tmp_path / "embedded" / "data"), *elsewhere)
    assert "has embedded metadata (metadata.sqlite)" in error


async def test_broker_serves_while_its_zookeeper_is_away(own_zookeeper: ZookeeperProcess, tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path / "data", "--metadata", f"zookeeper://{own_zookeeper.server}/conveyor")
    rest = Rest(broker)
    await asyncio.to_thread(broker.start)
    try:
        assert (await rest.create("t"))[0] == 201
        own_zookeeper.kill()
        await rest.publish("without")
        assert await rest.texts() == ["without"]
        status, problem = await rest.create("u")
        assert (status, problem["kind"], problem["retriable"]) == (503, "metadata_unavailable", True)
        await rest.publish("still without")
        await asyncio.to_thread(own_zookeeper.start)
        await rest.create_when_possible("u")
        assert await rest.texts_when_possible() == ["without", "still without"]
        assert broker.stop() == 0
    finally:
        broker.end()


async def test_broker_stops_and_starts_again_after_an_outage(own_zookeeper: ZookeeperProcess, tmp_path: Path) -> None:
    address = f"zookeeper://{own_zookeeper.server}/conveyor"
    broker = BrokerProcess(tmp_path / "data", "--metadata", address)
    rest = Rest(broker)
    await asyncio.to_thread(broker.start)
    try:
        assert (await rest.create("t"))[0] == 201
        await rest.publish("kept")
        own_zookeeper.kill()
        assert await asyncio.to_thread(broker.stop) == 0
        error = await asyncio.to_thread(error_of, "--metadata", address, "--data-dir", str(tmp_path / "data"))
        assert f"start it, or check --metadata {address}" in error
        await asyncio.to_thread(own_zookeeper.start)
        await asyncio.to_thread(broker.start)
        assert await rest.texts() == ["kept"]
    finally:
        broker.end()


async def test_broker_registers_again_when_its_session_has_expired(
    proxy: TcpProxy, store: ZookeeperStore, root: str, tmp_path: Path
) -> None:
    broker = BrokerProcess(tmp_path / "data", "--metadata", f"zookeeper://127.0.0.1:{proxy.port}{root}")
    rest = Rest(broker)
    await asyncio.to_thread(broker.start)
    try:
        first = await incarnation(store)
        proxy.cut()
        await wait_for(store, registered=False)
        proxy.heal()
        await wait_for(store, registered=True)
        assert await incarnation(store) != first
        await rest.create_when_possible("t")
        assert broker.stop() == 0
    finally:
        broker.end()


async def test_broker_that_only_the_others_can_replace_sends_clients_away(
    tmp_path: Path, broker: BrokerProcess, proxy: TcpProxy, root: str
) -> None:
    """Its session ends while it cannot reach the ZooKeeper, and the other broker tells it so."""
    cut_off = BrokerProcess(
        tmp_path / "other", "--node-id", "2", "--metadata", f"zookeeper://127.0.0.1:{proxy.port}{root}"
    )
    cut_off.use_log(tmp_path / "other.log")
    await asyncio.to_thread(cut_off.start)
    try:
        proxy.cut()
        rest = Rest(cut_off)
        while not (answer := await rest.ask("GET", "/readyz"))[1].get("cut_off"):
            pass
        assert (answer[0], "ended its registration" in answer[1]["cut_off"]) == (503, True)
        assert (await rest.ask("GET", "/topics"))[0] == 503
        reader, writer = await asyncio.open_connection(*cut_off.kafka.split(":"))
        assert await reader.read() == b"", "the connection is closed at once"
        writer.close()
        assert (await Rest(broker).ask("GET", "/readyz"))[0] == 200
        proxy.heal()
        while (await rest.ask("GET", "/readyz"))[0] != 200:
            pass
    finally:
        cut_off.end()


async def test_gateway_needs_neither_an_id_nor_a_data_directory(
    tmp_path: Path, broker: BrokerProcess, store: ZookeeperStore, address: str
) -> None:
    directory = tmp_path / "none"
    gateway = BrokerProcess(directory, "--gateway", "--metadata", address)
    gateway.use_log(tmp_path / "gateway.log")
    await asyncio.to_thread(gateway.start)
    try:
        rest = Rest(gateway)
        assert (await rest.create("t"))[0] == 201
        await rest.publish("through the gateway")
        assert await rest.texts() == await Rest(broker).texts() == ["through the gateway"]
        assert len(await store.children(BROKERS_PATH)) == 2
        assert await asyncio.to_thread(gateway.stop) == 0
        assert len(await store.children(BROKERS_PATH)) == 1
        assert not directory.exists()
    finally:
        gateway.end()
    assert "gateway joined node=" in broker.log()


async def test_paused_broker_that_another_has_replaced_stops(broker: BrokerProcess, store: ZookeeperStore) -> None:
    assert (await Rest(broker).create("t"))[0] == 201
    broker.send_signal(signal.SIGSTOP)
    try:
        await wait_for(store, registered=False)
        other = Registration(
            node_id=NodeId(1),
            host="other.example",
            port=9,
            incarnation="other",
            broker_epoch=7,
            boot_id="boot",
            data_id="other",
        )
        assert await store.commit(PutNode(registration_path(other), msgspec.json.encode(other), ABSENT)) == (1,)
    finally:
        broker.send_signal(signal.SIGCONT)
    assert await asyncio.to_thread(broker.wait) == 1
    assert "broker 1 at other.example:9 is running, with another data directory" in broker.log().splitlines()[-1]
