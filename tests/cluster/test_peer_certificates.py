"""Three brokers that show certificates of an authority to each other: strangers, mixed settings, and rotation."""

import asyncio
import contextlib
import ssl
from collections.abc import Callable, Iterator
from http.client import HTTPConnection
from pathlib import Path

import pytest

from conveyor.adapters.tls.development_authority import DevelopmentAuthority, Issued
from tests.certificates import write
from tests.cluster.broker_cluster import BrokerCluster, peer_addresses
from tests.cluster.test_three_brokers import create, leader, produce, values
from tests.processes import BrokerProcess

NODES = (1, 2, 3)
AUTHORITY, OTHER_AUTHORITY = DevelopmentAuthority.create(), DevelopmentAuthority.create()
BOTH = AUTHORITY.issued.certificate + OTHER_AUTHORITY.issued.certificate


class PeerFiles:
    """The certificates of three brokers, each valid for the address that its broker announces, and their authority."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        directory.mkdir()
        self.issue(AUTHORITY, 30)
        self.trust(AUTHORITY.issued.certificate)

    def issue(self, authority: DevelopmentAuthority, days: int) -> None:
        """Give each broker a new certificate."""
        for number in NODES:
            host, _ = peer_addresses(number)[1]
            write(self.directory, f"broker-{number}", authority.issue_for_peer([host], days))

    def trust(self, authorities: bytes) -> None:
        (self.directory / "ca.pem").write_bytes(authorities)

    def options(self, number: int) -> tuple[str, ...]:
        own = self.directory / f"broker-{number}"
        return (
            *("--set", f"tls.peer_cert_file={own}.pem", "--set", f"tls.peer_key_file={own}.key"),
            *("--set", f"tls.peer_ca_file={self.directory / 'ca.pem'}"),
        )


@pytest.fixture
def files(tmp_path: Path) -> PeerFiles:
    return PeerFiles(tmp_path / "certificates")


@contextlib.contextmanager
def running(directory: Path, files: PeerFiles, *numbers: int) -> Iterator[BrokerCluster]:
    """Run three brokers, of whom these have certificates."""
    cluster = BrokerCluster(directory, own_options={number: files.options(number) for number in numbers})
    try:
        yield cluster.start()
    finally:
        cluster.end()


def reload(cluster: BrokerCluster, change: Callable[[], None]) -> None:
    """Change files, wait until all brokers have loaded them, and let all links begin anew."""
    loaded = [cluster.log(index).count("changed certificate loaded") for index in range(len(NODES))]
    change()
    for index, count in enumerate(loaded):
        while cluster.log(index).count("changed certificate loaded") == count:
            pass
    for one, other in ((1, 2), (1, 3), (2, 3)):
        cluster.reset_link(one, other)


def expires_in_days(cluster: BrokerCluster, index: int) -> float:
    connection = HTTPConnection(cluster.nodes[index].http, timeout=60)
    connection.request("GET", "/metrics")
    lines = connection.getresponse().read().decode().splitlines()
    connection.close()
    name = 'conveyor_certificate_expires_seconds{shown_to="brokers"} '
    return next(float(line.removeprefix(name)) for line in lines if line.startswith(name)) / 86_400


def test_certificates_and_their_authority_are_replaced_while_the_cluster_works(
    tmp_path: Path, files: PeerFiles
) -> None:
    with running(tmp_path, files, *NODES) as cluster:
        create(cluster)
        expected = ["first"]
        produce(cluster, expected)
        assert 29 < expires_in_days(cluster, 0) < 31
        changes: dict[str, Callable[[], None]] = {
            "new certificates": lambda: files.issue(AUTHORITY, 60),
            "another authority, too": lambda: files.trust(BOTH),
            "its certificates": lambda: files.issue(OTHER_AUTHORITY, 90),
            "it alone": lambda: files.trust(OTHER_AUTHORITY.issued.certificate),
        }
        for name, change in changes.items():
            reload(cluster, change)
            produce(cluster, [name])
            expected.append(name)
        assert all(89 < expires_in_days(cluster, index) < 91 for index in range(len(NODES)))
        dead = leader(cluster)
        dead.kill()
        produce(cluster, ["without its leader"])
        dead.start()
        assert values(cluster) == [*expected, "without its leader"]
        assert "peer refused" not in "".join(
            line for index in range(len(NODES)) for line in cluster.log(index).splitlines() if "TLS has failed" in line
        )


async def strange(address: tuple[str, int], certificate: Issued | None, directory: Path) -> bytes:
    """Connect to the listener for brokers with a certificate, and return what it answers to the first message."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    if certificate is not None:
        context.load_cert_chain(*write(directory, "stranger", certificate))
    reader, writer = await asyncio.open_connection(*address, ssl=context, server_hostname="")
    message = bytes.fromhex("92a568656c6c6fc420") + bytes(32)
    writer.write(b"CVPR\x02" + len(message).to_bytes(2, "big") + message)
    try:
        return await reader.read()
    except (ssl.SSLError, ConnectionResetError):
        return b""
    finally:
        writer.close()


