"""Reads a document from a file, or from a URL by HTTP: of limited size, within limited time, and from nowhere else.

The URL is that of the settings, and redirects are not followed: neither a client nor the other server leads the broker
to another address.
"""

import asyncio
import ssl
from collections.abc import Coroutine
from pathlib import Path
from typing import Any
from urllib.parse import SplitResult, urlsplit

from httptools import HttpParserError, HttpParserUpgrade, HttpResponseParser

from conveyor.adapters.tokens.signing_keys import SigningKeySet
from conveyor.settings.sasl_settings import SaslSettings

MAX_DOCUMENT_BYTES = 256 << 10
FETCH_S = 5.0

_READ_BYTES = 16 << 10
_OK = 200


class KeyDocument:
    """The keys (JWKS) that the settings name; a `KeySource`. The settings name a file or a URL."""

    def __init__(self, settings: SaslSettings) -> None:
        self._file, self._url = settings.jwks_file, settings.jwks_url

    def read(self) -> Coroutine[Any, Any, bytes]:
        return fetch(self._url) if self._url else asyncio.to_thread(_read_file, Path(self._file))

    def keys(self, document: bytes) -> SigningKeySet:
        return SigningKeySet(document)


async def fetch(url: str, timeout_s: float = FETCH_S) -> bytes:
    """Return the body of the answer to a GET request. Raises OSError."""
    parts = urlsplit(url)
    try:
        async with asyncio.timeout(timeout_s):
            context = await asyncio.to_thread(ssl.create_default_context) if parts.scheme == "https" else None
            port = parts.port or (80 if context is None else 443)
            reader, writer = await asyncio.open_connection(parts.hostname, port, ssl=context)
            try:
                writer.write(_request(parts))
                return await _body(reader)
            finally:
                writer.transport.abort()
    except (HttpParserError, HttpParserUpgrade, OSError) as error:
        reason = f"no answer in {timeout_s:g} s" if isinstance(error, TimeoutError) else error
        raise OSError(f"{url}: {reason}") from error


def _read_file(path: Path) -> bytes:
    with path.open("rb") as file:
        document = file.read(MAX_DOCUMENT_BYTES + 1)
    if len(document) > MAX_DOCUMENT_BYTES:
        raise ValueError(f"{path} has more than {MAX_DOCUMENT_BYTES} bytes")
    return document


def _request(parts: SplitResult) -> bytes:
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    lines = (f"GET {target} HTTP/1.1", f"Host: {parts.netloc}", "Accept: application/json", "Connection: close")
    return "".join(f"{line}\r\n" for line in (*lines, "")).encode("ascii")


async def _body(reader: asyncio.StreamReader) -> bytes:
    """Return the body of an answer. One that is cut off is no document: its JSON is incomplete."""
    response, received_bytes = _Response(), 0
    parser = HttpResponseParser(response)
    while not response.is_complete and (data := await reader.read(_READ_BYTES)):
        received_bytes += len(data)
        parser.feed_data(data)
        if response.is_begun and parser.get_status_code() != _OK:
            raise OSError(f"it answers with the status {parser.get_status_code()}, where 200 is expected")
        if received_bytes > MAX_DOCUMENT_BYTES:
            raise OSError(f"it answers with more than {MAX_DOCUMENT_BYTES} bytes")
    return bytes(response.body)


class _Response:
    """Collects an answer while httptools parses it."""

    def __init__(self) -> None:
        self.is_begun = self.is_complete = False
        self.body = bytearray()

    def on_headers_complete(self) -> None:
        self.is_begun = True

    def on_body(self, body: bytes) -> None:
        self.body += body

    def on_message_complete(self) -> None:
        self.is_complete = True
