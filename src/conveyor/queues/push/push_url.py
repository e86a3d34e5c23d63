"""The URL of a push target: its parts, and which URLs are refused before anything is resolved."""

import re
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import NamedTuple
from urllib.parse import urlsplit

from conveyor.kernel.errors import ErrorKind, RequestError

MAX_URL_CHARACTERS = 2_048

_PRINTABLE = re.compile(r"[\x21-\x7e]+")
_LABEL = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?")
_MAX_HOST_CHARACTERS = 253
_PORTS = {"http": 80, "https": 443}


class PushUrl(NamedTuple):
    """A URL in parts. host: a name or an address, without brackets. path: with the query, as a request line has it."""

    is_encrypted: bool
    host: str
    port: int
    path: str

    @property
    def authority(self) -> str:
        """The value of the Host header."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == _PORTS["https" if self.is_encrypted else "http"] else f"{host}:{self.port}"

    @property
    def origin(self) -> str:
        """The URL without path and query, which may contain secrets."""
        return f"{'https' if self.is_encrypted else 'http'}://{self.authority}"


def parse_push_url(url: str) -> PushUrl:
    """Return the parts of a URL. Raises RequestError (INVALID_SUBSCRIPTION), which does not repeat the URL.

    A URL without encryption must name this machine: `localhost`, or a loopback address.
    """
    if len(url) > MAX_URL_CHARACTERS or not _PRINTABLE.fullmatch(url):
        raise _invalid(f"it takes up to {MAX_URL_CHARACTERS} printable ASCII characters: encode all others")
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise _invalid("its host or its port is malformed") from error
    if parts.scheme not in _PORTS:
        raise _invalid("it begins with https://, or with http:// for a target on this machine")
    if parts.username is not None or parts.password is not None:
        raise _invalid("it may not contain a user: the signature of a request proves who sends it")
    if parts.fragment or "#" in url:
        raise _invalid("it may not contain a fragment (#)")
    host = parts.hostname or ""
    if not _is_host(host) or port == 0:
        raise _invalid("its host or its port is malformed")
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    found = PushUrl(parts.scheme == "https", host, port or _PORTS[parts.scheme], path)
    if not found.is_encrypted and not _is_this_machine(host):
        raise _invalid("http:// is for targets on this machine (localhost): use https://")
    return found


def _is_host(host: str) -> bool:
    if _literal(host) is not None:
        return "%" not in host  # A zone names an interface of the broker.
    labels = host.removesuffix(".").split(".")
    return len(host) <= _MAX_HOST_CHARACTERS and all(_LABEL.fullmatch(label) for label in labels)


def _is_this_machine(host: str) -> bool:
    literal = _literal(host)
    return host == "localhost" if literal is None else literal.is_loopback


def _literal(host: str) -> IPv4Address | IPv6Address | None:
    try:
        return ip_address(host)
    except ValueError:
        return None


def _invalid(reason: str) -> RequestError:
    return RequestError(ErrorKind.INVALID_SUBSCRIPTION, f"push.url is not valid: {reason}")
