"""Answers the preflights of browsers: what a page of a listed origin may send to an endpoint."""

from collections.abc import Iterable

from conveyor.http.endpoints.endpoint import Endpoint
from conveyor.http.engine.cross_origin import preflight_headers
from conveyor.http.engine.http_response import Response

LOGIN = ("Authorization",)
_WITH_BODY = ("Content-Type", "Content-Encoding")


def request_headers(endpoint: Endpoint) -> tuple[str, ...]:
    """Return the headers that a page may send to an endpoint."""
    return LOGIN if endpoint.signature.body is None else (*LOGIN, *_WITH_BODY, *(name for name, _ in endpoint.headers))


def preflight_response(methods: Iterable[str], headers: Iterable[str]) -> Response:
    """Return the response. methods: those of the path; the browser sends no other. headers: of the endpoint that the
    page wants to call.
    """
    return Response(204, headers=preflight_headers(methods, headers))
