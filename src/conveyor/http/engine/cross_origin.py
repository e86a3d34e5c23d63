"""Cross-origin requests of browsers (CORS): pages of listed origins may read the responses. Source: the Fetch standard.

A browser names the origin of a page in `Origin`, and lets the page read a response only if that allows the origin. For
any request that a form could not send, it asks beforehand, by OPTIONS (a preflight) and without credentials.

No response has `Access-Control-Allow-Credentials`: a page sends its token or password itself, in `Authorization`. What
the browser would add unasked, such as the certificate of a client, is of no use to the page.
"""

from collections.abc import Iterable

from conveyor.http.engine.http_request import Request

ANY = "*"
NULL = "null"
"""The origin of pages without one: of files, and in sandboxed frames, which every site can make."""
MAX_AGE_S = 600
"""A browser may remember the answer to a preflight for so long."""

_EXPOSED = b"\r\nAccess-Control-Expose-Headers: Allow, Retry-After, WWW-Authenticate"
_VARY = b"\r\nVary: Origin"


class Origins:
    """The origins whose pages may use the API, or all with `ANY`, but never `NULL`. An origin is compared exactly."""

    def __init__(self, origins: Iterable[str]) -> None:
        self._listed = frozenset(origins) - {NULL}

    def lists(self, request: Request, *, by_name: bool = False) -> bool:
        """Return whether the request comes from a page of a listed origin. by_name: `ANY` does not suffice."""
        origin = request.header(b"origin")
        is_any = ANY in self._listed and not by_name
        return origin is not None and origin != NULL and (origin in self._listed or is_any)

    def is_preflight(self, request: Request) -> bool:
        """Return whether a browser asks, for a page of a listed origin, what it may send."""
        asks = request.method == "OPTIONS" and b"access-control-request-method" in request.fields
        return asks and self.lists(request)

    def response_headers(self, request: Request | None) -> bytes:
        """Return the headers of a response, each after CRLF. request: None if it could not be read.

        Those for other origins have `Vary` as well, so that no cache serves one response to pages of all origins.
        """
        if request is None or not self.lists(request):
            return _VARY
        allowed = ANY.encode() if ANY in self._listed else request.fields[b"origin"]
        return b"%b\r\nAccess-Control-Allow-Origin: %b%b" % (_VARY, allowed, _EXPOSED)


def is_cross_origin(request: Request) -> bool:
    """Return whether a page of another site sent the request, by the host name that the client used."""
    origin = request.header(b"origin")
    return origin is not None and origin.partition("://")[2] != (request.header(b"host") or "")


def preflight_headers(methods: Iterable[str], headers: Iterable[str]) -> dict[str, str]:
    """Return the headers of the response to a preflight. headers: those that a request may have."""
    return {
        "Access-Control-Allow-Methods": ", ".join(methods),
        "Access-Control-Allow-Headers": ", ".join(headers),
        "Access-Control-Max-Age": str(MAX_AGE_S),
    }
