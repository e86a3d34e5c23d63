"""The endpoints that describe the API: openapi.json and an HTML page. Neither shows data of the broker."""

from typing import Any

from conveyor import __version__
from conveyor.http.endpoints.endpoint import Endpoint, NoQuery, Raw
from conveyor.http.endpoints.openapi import Description, make_document
from conveyor.http.endpoints.page import render_page
from conveyor.http_api.http_call import HttpCall
from conveyor.kernel.access.declared_access import NO_ACCESS

_REST = Description(
    "Conveyor",
    __version__,
    "Topics, and subscriptions that lease their messages. Errors are problem documents (RFC 9457).",
    (
        ("topic", "The topic's name."),
        ("subscription", "The subscription's name."),
        ("schedule", "The schedule's name."),
        ("message_id", "The id from the message's receipt: <partition>-<offset>."),
    ),
)


def rest_document(endpoints: tuple[Endpoint, ...]) -> dict[str, Any]:
    """Return the OpenAPI document of the REST API."""
    return make_document(endpoints, _REST)


async def show_openapi(call: HttpCall[NoQuery, None]) -> dict[str, Any]:
    """Show this API as an OpenAPI 3.1 document."""
    return rest_document(call.door.endpoints)


async def show_page(call: HttpCall[NoQuery, None]) -> Raw:
    """Show this API as a page."""
    return Raw(render_page(rest_document(call.door.endpoints)).encode(), "text/html; charset=utf-8")


ENDPOINTS = (
    Endpoint(
        method="GET", path="/openapi.json", needs=NO_ACCESS, function=show_openapi, is_public=True, is_limited=False
    ),
    Endpoint(
        method="GET",
        path="/docs",
        needs=NO_ACCESS,
        function=show_page,
        is_public=True,
        is_limited=False,
        content_type="text/html",
    ),
)
