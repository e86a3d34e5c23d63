"""Refuses browser pages of other sites without a token: they can reach loopback addresses, and log in unasked."""

import re
from ipaddress import ip_address

from conveyor.http.engine.cross_origin import is_cross_origin
from conveyor.http.engine.http_request import Request


def refusal(request: Request, *, is_public: bool, is_guarded: bool, is_listed: bool = False) -> str | None:
    """Return the reason to refuse a browser's request; None if it is allowed, or if no browser sent it.

    is_public: any site may link to the endpoint or show it in a frame. is_guarded: the broker asks who the client is. A
    browser answers that by itself also for a page of another site, but not to another host name. is_listed: the request
    is from a page of a listed origin, so not of a site that has pointed its own name here.
    """
    fields = request.fields
    if is_listed or (b"origin" not in fields and b"sec-fetch-site" not in fields):
        return None
    origin, site = request.header(b"origin"), request.header(b"sec-fetch-site")
    host = request.header(b"host") or ""
    if not is_guarded and not _is_safe_from_rebinding(host):
        return (
            f"a browser sent the host name '{host}', which any site can point at this machine: "
            "use an IP address or localhost, or protect the broker with tokens (--token-file)"
        )
    if is_cross_origin(request):
        return (
            f"pages from {origin} may not use this broker without a token (--token-file), unless"
            " network.http_cors_origins lists their origin"
        )
    if site in ("cross-site", "same-site") and not is_public:
        return "pages of other sites may not use this broker without a token (--token-file)"
    return None


def _is_safe_from_rebinding(host: str) -> bool:
    """Return whether the host is safe from DNS rebinding: no site can own the name and change its address."""
    name = re.sub(":[0-9]*$", "", host).lower()
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        ip_address(name.strip("[]"))
    except ValueError:
        return False
    return True
