"""TLS of a broker as the command line of OpenSSL sees it: versions, ciphers, compression, renegotiation, names.

At the listeners for Kafka and HTTP, and at that for other brokers, which speak TLS 1.3 alone.
"""

import asyncio
import re
import socket
import ssl
import subprocess
from collections.abc import AsyncIterator, Iterator

import pytest

from conveyor.adapters.peers.link_certificate import link_certificate
from conveyor.testing import Broker
from tests.certificates import Certificates
from tests.unit.adapters.peers.nodes import running

WEAKEST = "ALL:COMPLEMENTOFALL:@SECLEVEL=0"
"""All ciphers that OpenSSL has."""
HELLO_OF_SSL_3 = (
    b"\x16\x03\x00\x00\x2d"  # A record of 45 bytes,
    b"\x01\x00\x00\x29\x03\x00" + bytes(32) + b"\x00"  # a ClientHello without a session,
    b"\x00\x02\x00\x2f\x01\x00"  # with one cipher, and no compression.
)
ALERT, FATAL = 21, 2
PROTOCOL_VERSION = 70
"""Source: RFC 8446, 6."""


@pytest.fixture(scope="module")
def broker(certificates: Certificates) -> Iterator[Broker]:
    settings = certificates.settings("SSL://127.0.0.1:0") | {"network.http": "https://127.0.0.1:0"}
    with Broker(memory=True, settings=settings) as running:
        yield running


@pytest.fixture(params=["kafka", "http"])
def address(broker: Broker, request: pytest.FixtureRequest) -> str:
    """The address of a door."""
    return broker.bootstrap_servers if request.param == "kafka" else broker.http_url.removeprefix("https://")


class Connection:
    """A run of `openssl s_client`, which gives the broker some text. authority: checks the broker's certificate."""

    def __init__(self, address: str, authority: str | None, *arguments: str, given: str = "") -> None:
        checks = ["-CAfile", authority, "-verify_return_error", "-verify_ip", "127.0.0.1"] if authority else []
        command = ["openssl", "s_client", "-connect", address, *checks, *arguments]
        ended = subprocess.run(command, input=given, capture_output=True, text=True, timeout=60)
        self.is_good = ended.returncode == 0
        self.printed = ended.stdout + ended.stderr

    @property
    def cipher(self) -> str | None:
        """The cipher on which both sides agree."""
        found = re.search(r"^New, TLSv1\.\d, Cipher is (\S+)$", self.printed, re.MULTILINE)
        return None if found is None else found[1]


@pytest.mark.parametrize("arguments", [(), ("-tls1_2",)])
def test_handshake_is_good_and_without_compression(
    address: str, certificates: Certificates, arguments: tuple[str, ...]
) -> None:
    connection = Connection(address, certificates.authority, *arguments, "-comp")
    assert connection.is_good, connection.printed
    assert "Verify return code: 0 (ok)" in connection.printed
    assert "Compression: NONE" in connection.printed


@pytest.mark.parametrize("version", ["-tls1", "-tls1_1"])
def test_older_versions_are_refused_by_the_broker(address: str, certificates: Certificates, version: str) -> None:
    connection = Connection(address, certificates.authority, version, "-cipher", WEAKEST)
    assert not connection.is_good
    assert f"alert number {PROTOCOL_VERSION}" in connection.printed


def test_ssl_3_is_refused(address: str) -> None:
    host, _, port = address.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=60) as connection:
        connection.sendall(HELLO_OF_SSL_3)
        with connection.makefile("rb") as received:
            answer = received.read()
    assert (answer[0], answer[5]) == (ALERT, FATAL)


def test_ciphers_of_tls_1_2_authenticate_what_they_encrypt(address: str, certificates: Certificates) -> None:
    """The broker agrees on no other cipher than these, whatever a client offers."""
    offered, agreed = WEAKEST, []
    while cipher := Connection(address, certificates.authority, "-tls1_2", "-cipher", offered).cipher:
        agreed.append(cipher)
        offered = f"{WEAKEST}:!{':!'.join(agreed)}"
    assert {"ECDHE-ECDSA-AES128-GCM-SHA256", "ECDHE-ECDSA-AES256-GCM-SHA384"} <= set(agreed)
    assert all(re.fullmatch(r"ECDHE-ECDSA-(AES(128|256)-GCM|CHACHA20-POLY1305).*", cipher) for cipher in agreed), agreed


def test_renegotiation_is_refused(address: str, certificates: Certificates) -> None:
    """s_client asks for one when it is given an R."""
    connection = Connection(address, certificates.authority, "-tls1_2", given="R\n")
    assert not connection.is_good
    assert "RENEGOTIATING" in connection.printed
    assert "no renegotiation" in connection.printed


def test_name_that_a_client_asks_for_is_ignored(address: str, certificates: Certificates) -> None:
    """Whatever the name (SNI), all clients get the one certificate."""
    connection = Connection(address, certificates.authority, "-servername", "elsewhere.example")
    assert connection.is_good, connection.printed
    assert "Verify return code: 0 (ok)" in connection.printed


@pytest.fixture
async def peer_address() -> AsyncIterator[str]:
    """Yield the address at which a broker listens for others."""
    async with running(1) as node:
        yield f"{node.network.host}:{node.network.port}"


@pytest.mark.parametrize("arguments", [(), ("-servername", "elsewhere.example")])
async def test_handshake_of_brokers_is_good_and_without_compression(
    peer_address: str, arguments: tuple[str, ...]
) -> None:
    connection = await asyncio.to_thread(Connection, peer_address, None, "-comp", *arguments)
    assert "New, TLSv1.3, Cipher is TLS_" in connection.printed
    assert "Compression: NONE" in connection.printed
    assert ssl.DER_cert_to_PEM_cert(link_certificate().der) in connection.printed


@pytest.mark.parametrize("version", ["-tls1", "-tls1_1", "-tls1_2"])
async def test_older_versions_are_refused_among_brokers(peer_address: str, version: str) -> None:
    """So nobody can renegotiate either, as TLS 1.3 has no renegotiation."""
    connection = await asyncio.to_thread(Connection, peer_address, None, version, "-cipher", WEAKEST, given="R\n")
    assert not connection.is_good
    assert f"alert number {PROTOCOL_VERSION}" in connection.printed
