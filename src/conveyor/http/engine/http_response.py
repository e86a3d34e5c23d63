"""One response, and its bytes on the wire. Sources: RFC 9110, RFC 9112."""

from collections.abc import Mapping
from email.utils import formatdate
from functools import lru_cache
from http import HTTPStatus

from conveyor.kernel.ports import Clock

JSON = "application/json"
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


class Response:
    """A response. A status of 204 or 304 has no body. closes: whether the connection ends after the response."""

    __slots__ = ("body", "closes", "content_type", "headers", "status")

    def __init__(
        self,
        status: int,
        body: bytes = b"",
        content_type: str = JSON,
        headers: Mapping[str, str] | None = None,
        *,
        closes: bool = False,
    ) -> None:
        self.status = status
        self.body = body
        self.content_type = content_type
        self.headers = headers
        self.closes = closes


class DateHeader:
    """The Date header, which changes once a second."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._second = -1
        self._line = b""

    def line(self) -> bytes:
        second = self._clock.now_ms() // 1000
        if second != self._second:
            self._second = second
            self._line = b"\r\nDate: %b" % formatdate(second, usegmt=True).encode()
        return self._line


def encode_head(response: Response, date: bytes, connection: bytes) -> bytes:
    """Return the response up to its body. connection: the headers of the connection, each after CRLF."""
    more = b"" if response.headers is None else _encode_headers(response.headers)
    status = response.status
    if status in (204, 304):
        return b"%b%b%b%b\r\n\r\n" % (_status_line(status), date, connection, more)
    return b"%b%d%b%b%b\r\n\r\n" % (_prefix(status, response.content_type), len(response.body), date, connection, more)


@lru_cache(64)
def _prefix(status: int, content_type: str) -> bytes:
    return b"%b\r\nContent-Type: %b\r\nContent-Length: " % (_status_line(status), content_type.encode())


def _status_line(status: int) -> bytes:
    return f"HTTP/1.1 {status} {HTTPStatus(status).phrase}".encode()


def _encode_headers(headers: Mapping[str, str]) -> bytes:
    return "".join(f"\r\n{name}: {value}" for name, value in headers.items()).encode()
