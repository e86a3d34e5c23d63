"""Addresses of listeners: parses them, checks whether they are exposed to other machines, binds sockets to them."""

import errno
import socket
from typing import NamedTuple

from conveyor.kernel.errors import SettingsError, StartupError
from conveyor.kernel.hosts import is_loopback


class Address(NamedTuple):
    """A host and a port; prints as `host:port`."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_address(text: str, setting: str) -> Address:
    """Parse `host:port` or `[v6]:port`. Raises SettingsError."""
    host, separator, port = text.rpartition(":")
    if not separator or not host or not port.isdecimal() or int(port) > 65535:
        raise SettingsError(f"setting '{setting}' is {text!r}: it takes host:port, such as 127.0.0.1:9092")
    return Address(host.strip("[]"), int(port))


def check_exposure(address: Address, setting: str, insecure: bool) -> None:
    """Raise SettingsError for an address that other machines can reach without authentication, unless `insecure`."""
    if not insecure and not is_loopback(address.host):
        raise SettingsError(
            f"{setting} {address} can be reached from other machines, and clients are not authenticated:"
            " bind to 127.0.0.1, or add --insecure"
        )


def bind(address: Address, setting: str) -> socket.socket:
    """Return a socket that listens on an address. Raises StartupError."""
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    bound = socket.socket(family, socket.SOCK_STREAM)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind((address.host, address.port))
        bound.listen(1024)
        bound.setblocking(False)
    except (OSError, OverflowError) as error:
        bound.close()
        raise _cannot_bind(address, setting, error) from error
    return bound


def bound_address(bound: socket.socket) -> Address:
    """Return the address on which a socket listens, with the port that the system chose for port 0."""
    name = bound.getsockname()
    return Address(name[0], name[1])


def reachable_host(host: str) -> str:
    """Return the host by which other machines reach a bound address: for a wildcard, the name of this machine."""
    return socket.getfqdn() if host in ("0.0.0.0", "::") else host  # noqa: S104


def _cannot_bind(address: Address, setting: str, error: Exception) -> StartupError:
    if isinstance(error, OSError) and error.errno == errno.EADDRINUSE:
        return StartupError(
            f"port {address.port} on {address.host} is in use by another process:"
            f" stop it, or choose another port with --{setting} {address.host}:PORT (0 picks a free one)"
        )
    return StartupError(f"cannot listen on {address} (--{setting}): {error}")
