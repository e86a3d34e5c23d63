"""Turns bytes into requests: httptools (llhttp) with its strictest settings, and the rules that llhttp lacks.

llhttp refuses a request with both Content-Length and Transfer-Encoding, several lengths, folded headers, line ends
without CR, and invalid characters. This module also refuses:
- versions other than 1.0 and 1.1, a missing Host in 1.1, and two Hosts;
- transfer codings other than a single `chunked`, and any in HTTP/1.0;
- a fragment in the target; a request line or header of more than `MAX_FIELD_BYTES`; more than `MAX_HEADERS` headers, or
  of `MAX_HEAD_BYTES` together.
Trailers are read and dropped. A request to upgrade the connection is read as an ordinary request (RFC 9110, 7.8).
"""

import logging
from collections import deque

from httptools import HttpParserCallbackError, HttpParserError, HttpParserUpgrade, HttpRequestParser

from conveyor.http.engine.http_request import Request

log = logging.getLogger(__name__)

MAX_FIELD_BYTES = 8190
"""Limit of the request target, and of a header's name and value together."""
MAX_HEADERS = 128
MAX_HEAD_BYTES = 64 << 10
"""Limit of the names and values of all headers: nobody is known yet who sends them, and no budget counts them."""
_MAX_IDLE_BYTES = MAX_FIELD_BYTES + 16
"""Limit of the bytes that bring no field to its end. White space and line ends are among them."""
_MAX_LENGTH_DIGITS = 20
"""llhttp limits the length, but not its leading zeros."""
_NONE = (-1, -1)
_FRAMING = (b"content-length", b"transfer-encoding")


class MalformedRequest(Exception):  # noqa: N818 - named for what it is
    """Raised inside the parser's callbacks only."""


