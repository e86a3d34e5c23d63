"""TLS of a broker as the command line of OpenSSL sees it: versions, ciphers, compression, renegotiation."""

import re
import socket
import subprocess
from collections.abc import Iterator

import pytest

from conveyor.testing import Broker
from tests.certificates import Certificates

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
    with Broker(memory=True, settings=certificates.settings("SSL://127.0.0.1:0")) as running:
        yield running


class Connection:
    """A run of `openssl s_client`, which checks the certificate of the broker and gives it some text."""

    def __init__(self, broker: Broker, certificates: Certificates, *arguments: str, given: str = "") -> None:
        checks = ["-CAfile", certificates.authority, "-verify_return_error", "-verify_ip", "127.0.0.1"]
        command = ["openssl", "s_client", "-connect", broker.bootstrap_servers, *checks, *arguments]
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
    broker: Broker, certificates: Certificates, arguments: tuple[str, ...]
) -> None:
    connection = Connection(broker, certificates, *arguments, "-comp")
    assert connection.is_good, connection.printed
    assert "Verify return code: 0 (ok)" in connection.printed
    assert "Compression: NONE" in connection.printed


@pytest.mark.parametrize("version", ["-tls1", "-tls1_1"])
def test_older_versions_are_refused_by_the_broker(broker: Broker, certificates: Certificates, version: str) -> None:
    connection = Connection(broker, certificates, version, "-cipher", WEAKEST)
    assert not connection.is_good
    assert f"alert number {PROTOCOL_VERSION}" in connection.printed


def test_ssl_3_is_refused(broker: Broker) -> None:
    host, _, port = broker.bootstrap_servers.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=60) as connection:
        connection.sendall(HELLO_OF_SSL_3)
        with connection.makefile("rb") as received:
            answer = received.read()
    assert (answer[0], answer[5]) == (ALERT, FATAL)


def test_ciphers_of_tls_1_2_authenticate_what_they_encrypt(broker: Broker, certificates: Certificates) -> None:
    """The broker agrees on no other cipher than these, whatever a client offers."""
    offered, agreed = WEAKEST, []
    while cipher := Connection(broker, certificates, "-tls1_2", "-cipher", offered).cipher:
        agreed.append(cipher)
        offered = f"{WEAKEST}:!{':!'.join(agreed)}"
    assert {"ECDHE-ECDSA-AES128-GCM-SHA256", "ECDHE-ECDSA-AES256-GCM-SHA384"} <= set(agreed)
    assert all(re.fullmatch(r"ECDHE-ECDSA-(AES(128|256)-GCM|CHACHA20-POLY1305).*", cipher) for cipher in agreed), agreed


def test_renegotiation_is_refused(broker: Broker, certificates: Certificates) -> None:
    """s_client asks for one when it is given an R."""
    connection = Connection(broker, certificates, "-tls1_2", given="R\n")
    assert not connection.is_good
    assert "RENEGOTIATING" in connection.printed
    assert "no renegotiation" in connection.printed
