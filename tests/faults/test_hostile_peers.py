"""Hostile clients of the listener for other brokers: without the secret of the cluster, and with it.

`STRANGERS` and `STRANGER_SEED` in the environment are those of `test_hostile_strangers`. A client that has proved to
know the secret is a broker, and trusted; what it sends may be broken all the same, by a bug of another version.
"""

import logging
import os
import socket
import ssl
from collections.abc import Iterator
from random import Random

import pytest

from conveyor.adapters.peers.handshake import DialerHandshake
from conveyor.adapters.peers.link_certificate import link_certificate
from conveyor.adapters.peers.peer_framing import LENGTH
from conveyor.adapters.peers.tcp_peer_network import TcpPeerNetwork
from conveyor.kernel.ids import NodeId
from conveyor.kernel.peers import PeerCredentials, PeerIdentity, PeerService
from conveyor.testing import Cluster
from tests.faults.hostile_frames import damaged, no_tls, strange_frames
from tests.faults.test_hostile_strangers import SEED, WAIT_S, answers

ATTEMPTS = int(os.environ.get("STRANGERS", "100"))
STRANGER = PeerIdentity(NodeId(99), "stranger")


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(brokers=2) as running:
        yield running


class Peer:
    """The first broker of a cluster, as others dial it."""

    def __init__(self, cluster: Cluster) -> None:
        network = cluster.brokers[1]._started_server().peers
        assert isinstance(network, TcpPeerNetwork)
        assert network._credentials is not None
        self._address = network.host, network.port
        self.credentials = network._credentials

    def connect(self) -> socket.socket:
        return socket.create_connection(self._address, 60)

    def dial(self) -> ssl.SSLSocket:
        return link_certificate().dialer.wrap_socket(self.connect())

    def handshake(self, secret: bytes, random: Random) -> DialerHandshake:
        own = PeerCredentials(self.credentials.cluster_id, secret, lambda: STRANGER)
        wanted = self.credentials.identity()
        return DialerHandshake(own, wanted, random.choice(list(PeerService)), random.randbytes(32))

    def link(self, random: Random) -> ssl.SSLSocket:
        """Return a connection whose handshake is done."""
        connection, handshake = self.dial(), self.handshake(self.credentials.secret, random)
        handshake.certificate = connection.getpeercert(True)
        reply = handshake.begin()
        while not handshake.is_done:
            connection.sendall(reply)
            received = connection.recv(65_536)
            assert received, "the broker has refused a broker"
            reply = handshake.receive(received)
        return connection


def before_the_proof(peer: Peer, random: Random) -> bytes:
    """Return what a stranger sends, who knows everything but the secret."""
    hello = peer.handshake(random.randbytes(32), random).begin()
    whole = random.choice((hello, hello * 2, hello + random.randbytes(300), strange_frames(random), bytes(70_000)))
    return whole if random.random() < 0.3 or len(whole) < 2 else damaged(random, whole, 1)


def after_the_proof(random: Random) -> bytes:
    """Return frames of noise, of MessagePack that no request is, and lengths that are too high."""
    contents = (
        b"\x00",
        b"\xc1",
        b"\x91" * 3_000,
        b"\x93\x01\xa4none\x90",
        b"\xdf\xff\xff\xff\xff",
        random.randbytes(200),
    )
    frames = [LENGTH.pack(len(content)) + content for content in random.choices(contents, k=random.randrange(1, 4))]
    return b"".join(frames) + random.choice((b"", LENGTH.pack(0), LENGTH.pack(0xFFFFFFFF), random.randbytes(50)))


@pytest.mark.parametrize("is_proved", [False, True])
def test_hostile_peers_stop_no_broker(cluster: Cluster, is_proved: bool, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR)
    peer = Peer(cluster)
    for number in range(ATTEMPTS):
        random = Random(SEED + number)
        with peer.link(random) if is_proved else peer.dial() as connection:
            connection.settimeout(WAIT_S)
            sent = after_the_proof(random) if is_proved else before_the_proof(peer, random)
            assert peer.credentials.secret not in answers(connection, sent)
    check_quiet(cluster, caplog)


def test_bytes_that_are_no_tls_do_no_harm_among_brokers(cluster: Cluster, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR)
    peer = Peer(cluster)
    for number in range(ATTEMPTS):
        with peer.connect() as connection:
            connection.settimeout(WAIT_S)
            answers(connection, no_tls(Random(SEED + number)))
    check_quiet(cluster, caplog)


def check_quiet(cluster: Cluster, caplog: pytest.LogCaptureFixture) -> None:
    """No bug is logged, and the cluster has its brokers and no other."""
    errors = [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR]
    assert errors == [], f"STRANGER_SEED={SEED} STRANGERS={ATTEMPTS}"
    assert set(cluster.brokers[2].image().brokers) == {1, 2}
    cluster.wait_until_in_sync()
