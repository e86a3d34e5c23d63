"""What accepts connections by TLS names their clients, and bounds the handshakes that are not over."""

import asyncio
import logging
import ssl
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from conveyor.adapters.tls import tls_acceptor
from conveyor.adapters.tls.client_names import ClientNames
from conveyor.adapters.tls.development_authority import DevelopmentAuthority
from conveyor.adapters.tls.server_certificate import ServerCertificate
from conveyor.adapters.tls.tls_acceptor import TlsAcceptor
from conveyor.kernel.access.caller import ANONYMOUS, Principal
from tests.certificates import tls_settings, write
from tests.unit.adapters.client_contexts import client_context
from tests.unit.broker.markers.producers import until

AUTHORITY = DevelopmentAuthority.create()


class Echo(asyncio.Protocol):
    """Answers with what it gets, after the name of the client."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._name = "nobody"

    def authenticated(self, principal: Principal) -> None:
        self._name = str(principal)

    def data_received(self, data: bytes) -> None:
        self._transport.write(f"{self._name}: ".encode() + data)


class Site:
    def __init__(self, directory: Path, rules: str = "DEFAULT") -> None:
        (directory / "ca.pem").write_bytes(AUTHORITY.issued.certificate)
        settings = tls_settings(directory, AUTHORITY, client_ca_file=str(directory / "ca.pem"), client_auth="requested")
        certificate = ServerCertificate(settings)
        self.acceptor = TlsAcceptor(lambda: certificate.context, ClientNames(rules).principal, self._refused)
        self.directory = directory
        self.server: asyncio.Server
        self.refused_count = 0

    def _refused(self) -> None:
        self.refused_count += 1

    async def open(self) -> None:
        self.server = await asyncio.get_running_loop().create_server(self._accept, "127.0.0.1", 0)

    def _accept(self) -> asyncio.Protocol:
        echo = Echo()
        return self.acceptor.accept(echo, echo.authenticated)

    async def dial(self, context: ssl.SSLContext | None = None) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        port = self.server.sockets[0].getsockname()[1]
        name = None if context is None else "broker"
        return await asyncio.open_connection("127.0.0.1", port, ssl=context, server_hostname=name)

    def context_of(self, user: str) -> ssl.SSLContext:
        context = client_context()
        context.load_cert_chain(*write(self.directory, user, AUTHORITY.issue_for_client(user, 1)))
        return context


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    made = Site(tmp_path)
    await made.open()
    yield made
    made.server.close()


async def ended(reader: asyncio.StreamReader) -> bytes:
    """Wait until the peer closes the connection. Returns what it sends until then."""
    try:
        return await reader.read()
    except ConnectionResetError:
        return b""


async def test_client_is_named_before_its_first_bytes(site: Site) -> None:
    for context, name in ((client_context(), str(ANONYMOUS)), (site.context_of("alice"), "User:CN=alice")):
        reader, writer = await site.dial(context)
        writer.write(b"x")
        assert await reader.readexactly(len(name) + 3) == f"{name}: x".encode()
        writer.close()


async def test_client_that_gets_no_name_is_sent_away(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    site = Site(tmp_path, "RULE:CN=alice/x/")
    await site.open()
    reader, writer = await site.dial(site.context_of("mallory"))
    writer.write(b"x")
    assert await ended(reader) == b""
    assert "tls.principal_rules give no name to 'CN=mallory'" in caplog.text
    writer.close()
    site.server.close()


async def test_bug_in_the_naming_of_a_client_ends_its_connection_alone(
    site: Site, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    kept, its_writer = await site.dial(site.context_of("alice"))
    its_writer.write(b"x")
    assert await kept.readexactly(16) == b"User:CN=alice: x"

    def fail(_: bytes | None) -> Principal:
        raise ZeroDivisionError("a bug")

    with monkeypatch.context() as patch:
        patch.setattr(site.acceptor, "principal_of", fail)
        reader, writer = await site.dial(site.context_of("mallory"))
        writer.write(b"x")
        assert await ended(reader) == b""
    assert "the client could not be named: a bug, see the log" in caplog.text
    assert "ZeroDivisionError: a bug" in caplog.text
    its_writer.write(b"x")
    assert await kept.readexactly(16) == b"User:CN=alice: x"
    its_writer.close()
    writer.close()


async def test_oldest_handshake_makes_room(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tls_acceptor, "MAX_HANDSHAKES", 3)
    reader, writer = await site.dial(client_context())
    silent = [await site.dial() for _ in range(4)]
    assert await ended(silent[0][0]) == b""
    assert not any(each.at_eof() for each, _ in silent[1:])
    writer.write(b"x")  # Its handshake is over, so it does not count.
    assert await reader.readexactly(17) == b"User:ANONYMOUS: x"
    for _, each in silent:
        each.close()
    writer.close()


async def test_handshake_ends_in_time(
    site: Site, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    reader, writer = await site.dial(client_context())
    monkeypatch.setattr(tls_acceptor, "HANDSHAKE_S", 0.01)
    silent, its_writer = await site.dial()
    assert await ended(silent) == b""
    address = "{}:{}".format(*its_writer.get_extra_info("sockname"))
    assert f"peer={address} reason=no handshake of TLS within 0.01 s" in caplog.text
    assert site.refused_count == 1
    writer.write(b"x")
    assert await reader.readexactly(17) == b"User:ANONYMOUS: x"
    writer.close()
    its_writer.close()


async def test_ended_connections_are_forgotten(site: Site) -> None:
    _, writer = await site.dial()
    writer.close()
    reader, other = await site.dial(client_context())
    other.close()
    await ended(reader)
    await until(lambda: not site.acceptor._handshakes)


async def test_strangers_are_logged_once_a_minute(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG):
        for _ in range(5):
            reader, writer = await site.dial()
            writer.write(b"GET / HTTP/1.1\r\n\r\n")
            await ended(reader)
            writer.close()
    levels = [each.levelno for each in caplog.records if "TLS has failed" in each.getMessage()]
    assert levels == [logging.WARNING] + [logging.DEBUG] * 4
    assert site.refused_count == 5
