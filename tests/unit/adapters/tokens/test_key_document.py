"""The keys are read from the file or the URL of the settings, and from nowhere else."""

import asyncio
import ssl
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import pytest

from conveyor.adapters.tokens.key_document import MAX_DOCUMENT_BYTES, KeyDocument, fetch
from conveyor.settings.sasl_settings import SaslSettings
from tests.identity_provider import KeyServer, key_set, signing_key, token

NOW_MS = 1_700_000_000_000
DOCUMENT = key_set(signing_key("RS256"))


def answering(status: int, body: bytes, headers: Mapping[str, str] | None = None) -> KeyServer:
    return KeyServer(lambda _: (status, headers or {}, body))


async def raw_answer(answer: bytes, *, ends: bool = True) -> bytes:
    """Fetch from a server that answers with these bytes."""

    served = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        if not ends:
            with suppress(ConnectionError):
                await reader.read()
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()
        served.set()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        try:
            return await fetch(f"http://127.0.0.1:{port}/keys", 30 if ends else 0.05)
        finally:
            await served.wait()


async def test_keys_are_read_from_the_url() -> None:
    with answering(200, DOCUMENT) as server:
        source = KeyDocument(SaslSettings(jwks_url=f"{server.url}?a=b", oauth_audience="*"))
        document = await source.read()
        assert server.paths == ["/keys?a=b"]
    assert document == DOCUMENT
    assert source.keys(document).claims(token(NOW_MS))["sub"] == "alice"


async def test_keys_are_read_from_the_file(tmp_path: Path) -> None:
    file = tmp_path / "keys.json"
    source = KeyDocument(SaslSettings(jwks_file=str(file), oauth_audience="*"))
    with pytest.raises(FileNotFoundError):
        await source.read()
    file.write_bytes(DOCUMENT)
    assert await source.read() == DOCUMENT
    file.write_bytes(bytes(MAX_DOCUMENT_BYTES + 1))
    with pytest.raises(ValueError, match="more than 262144 bytes"):
        await source.read()


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
@pytest.mark.parametrize("location", ["file:///etc/passwd", "http://169.254.169.254/", "/other"])
async def test_redirects_are_not_followed(status: int, location: str) -> None:
    with answering(status, DOCUMENT, {"Location": location}) as server:
        with pytest.raises(OSError, match=f"the status {status}, where 200 is expected"):
            await fetch(server.url)
        assert server.paths == ["/keys"]


@pytest.mark.parametrize("status", [204, 401, 404, 500, 503])
async def test_other_answers_are_refused(status: int) -> None:
    with answering(status, b"") as server, pytest.raises(OSError, match=f"the status {status}"):
        await fetch(server.url)


async def test_large_answers_are_refused() -> None:
    with answering(200, bytes(MAX_DOCUMENT_BYTES)) as server, pytest.raises(OSError, match="more than 262144 bytes"):
        await fetch(server.url)
    endless = b"HTTP/1.1 200 OK\r\n" + b"X-Header: value\r\n" * MAX_DOCUMENT_BYTES
    with pytest.raises(OSError, match="more than 262144 bytes"):
        await raw_answer(endless)


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}",
        b"HTTP/1.0 200 OK\r\n\r\n{}",
    ],
)
async def test_answers_of_all_lengths_are_read(answer: bytes) -> None:
    assert await raw_answer(answer) == b"{}"


@pytest.mark.parametrize(
    "answer", [b"SSH-2.0-OpenSSH\r\n", b"HTTP/1.1 101 Switching\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n"]
)
async def test_answers_that_are_not_http_are_refused(answer: bytes) -> None:
    with pytest.raises(OSError, match="127"):
        await raw_answer(answer)


async def test_silent_servers_are_not_waited_for() -> None:
    with pytest.raises(OSError, match="no answer in"):
        await raw_answer(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{", ends=False)


async def test_server_has_to_show_a_certificate_that_is_trusted() -> None:
    with answering(200, DOCUMENT) as server, pytest.raises(OSError, match="127") as failure:
        await fetch(server.url.replace("http:", "https:"))
    assert isinstance(failure.value.__cause__, ssl.SSLError)
