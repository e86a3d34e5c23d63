"""Splits a long JSON document with messages into parts, each of which is decoded in one tick of the event loop.

    {"id": "x", "messages": [a, b, c, d, e]}  ->  {"messages": [a, b, c]}  {"id": "x", "messages": [d, e]}

The scan examines only strings and brackets, one stretch at a time. The decoder of the parts checks everything else,
including the validity of the JSON. The parts contain the same messages as the whole: a part begins at the start of a
message, and fails to decode unless it ends at the end of one. The last part has all other fields, too.
"""

import asyncio
import re
from collections.abc import AsyncIterator

from conveyor.kernel.errors import ErrorKind, RequestError

PART_BYTES = 64 << 10
MAX_REST_BYTES = 1 << 20
"""Limit of a document besides its messages."""
MAX_REST_VALUES = 25_000
"""Limit of strings and commas of a long document besides its messages. 10,000 messages to acknowledge have 20,000."""
MAX_MESSAGE_BYTES = 4 << 20
"""Limit of the JSON of a message, which is decoded in one tick: some 30 ms."""
MAX_VALUES = 10_000
"""Limit of strings, and of values after a comma, in a message longer than a part."""

_STRETCH_BYTES = 32 << 10
_MAX_DEPTH = 16
_SPACE = rb"[ \t\r\n]{0,1000}"
_BEGIN = re.compile(rb'"messages"' + _SPACE + b":" + _SPACE + rb"\[")
"""In no string: the quotes within a string are escaped. In another object it is the name of an unknown field."""
_COMMA = re.compile(_SPACE + b",")
_END = re.compile(_SPACE + rb"\]")
_BRACKET = re.compile(rb"[][{}]")
_WITHOUT_BRACKET = frozenset((b"", b":", b",", b": ", b", "))
"""The most frequent texts between two strings."""


async def batch_parts(body: bytes) -> AsyncIterator[bytes]:
    """Yield the parts of a document in order; the body itself if it is short. Raises RequestError."""
    begin = _BEGIN.search(body, 0, MAX_REST_BYTES) if len(body) > PART_BYTES else None
    if begin is None:
        _check_rest(body)
        yield body
        return
    scan, part_begin = _Scan(body, begin.end()), begin.end()
    while not scan.is_over:
        scan.advance()
        await asyncio.sleep(0)
        if not scan.array_end and scan.position - scan.message_end > MAX_MESSAGE_BYTES:
            reason = f"the message at byte {scan.message_end} has more than {MAX_MESSAGE_BYTES} bytes of JSON"
            raise RequestError(ErrorKind.MESSAGE_TOO_LARGE, f"{reason}: publish it alone, as the body of a request")
        if scan.array_end or scan.message_end - part_begin < PART_BYTES:
            continue
        comma = _COMMA.match(body, scan.message_end)
        if comma is not None:
            yield b'{"messages":[%b]}' % body[part_begin : scan.message_end]
            part_begin = comma.end()
        elif not _END.match(body, scan.message_end):
            raise _wrong(f"`,` or `]` is missing at byte {scan.message_end}")
    if not scan.array_end:
        raise _wrong("the array of its messages does not end")
    last = body[part_begin : scan.array_end - 1]
    if part_begin > begin.end() and not last.strip():
        raise _wrong(f"no message follows the comma before byte {part_begin}")
    _check_rest(body[: begin.end()] + body[scan.array_end :])
    yield body[: begin.end()] + last + body[scan.array_end - 1 :]


class _Scan:
    """Scans an array, one stretch at a time. position: the end of what is scanned. message_end: the end of the last
    complete message. array_end: the end of the array, once it is found.
    """

    def __init__(self, body: bytes, begin: int) -> None:
        self.message_end = begin
        self.array_end = 0
        self._body = body
        self.position = begin
        self._depth = 0
        self._is_text = False
        self._values = 0

    @property
    def is_over(self) -> bool:
        return self.array_end > 0 or self.position >= len(self._body)

    def advance(self) -> None:
        """Scan the next stretch. Raises RequestError if a message has too many values."""
        end, ended = self._stretch_end(), self.message_end
        plain = self._body[self.position : end].replace(b"\\\\", b"__").replace(b'\\"', b"__")
        pieces = plain.split(b'"')
        position, is_text = self.position, self._is_text
        for piece in pieces:
            if not (is_text or self.array_end or piece in _WITHOUT_BRACKET):
                self._find_brackets(piece, position)
            position += len(piece) + 1
            is_text = not is_text
        commas = sum(piece.count(b",") for piece in pieces[self._is_text :: 2])
        self._is_text = not is_text  # No quote follows the last piece.
        self.position = end
        self._values = 0 if self.message_end != ended else self._values + len(pieces) // 2 + commas
        if self._values > MAX_VALUES and end - self.message_end > PART_BYTES:
            raise _wrong(f"the message at byte {self.message_end} has more than {MAX_VALUES} names and values")

    def _stretch_end(self) -> int:
        """Return the end of the next stretch, which does not split an escape."""
        stretch = self._body[self.position : self.position + _STRETCH_BYTES]
        escapes = len(stretch) - len(stretch.rstrip(b"\\"))
        return min(len(self._body), self.position + len(stretch) + escapes % 2)

    def _find_brackets(self, piece: bytes, position: int) -> None:
        for bracket in _BRACKET.finditer(piece):
            if bracket.group() in b"[{":
                self._depth += 1
                if self._depth > _MAX_DEPTH:
                    raise _wrong(f"nested too deeply at byte {position + bracket.start()}")
                continue
            self._depth -= 1
            if self._depth == 0:
                self.message_end = position + bracket.end()
            elif self._depth < 0:
                self.array_end = position + bracket.end()
                return


def _check_rest(rest: bytes) -> None:
    """Check what is decoded in one tick besides messages. Raises RequestError."""
    if len(rest) > MAX_REST_BYTES:
        reason = f"besides its messages, the request's body has {len(rest)} bytes: at most {MAX_REST_BYTES}"
        raise RequestError(ErrorKind.MESSAGE_TOO_LARGE, reason)
    if len(rest) > PART_BYTES and rest.count(b'"') // 2 + rest.count(b",") > MAX_REST_VALUES:
        raise _wrong(f"besides its messages, it has more than {MAX_REST_VALUES} names and values")


def _wrong(reason: str) -> RequestError:
    return RequestError(ErrorKind.INVALID_REQUEST, f"the request's body is not a batch of messages: {reason}")
