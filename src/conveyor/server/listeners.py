"""The listeners for clients: their settings, their sockets, and where clients reach them.

Kafka clients have one listener or several, each with a name and a security protocol; HTTP clients have one.
"""

import re
import socket
from collections.abc import Iterator, Mapping
from enum import StrEnum
from typing import NamedTuple

from conveyor.cluster.image import BrokerEndpoint
from conveyor.kernel.access.caller import HTTP, PEER, PLAINTEXT
from conveyor.kernel.errors import SettingsError
from conveyor.server.addresses import Address, bind, bound_address, check_exposure, parse_address, reachable_host
from conveyor.settings.network_settings import NetworkSettings
from conveyor.settings.tls_settings import REQUIRED
from conveyor.settings.tree import Settings

HTTPS = "https://"

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,63}")
_RESERVED = (HTTP, PEER)


class SecurityProtocol(StrEnum):
    """The way in which clients connect to a Kafka listener. The values are Kafka's."""

    PLAINTEXT = "PLAINTEXT"
    SSL = "SSL"
    SASL_PLAINTEXT = "SASL_PLAINTEXT"
    SASL_SSL = "SASL_SSL"

    @property
    def is_encrypted(self) -> bool:
        return self.endswith("SSL")

    @property
    def has_users(self) -> bool:
        """Whether clients log in by SASL."""
        return self.startswith("SASL")


class ListenerAddress(NamedTuple):
    """A listener for clients, and the address that it binds, or has bound."""

    name: str
    protocol: SecurityProtocol
    address: Address

    def __str__(self) -> str:
        """Return the listener as its setting lists it."""
        if self.name == HTTP:
            return f"{HTTPS if self.protocol.is_encrypted else ''}{self.address}"
        return str(self.address) if self.name == PLAINTEXT else f"{self.name}://{self.address}"


def kafka_listeners(network: NetworkSettings) -> list[ListenerAddress]:
    """Return the Kafka listeners of the settings, at least one. Raises SettingsError."""
    pairs = [item.strip().partition(":") for item in network.listener_protocols.split(",") if item.strip()]
    protocols = {name: protocol for name, _, protocol in pairs}
    addresses = _addresses(network.kafka, "network.kafka")
    if not addresses:
        raise SettingsError("network.kafka lists no listener: it takes host:port, such as 127.0.0.1:9092")
    unused = protocols.keys() - addresses.keys()
    if unused:
        raise SettingsError(f"network.listener_protocols names {min(unused)}, which is no listener in network.kafka")
    return [ListenerAddress(name, _protocol(name, protocols), address) for name, address in addresses.items()]


def http_listener(network: NetworkSettings) -> ListenerAddress:
    """Return the HTTP listener of the settings. Raises SettingsError."""
    is_encrypted = network.http.startswith(HTTPS)
    text = network.http.removeprefix(HTTPS if is_encrypted else "http://")
    protocol = SecurityProtocol.SSL if is_encrypted else SecurityProtocol.PLAINTEXT
    return ListenerAddress(HTTP, protocol, parse_address(text, "network.http"))


class ClientListeners:
    """The sockets of all listeners for clients. has_tokens: HTTP clients must send a token.

    Raises SettingsError, also for a listener that others can reach although its clients are not authenticated;
    StartupError.
    """

    def __init__(self, settings: Settings, *, has_tokens: bool) -> None:
        self._network = settings.network
        self._has_certificates = settings.tls.client_auth == REQUIRED
        self.sockets: list[socket.socket] = []
        try:
            self.kafka = [self._bind(listener, "kafka") for listener in kafka_listeners(self._network)]
            self.http = self._bind(http_listener(self._network), "http", is_safe=has_tokens or self._network.http_users)
            self.endpoints = _endpoints(self._network, {item.name: item.address for item in self.kafka})
        except BaseException:
            self.close()
            raise

    @property
    def need_tls(self) -> bool:
        return any(listener.protocol.is_encrypted for listener in (*self.kafka, self.http))

    def __str__(self) -> str:
        """Return the Kafka listeners as their setting lists them."""
        return ",".join(map(str, self.kafka))

    def http_url(self, *, host: str | None = None) -> str:
        """Return the URL of the HTTP listener, without a slash at the end. host: in place of the one that it binds."""
        scheme, address = "https" if self.http.protocol.is_encrypted else "http", self.http.address
        return f"{scheme}://{Address(host or address.host, address.port)}"

    def close(self) -> None:
        for bound in self.sockets:
            bound.close()

    def _bind(self, listener: ListenerAddress, flag: str, *, is_safe: bool = False) -> ListenerAddress:
        protocol = listener.protocol
        is_authenticated = is_safe or (protocol.is_encrypted and (protocol.has_users or self._has_certificates))
        check_exposure(listener.address, f"--{flag}", self._network.insecure or is_authenticated)
        bound = bind(listener.address, flag)
        self.sockets.append(bound)
        return listener._replace(address=bound_address(bound))


def split_listeners(text: str) -> Iterator[tuple[str, str]]:
    """Yield the prefix, such as `SSL://`, and the address of each listener in a list."""
    for item in filter(None, map(str.strip, text.split(","))):
        name, separator, address = item.rpartition("://")
        yield name + separator, address


def _endpoints(network: NetworkSettings, bound: Mapping[str, Address]) -> dict[str, BrokerEndpoint]:
    """Return where clients reach each Kafka listener. The name of this machine replaces a wildcard address."""
    advertised = _addresses(network.advertised, "network.advertised")
    unknown = advertised.keys() - bound.keys()
    if unknown:
        raise SettingsError(
            f"network.advertised names {min(unknown)}, which is no listener in network.kafka: write NAME://host:port"
            f" with one of {', '.join(bound)}"
        )
    reachable = {name: Address(reachable_host(host), port) for name, (host, port) in bound.items()}
    return {name: BrokerEndpoint(*address) for name, address in (reachable | advertised).items()}


def _addresses(text: str, setting: str) -> dict[str, Address]:
    addresses: dict[str, Address] = {}
    for prefix, address in split_listeners(text):
        name = prefix.removesuffix("://") if prefix else PLAINTEXT
        if not _NAME.fullmatch(name) or name in _RESERVED:
            raise SettingsError(f"setting '{setting}' is {text!r}: {name!r} cannot be the name of a listener")
        if name in addresses:
            raise SettingsError(f"setting '{setting}' is {text!r}: two listeners are named {name}")
        addresses[name] = parse_address(address, setting)
    return addresses


def _protocol(name: str, protocols: Mapping[str, str]) -> SecurityProtocol:
    protocol = protocols.get(name, name)
    try:
        return SecurityProtocol(protocol)
    except ValueError:
        raise SettingsError(
            f"the listener {name} has the security protocol {protocol!r}: name it {' or '.join(SecurityProtocol)}, or"
            f" set network.listener_protocols to {name}:{SecurityProtocol.SSL}"
        ) from None
