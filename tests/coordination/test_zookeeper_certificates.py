"""A ZooKeeper that takes only clients with certificates: who gets in, whose nodes they are, and changed files."""

import asyncio
import re
import socket
import ssl
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from http.client import HTTPConnection
from pathlib import Path

import pytest

from conveyor.adapters.tls.development_authority import DevelopmentAuthority, Issued
from conveyor.adapters.zookeeper.kazoo_bridge import LoopHandler, LoopWatch
from conveyor.adapters.zookeeper.zookeeper_address import parse_zookeeper_address
from conveyor.adapters.zookeeper.zookeeper_store import ZookeeperStore, open_zookeeper_store
from conveyor.adapters.zookeeper.zookeeper_tls import ZookeeperTls
from conveyor.kernel.errors import SettingsError, StorageFailure
from conveyor.kernel.ports import PutNode, SessionState, Versioned
from tests.certificates import write
from tests.coordination.zookeeper_process import SecurePort, ZookeeperProcess
from tests.processes import BrokerProcess

AUTHORITY, OTHER_AUTHORITY = DevelopmentAuthority.create(), DevelopmentAuthority.create()

OpenSecure = Callable[..., Awaitable[ZookeeperStore]]


class SecureZookeeper:
    """A server for 127.0.0.1 and `localhost` with the files of its clients, in a directory."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.ca_file = directory / "ca.pem"
        self.ca_file.write_bytes(AUTHORITY.issued.certificate)
        own = directory / "server.pem"
        issued = AUTHORITY.issue_for_broker(["127.0.0.1", "localhost"], 1)
        own.write_bytes(issued.key + issued.certificate)
        self._port = SecurePort(own, self.ca_file)
        self.process = ZookeeperProcess(directory / "data", secure=self._port)

    def address(self, root: str, user: str = "", host: str = "127.0.0.1") -> str:
        return f"zookeeper://{user}{host}:{self._port.port}{root}"

    def tls(self, issued: Issued | None, name: str = "client") -> ZookeeperTls:
        """Return what a client uses who shows this certificate."""
        if issued is None:
            return ZookeeperTls(ca_file=str(self.ca_file))
        cert_file, key_file = write(self._directory, name, issued)
        return ZookeeperTls(ca_file=str(self.ca_file), cert_file=cert_file, key_file=key_file)


@pytest.fixture(scope="module")
def secure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecureZookeeper]:
    secure = SecureZookeeper(tmp_path_factory.mktemp("secure"))
    secure.process.start()
    yield secure
    secure.process.kill()


@pytest.fixture
async def open_secure() -> AsyncIterator[OpenSecure]:
    opened: list[ZookeeperStore] = []

    async def open_at(address: str, tls: ZookeeperTls | None, *, sets_acl: bool = False) -> ZookeeperStore:
        parsed = parse_zookeeper_address(address)
        opened.append(await open_zookeeper_store(parsed, session_timeout_ms=2_000, tls=tls, sets_acl=sets_acl))
        return opened[-1]

    yield open_at
    for store in opened:
        await store.close()


def broker_certificate(name: str = "broker") -> Issued:
    return AUTHORITY.issue_for_client(name, 1)


async def failure(address: str, tls: ZookeeperTls | None, *, sets_acl: bool = False) -> str:
    """Return why a store cannot be opened, once the server has refused it."""
    parsed = parse_zookeeper_address(address)
    while True:
        with pytest.raises(StorageFailure) as failed:
            await open_zookeeper_store(parsed, session_timeout_ms=2_000, tls=tls, sets_acl=sets_acl, wait_s=1.0)
        if "it has not answered yet" not in str(failed.value):
            return str(failed.value)


async def test_client_with_a_certificate_reads_writes_and_watches(
    secure: SecureZookeeper, root: str, open_secure: OpenSecure
) -> None:
    tls = secure.tls(broker_certificate())
    one, two = await open_secure(secure.address(root), tls), await open_secure(secure.address(root), tls)
    changed = asyncio.Event()
    assert await two.get("/a", changed.set) is None
    assert await one.commit(PutNode("/a", bytes(500_000))) == (1,)
    await changed.wait()
    assert await two.get("/a") == Versioned(bytes(500_000), 1)
    await asyncio.gather(*(one.commit(PutNode(f"/n/{number}", b"")) for number in range(100)))
    assert len(await two.tree("/n")) == 100


CLIENTS: dict[str, Callable[[], Issued | None]] = {
    "no certificate": lambda: None,
    "another authority": lambda: OTHER_AUTHORITY.issue_for_client("broker", 1),
    "expired": lambda: AUTHORITY.issue_for_client("broker", 0),
}


@pytest.mark.parametrize("name", CLIENTS)
async def test_client_without_a_good_certificate_does_not_connect(
    secure: SecureZookeeper, root: str, name: str
) -> None:
    reason = await failure(secure.address(root), secure.tls(CLIENTS[name](), "stranger"))
    assert re.search(r"no connection \(.* alert (bad certificate|certificate unknown)", reason), reason


async def test_client_without_tls_does_not_connect(secure: SecureZookeeper, root: str) -> None:
    assert "no connection" in await failure(secure.address(root), None)


async def test_server_for_another_name_or_of_another_authority_is_not_trusted(
    secure: SecureZookeeper, root: str, tmp_path: Path
) -> None:
    tls = secure.tls(broker_certificate())
    assert "not valid for '127.0.0.2'" in await failure(secure.address(root, host="127.0.0.2"), tls)
    (tmp_path / "other.pem").write_bytes(OTHER_AUTHORITY.issued.certificate)
    distrustful = ZookeeperTls(ca_file=str(tmp_path / "other.pem"))
    assert "certificate verify failed" in await failure(secure.address(root), distrustful)


async def test_nodes_belong_to_the_name_in_the_certificate(
    secure: SecureZookeeper, root: str, open_secure: OpenSecure
) -> None:
    owner = await open_secure(secure.address(root), secure.tls(broker_certificate()), sets_acl=True)
    await owner.commit(PutNode("/a", b"1"))
    renewed = secure.tls(broker_certificate(), "renewed")
    assert await (await open_secure(secure.address(root), renewed, sets_acl=True)).get("/a") == Versioned(b"1", 1)
    other = secure.tls(broker_certificate("other"), "other")
    for sets_acl in (True, False):
        reason = await failure(secure.address(root), other, sets_acl=sets_acl)
        assert "NoAuthError: the nodes belong to another user, or to the name of another certificate" in reason
    plain = f"zookeeper://{secure.process.server}{root}"
    assert "NoAuthError" in await failure(plain, None)


async def test_brokers_with_certificates_of_different_names_share_nodes_by_a_user(
    secure: SecureZookeeper, root: str, open_secure: OpenSecure
) -> None:
    address = secure.address(root, "conveyor:secret@")
    one = await open_secure(address, secure.tls(broker_certificate("b1"), "b1"))
    two = await open_secure(address, secure.tls(broker_certificate("b2"), "b2"))
    await one.commit(PutNode("/a", b"1"))
    await two.commit(PutNode("/a", b"2", 1))
    assert await one.get("/a") == Versioned(b"2", 2)
    assert "NoAuthError" in await failure(secure.address(root), secure.tls(broker_certificate("b3"), "b3"))


async def test_nodes_without_an_owner_stay_open_to_all_clients(
    secure: SecureZookeeper, root: str, open_secure: OpenSecure, caplog: pytest.LogCaptureFixture
) -> None:
    one = await open_secure(secure.address(root), secure.tls(broker_certificate("b1"), "b1"))
    await one.commit(PutNode("/a", b"1"))
    two = await open_secure(secure.address(root), secure.tls(broker_certificate("b2"), "b2"))
    assert await two.get("/a") == Versioned(b"1", 1)
    assert "every client of the ZooKeeper can read the secret" not in caplog.text
    late = await open_secure(secure.address(root), secure.tls(broker_certificate("b1"), "b1"), sets_acl=True)
    assert await late.get("/a") == Versioned(b"1", 1)
    assert "every client of the ZooKeeper can read the secret" in caplog.text


async def test_server_that_asks_for_no_certificate_gets_no_nodes_for_its_name(
    secure: SecureZookeeper, root: str
) -> None:
    reason = await failure(f"zookeeper://{secure.process.server}{root}", None, sets_acl=True)
    assert "InvalidACLError: the ZooKeeper has not seen who this broker is" in reason


async def test_changed_files_count_for_the_next_connection(tmp_path: Path, open_secure: OpenSecure) -> None:
    secure = SecureZookeeper(tmp_path)
    secure.process.start()
    try:
        tls = secure.tls(broker_certificate())
        store = await open_secure(secure.address("/x"), tls)
        before = tls.expires_at_s
        write(tmp_path, "client", OTHER_AUTHORITY.issue_for_client("broker", 30))
        tls.reload()
        assert tls.expires_at_s is not None
        assert before is not None
        assert tls.expires_at_s > before
        assert await store.commit(PutNode("/a", b"")) == (1,), "the connection is open"
        suspended, connected = asyncio.Event(), asyncio.Event()
        store.listen(lambda state: (connected if state is SessionState.CONNECTED else suspended).set())
        secure.process.kill()
        await suspended.wait()
        secure.ca_file.write_bytes(OTHER_AUTHORITY.issued.certificate + AUTHORITY.issued.certificate)
        await asyncio.to_thread(secure.process.start)
        await connected.wait()
        assert await store.get("/a") == Versioned(b"", 1)
    finally:
        secure.process.kill()


async def test_broker_runs_on_a_zookeeper_that_asks_for_certificates(
    secure: SecureZookeeper, root: str, tmp_path: Path
) -> None:
    cert_file, key_file = write(tmp_path, "broker", broker_certificate())
    settings = {
        "zookeeper.tls": "true",
        "zookeeper.tls_ca_file": secure.ca_file,
        "zookeeper.tls_cert_file": cert_file,
        "zookeeper.tls_key_file": key_file,
        "zookeeper.set_acl": "true",
    }
    options = [option for name, value in settings.items() for option in ("--set", f"{name}={value}")]
    broker = BrokerProcess(tmp_path / "data", "--metadata", secure.address(root, host="localhost"), *options)
    try:
        await asyncio.to_thread(broker.start)
        page = await asyncio.to_thread(_metrics, broker)
        assert 'conveyor_certificate_expires_seconds{shown_to="zookeeper"}' in page
        stranger = secure.tls(broker_certificate("stranger"), "stranger")
        assert "NoAuthError" in await failure(secure.address(root), stranger)
        assert broker.stop() == 0
        await asyncio.to_thread(broker.start)
        assert broker.stop() == 0
    finally:
        broker.end()


def _metrics(broker: BrokerProcess) -> str:
    connection = HTTPConnection(broker.http, timeout=60)
    connection.request("GET", "/metrics")
    page = connection.getresponse().read().decode()
    connection.close()
    return page


def test_files_of_a_client_that_cannot_be_used_are_named(tmp_path: Path) -> None:
    cert_file, _ = write(tmp_path, "client", broker_certificate())
    _, other_key = write(tmp_path, "other", broker_certificate())
    with pytest.raises(
        SettingsError, match=r"client\.pem \(zookeeper.tls_cert_file\).* cannot be used: key values mis"
    ):
        ZookeeperTls(cert_file=cert_file, key_file=other_key)
    server = write(tmp_path, "server", AUTHORITY.issue_for_broker(["localhost"], 1))
    with pytest.raises(
        SettingsError, match=r"a ZooKeeper would not take .*server\.pem .*unsuitable certificate purpose"
    ):
        ZookeeperTls(cert_file=server[0], key_file=server[1])
    assert ZookeeperTls().expires_at_s is None


async def test_reply_that_came_in_one_record_with_another_is_not_left_waiting(tmp_path: Path) -> None:
    """kazoo reads one reply, and then waits for the socket alone."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*write(tmp_path, "server", AUTHORITY.issue_for_broker(["localhost"], 1)))
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname, client.verify_mode = False, ssl.CERT_NONE
    ends = socket.socketpair()

    def serve() -> None:
        with context.wrap_socket(ends[0], server_side=True) as server:
            server.sendall(b"onetwo")
            server.recv(1)

    thread = threading.Thread(target=serve)
    thread.start()
    loop = asyncio.get_running_loop()
    handler = LoopHandler(loop, LoopWatch(loop), None)
    with client.wrap_socket(ends[1]) as reader:
        assert reader.recv(3) == b"one"
        assert handler.select([reader], [], [], 60) == ([reader], [], [])
        assert reader.recv(3) == b"two"
        assert handler.select([reader], [], [], 0) == ([], [], [])
        reader.sendall(b"!")
    thread.join()
