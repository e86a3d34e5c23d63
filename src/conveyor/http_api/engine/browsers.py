"""Refuses browser pages of other sites while the broker has no tokens: such pages can reach loopback addresses."""

import re
from collections.abc import Mapping
from ipaddress import ip_address


def refusal(headers: Mapping[str, str], *, is_open: bool) -> str | None:
    """The reason to refuse a browser's request; None to serve it, or if no browser sent it.

    is_open: what is asked for may be linked to, or shown in a frame, by anybody.
    """
    origin, site = headers.get("Origin"), headers.get("Sec-Fetch-Site")
    if origin is None and site is None:
        return None
    host = headers.get("Host", "")
    if not _is_nobodys_name(host):
        return (
            f"a browser asks for '{host}', a name that any site can point at this machine: "
            "use an IP address or localhost, or protect the broker with tokens: see --token-file"
        )
    if origin is not None and origin.partition("://")[2] != host:
        return f"pages from {origin} may not use this broker, because it has no tokens: see --token-file"
    if site in ("cross-site", "same-site") and not is_open:
        return "pages of other sites may not use this broker, because it has no tokens: see --token-file"
    return None


def _is_nobodys_name(host: str) -> bool:
    """Whether the host is safe from DNS rebinding: no site can own this name and point it at a foreign address."""
    name = re.sub(":[0-9]*$", "", host).lower()
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        ip_address(name.strip("[]"))
    except ValueError:
        return False
    return True
