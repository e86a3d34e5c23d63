"""Preflights are told the methods of a path and the headers of the endpoint that the page wants to call."""

from conveyor.http.endpoints.endpoint import Endpoint, NoQuery
from conveyor.http.endpoints.preflight import preflight_response, request_headers
from conveyor.kernel.access.declared_access import NO_ACCESS


async def read(call: "dict[NoQuery, None]") -> None:
    """Read."""


async def write(call: "dict[NoQuery, bytes]") -> None:
    """Write."""


def test_preflight_has_methods_headers_and_their_age() -> None:
    response = preflight_response(("GET", "POST"), ("Authorization", "Conveyor-Key"))
    assert (response.status, response.body) == (204, b"")
    assert response.headers == {
        "Access-Control-Allow-Methods": "GET, POST",
        "Access-Control-Allow-Headers": "Authorization, Conveyor-Key",
        "Access-Control-Max-Age": "600",
    }


def test_endpoint_without_a_body_takes_the_login_alone() -> None:
    endpoint = Endpoint(method="GET", path="/a", needs=NO_ACCESS, function=read)
    assert request_headers(endpoint) == ("Authorization",)


def test_endpoint_with_a_body_takes_its_headers() -> None:
    endpoint = Endpoint(
        method="POST", path="/a", needs=NO_ACCESS, function=write, headers=(("Conveyor-Key", "The key."),)
    )
    assert request_headers(endpoint) == ("Authorization", "Content-Type", "Content-Encoding", "Conveyor-Key")
