"""The endpoints that describe the API: openapi.json and an HTML page. Neither shows data of the broker."""

from typing import Any

from conveyor.http_api.engine.endpoint import Endpoint, HttpCall, NoQuery, Raw
from conveyor.http_api.engine.openapi import make_document
from conveyor.http_api.engine.page import render_page


async def show_openapi(call: HttpCall[NoQuery, None]) -> dict[str, Any]:
    """Show this API as an OpenAPI 3.1 document."""
    return make_document(call.door.endpoints)


async def show_page(call: HttpCall[NoQuery, None]) -> Raw:
    """Show this API as a page."""
    return Raw(render_page(make_document(call.door.endpoints)).encode(), "text/html; charset=utf-8")


ENDPOINTS = (
    Endpoint(method="GET", path="/openapi.json", function=show_openapi, is_public=True),
    Endpoint(method="GET", path="/docs", function=show_page, is_public=True, content_type="text/html"),
)
