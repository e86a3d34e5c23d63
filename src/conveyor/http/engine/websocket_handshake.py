"""The opening handshake of a WebSocket: which requests may upgrade their connection, and the answer to those.

A request that asks for no upgrade, or for another version, gets 426 and the version; a malformed one 400; one for a
page that may not 403. Extensions and subprotocols are not negotiated. Source: RFC 6455, 4.2 and 4.4.
"""

import binascii
from base64 import b64decode

from wsproto.utilities import generate_accept_token

from conveyor.http.engine.cross_origin import Origins, is_cross_origin
from conveyor.http.engine.exchange import Exchange
from conveyor.http.engine.http_request import Request
from conveyor.http.engine.http_response import Response
from conveyor.http.engine.problems import make_problem, problem_response
from conveyor.kernel.access.caller import ANONYMOUS

_VERSION, _KEY = b"sec-websocket-version", b"sec-websocket-key"
_NONCE_BYTES = 16
_UPGRADE = {"Upgrade": "websocket", "Connection": "Upgrade", "Sec-WebSocket-Version": "13"}


def refusal(exchange: Exchange, origins: Origins | None, *, has_more: bool) -> Response | None:
    """Return the response to a request that cannot upgrade its connection; None if it can.

    origins: those of other sites whose pages may. has_more: the client has sent more, or will send nothing more.
    """
    request = exchange.request
    if has_more:
        return _malformed("a client sends nothing after the request until it is answered", closes=True)
    if request.method != "GET" or not request.is_http_11:
        return _malformed("the request must be a GET of HTTP/1.1")
    if request.content_length or b"transfer-encoding" in request.fields:
        return _malformed("the request must not have a body")
    if "websocket" not in _tokens(request, "upgrade") or "upgrade" not in _tokens(request, "connection"):
        return _not_upgraded("this endpoint speaks WebSocket: send the headers 'Upgrade' and 'Connection: Upgrade'")
    if any(name in (_VERSION, _KEY) for name, _ in request.repeated):
        return _malformed("Sec-WebSocket-Version and Sec-WebSocket-Key must not be repeated")
    if request.fields.get(_VERSION) != b"13":
        return _not_upgraded("the version of WebSocket must be 13")
    if not _is_nonce(request.fields.get(_KEY, b"")):
        return _malformed("Sec-WebSocket-Key must be 16 bytes in base64")
    if is_cross_origin(request) and not _is_listed(exchange, origins):
        detail = f"pages from {request.header(b'origin')} may not open a WebSocket here"
        return problem_response(make_problem("foreign_origin", 403, detail))
    return None


def _is_listed(exchange: Exchange, origins: Origins | None) -> bool:
    """Return whether the page of another site may open a WebSocket.

    Any page can read what a WebSocket sends, and a browser adds certificates and passwords unasked: if all origins are
    listed, pages of others open one as nobody only.
    """
    return origins is not None and origins.lists(exchange.request, by_name=exchange.caller.principal != ANONYMOUS)


def encode_acceptance(request: Request, date: bytes) -> bytes:
    """Return the response that ends the handshake. date: the Date header, after CRLF."""
    token = generate_accept_token(request.fields[_KEY])
    head = b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: "
    return b"%b%b%b\r\n\r\n" % (head, token, date)


def _tokens(request: Request, name: str) -> set[str]:
    """Return the items of a header that is a list, in lower case."""
    values = (value for other, value in request.headers() if other == name)
    return {token.strip().lower() for value in values for token in value.split(",")}


def _is_nonce(key: bytes) -> bool:
    try:
        return len(b64decode(key, validate=True)) == _NONCE_BYTES
    except binascii.Error:
        return False


def _malformed(reason: str, *, closes: bool = False) -> Response:
    detail = f"not a valid request to open a WebSocket: {reason}"
    return problem_response(make_problem("malformed_request", 400, detail), closes=closes)


def _not_upgraded(detail: str) -> Response:
    return problem_response(make_problem("upgrade_required", 426, detail), _UPGRADE)