def test_strangers_learn_nothing_and_keep_no_broker_out(tmp_path: Path, files: PeerFiles) -> None:
    strangers: dict[str, Issued | None] = {
        "no certificate": None,
        "another authority": OTHER_AUTHORITY.issue_for_peer(["127.0.0.1"], 1),
        "expired": AUTHORITY.issue_for_peer(["127.0.0.1"], 0),
        "a client's": AUTHORITY.issue_for_client("alice", 1),
    }
    with running(tmp_path, files, *NODES) as cluster:
        create(cluster)
        listener, _ = peer_addresses(1)
        for name, certificate in strangers.items():
            answer = asyncio.run(strange(listener, certificate, tmp_path))
            assert b"challenge" not in answer, name
            assert (b"refusal" in answer) == (name == "a client's"), name
        good = AUTHORITY.issue_for_peer(["127.0.0.1"], 1)
        assert b"challenge" in asyncio.run(strange(listener, good, tmp_path)), "the secret is asked for next"
        produce(cluster, ["still"])
        assert values(cluster) == ["still"]
        refusals = [line for line in cluster.log(0).splitlines() if "peer refused" in line]
        assert len(refusals) == 1, "the first one of a minute"
        assert "the peer has shown no certificate, as if its tls.peer_cert_file is not set" in refusals[0]


def test_broker_without_a_certificate_does_not_link_with_those_that_have_one(tmp_path: Path, files: PeerFiles) -> None:
    """The logs of both ends say why, the other two work."""
    with running(tmp_path, files, 1, 2) as cluster:
        create(cluster)
        produce(cluster, ["two of three"])
        assert values(cluster) == ["two of three"]
        while "tls.peer_cert_file is not set here" not in cluster.log(2):
            pass
        while not any("as if its tls.peer_cert_file is not set" in cluster.log(index) for index in (0, 1)):
            pass
        for index in range(len(NODES)):
            warnings = [line for line in cluster.log(index).splitlines() if " WARNING " in line]
            assert len([line for line in warnings if "peer refused" in line]) <= 2, "one a minute"
            assert len([line for line in warnings if "peer not dialled" in line]) <= 2, "one a minute"


def test_broker_whose_files_are_missing_does_not_start(tmp_path: Path, files: PeerFiles) -> None:
    with running(tmp_path, files, *NODES) as cluster:
        node = cluster.nodes[0]
        assert node.stop() == 0
        key = files.directory / "broker-1.key"
        content = key.read_bytes()
        key.unlink()
        assert _reason(node.process) == (
            f"the certificate {files.directory}/broker-1.pem (tls.peer_cert_file) with the key {key}"
            " (tls.peer_key_file) cannot be used: No such file or directory"
        )
        key.write_bytes(content)
        node.start()


def _reason(process: BrokerProcess) -> str:
    """Return why a broker does not start."""
    with pytest.raises(AssertionError):
        process.start()
    assert process.wait() == 1
    return process.log().splitlines()[-1].partition(": ")[2]