class RequestParser:
    """Parses the requests of one connection. After an error, it takes no more bytes.

    complete: requests whose bodies have arrived, oldest first. receiving: a request with a complete head whose body is
    still arriving. is_in_head: whether the head of a further request has begun. error: why the bytes after these
    requests are no request.
    """

    __slots__ = (
        "_fields",
        "_head_bytes",
        "_idle_bytes",
        "_is_trailing",
        "_parser",
        "_progress",
        "_repeated",
        "_replays",
        "_target",
        "_upgrades",
        "complete",
        "error",
        "is_in_head",
        "receiving",
    )

    def __init__(self) -> None:
        self.complete: deque[Request] = deque()
        self.receiving: Request | None = None
        self.error: str | None = None
        self._parser = HttpRequestParser(self)
        self._target = b""
        self._fields: dict[bytes, bytes] = {}
        self._repeated: list[tuple[bytes, bytes]] = []
        self.is_in_head = self._is_trailing = self._upgrades = self._replays = False
        self._progress, self._idle_bytes, self._head_bytes = _NONE, 0, 0

    def feed(self, data: bytes) -> None:
        """Parse bytes. Their requests are in `complete` and `receiving` afterwards."""
        while data:
            data = self._feed(data)
        if self.error is None and (self.is_in_head or self.receiving is not None):
            self._limit_field()

    def end(self) -> None:
        """Drop everything. The parser refers to this object, and this object to the parser."""
        self.complete.clear()
        self.receiving = None
        self._target, self._fields, self._repeated = b"", {}, []
        del self._parser

    def on_message_begin(self) -> None:
        if self._replays:
            return
        self._target, self._fields, self._repeated = b"", {}, []
        self.is_in_head, self._is_trailing = True, False
        self._progress, self._idle_bytes, self._head_bytes = _NONE, 0, 0

    def on_url(self, part: bytes) -> None:
        if not self._replays:
            self._target += part

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._is_trailing:
            return
        if len(name) + len(value) > MAX_FIELD_BYTES:
            raise MalformedRequest(f"the header {name[:100].decode()} has more than {MAX_FIELD_BYTES} bytes")
        name = name.lower()
        if name not in self._fields:
            self._fields[name] = value.rstrip(b" \t")
        elif name == b"host":
            raise MalformedRequest("more than one Host")
        else:
            self._repeated.append((name, value.rstrip(b" \t")))
        self._head_bytes += len(name) + len(value)
        if len(self._fields) + len(self._repeated) > MAX_HEADERS or self._head_bytes > MAX_HEAD_BYTES:
            raise MalformedRequest(f"more than {MAX_HEADERS} headers, or more than {MAX_HEAD_BYTES} bytes of them")

    def on_headers_complete(self) -> None:
        self._is_trailing = True
        if self._replays:
            return
        parser = self._parser
        version = parser.get_http_version()
        request = Request(parser.get_method().decode(), self._target, self._fields, is_http_11=version == "1.1")
        request.repeated = self._repeated
        self._target, self._fields, self._repeated = b"", {}, []
        _check(request, version)
        length = request.fields.get(b"content-length")
        request.content_length = None if length is None else int(length)
        self._upgrades = parser.should_upgrade()
        request.keeps_alive = parser.should_keep_alive() and request.method != "CONNECT"
        self.is_in_head = False
        self.receiving = request

    def on_body(self, part: bytes) -> None:
        request = self.receiving
        assert request is not None, "a body follows a head"
        request.received_bytes += len(part)
        if request.buffer is not None:
            request.buffer += part
        elif request.body:  # A buffer, because a client may send a byte at a time.
            request.buffer = bytearray(request.body)
            request.buffer += part
            request.body = b""
        else:
            request.body = part

    def on_message_complete(self) -> None:
        request = self.receiving
        if self._upgrades or request is None:
            return
        if request.buffer is not None:
            request.body, request.buffer = bytes(request.buffer), None
        request.is_complete = True
        self.complete.append(request)
        self.receiving = None
        self._replays = False

    def _feed(self, data: bytes) -> bytes:
        """Parse bytes up to the head of a request that asks for an upgrade. Returns the bytes to parse next."""
        self._idle_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except HttpParserUpgrade as upgrade:
            return self._framing() + data[upgrade.args[0] :]
        except HttpParserError as error:
            reason = error.__context__ if isinstance(error, HttpParserCallbackError) else error
            if isinstance(reason, HttpParserError | MalformedRequest):
                self._fail(str(reason).rstrip("."))
            else:
                log.error("request not parsed", exc_info=reason)
                self._fail("it could not be parsed: a bug, see the log")
        return b""

    def _framing(self) -> bytes:
        """Let a new parser read the body of a request that asks for an upgrade: llhttp takes all bytes after its head
        for the new protocol. Returns a head that says how the body ends, and is not that of a further request.
        """
        request = self.receiving
        assert request is not None, "an upgrade is asked for by a complete head"
        framing = [b"%b: %b\r\n" % (name, request.fields[name]) for name in _FRAMING if name in request.fields]
        self._upgrades, self._replays = False, True
        self._parser = HttpRequestParser(self)
        return b"POST / HTTP/1.1\r\n%b\r\n" % b"".join(framing)

    def _limit_field(self) -> None:
        """Refuse a field without an end. httptools keeps the bytes of each header, also of a trailer, until it ends."""
        request = self.receiving
        progress = (len(self._fields) + len(self._repeated), -1 if request is None else request.received_bytes)
        if progress != self._progress:
            self._progress, self._idle_bytes = progress, 0
        elif self._idle_bytes > _MAX_IDLE_BYTES:
            self._fail(f"a request line, header, chunk head or trailer of more than {MAX_FIELD_BYTES} bytes")

    def _fail(self, error: str) -> None:
        self.error = error
        self.receiving = None


def _check(request: Request, version: str) -> None:
    """Refuse what llhttp accepts. Raises MalformedRequest."""
    if version not in ("1.0", "1.1"):
        raise MalformedRequest(f"HTTP/{version} is not supported: use HTTP/1.1")
    if request.is_http_11 and b"host" not in request.fields:
        raise MalformedRequest("the Host header is missing")
    if len(request.target) > MAX_FIELD_BYTES:
        raise MalformedRequest(f"the request target has more than {MAX_FIELD_BYTES} bytes")
    if b"#" in request.target or not request.target.isascii():
        raise MalformedRequest("the request target has an invalid character")
    if len(request.fields.get(b"content-length", b"")) > _MAX_LENGTH_DIGITS:
        raise MalformedRequest(f"Content-Length has more than {_MAX_LENGTH_DIGITS} digits")
    coding = request.fields.get(b"transfer-encoding")
    if coding is not None and (coding.lower() != b"chunked" or not request.is_http_11):
        raise MalformedRequest("Transfer-Encoding must be chunked, and needs HTTP/1.1")
