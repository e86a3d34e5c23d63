"""Pages in a browser: without tokens, none of another site may ask a broker, though it reaches loopback."""

import re
from collections.abc import Mapping
from ipaddress import ip_address


def refusal(headers: Mapping[str, str], *, is_open: bool) -> str | None:
    """Why a browser's request is not served; None if it is, or if it comes from no browser.

    is_open: what is asked for may be linked to, or shown in a frame, by anybody.
    """
    origin, site = headers.get("Origin"), headers.get("Sec-Fetch-Site")
    if origin is None and site is None:
        return None
    host = headers.get("Host", "")
    if not _is_nobodys_name(host):
        return (
            f"a browser asks for '{host}', and a site can let its name lead here: "
            "ask by an IP address or localhost, or let the broker ask for tokens: see --token-file"
        )
    if origin is not None and origin.partition("://")[2] != host:
        return f"a page from {origin} may not ask this broker, as it asks for no tokens: see --token-file"
    if site in ("cross-site", "same-site") and not is_open:
        return "a page of another site may not ask this broker, as it asks for no tokens: see --token-file"
    return None


def _is_nobodys_name(host: str) -> bool:
    """Whether no site can have that name, and let it lead to an address that is not its own (DNS rebinding)."""
    name = re.sub(":[0-9]*$", "", host).lower()
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        ip_address(name.strip("[]"))
    except ValueError:
        return False
    return True
