"""The listeners that settings name: what they bind, how their clients connect, and where they are announced."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from conveyor.cluster.image import BrokerEndpoint
from conveyor.kernel.errors import SettingsError
from conveyor.server.addresses import Address
from conveyor.server.listeners import ClientListeners, kafka_listeners
from conveyor.settings.network_settings import NetworkSettings
from conveyor.settings.tls_settings import TlsSettings
from conveyor.settings.tree import Settings


@contextmanager
def opened(
    network: NetworkSettings, tls: TlsSettings | None = None, *, has_tokens: bool = False
) -> Iterator[ClientListeners]:
    listeners = ClientListeners(Settings(network=network, tls=tls or TlsSettings()), has_tokens=has_tokens)
    yield listeners
    listeners.close()


@pytest.mark.parametrize(
    ("kafka", "protocols", "expected"),
    [
        ("h:1", "", [("PLAINTEXT", "PLAINTEXT", "h:1")]),
        ("PLAINTEXT://h:1", "", [("PLAINTEXT", "PLAINTEXT", "h:1")]),
        ("SSL://[::1]:2", "", [("SSL", "SSL", "[::1]:2")]),
        (" h:1 , SSL://h:2,", "", [("PLAINTEXT", "PLAINTEXT", "h:1"), ("SSL", "SSL", "h:2")]),
        ("IN://h:1,OUT://h:2", "IN:PLAINTEXT, OUT:SSL", [("IN", "PLAINTEXT", "h:1"), ("OUT", "SSL", "h:2")]),
        ("h:1", "PLAINTEXT:SSL", [("PLAINTEXT", "SSL", "h:1")]),
    ],
)
def test_each_listener_has_a_name_and_a_protocol(
    kafka: str, protocols: str, expected: list[tuple[str, str, str]]
) -> None:
    listeners = kafka_listeners(NetworkSettings(kafka=kafka, listener_protocols=protocols))
    assert [(name, str(protocol), str(address)) for name, protocol, address in listeners] == expected


@pytest.mark.parametrize(
    ("kafka", "protocols", "reason"),
    [
        ("", "", r"network\.kafka lists no listener"),
        ("nowhere", "", "it takes host:port"),
        ("h:1,h:2", "", "two listeners are named PLAINTEXT"),
        ("SSL://h:1,SSL://h:2", "", "two listeners are named SSL"),
        (
            "OUT://h:1",
            "",
            "the listener OUT has the security protocol 'OUT': name it PLAINTEXT or SSL or ",
        ),
        ("OUT://h:1", "OUT:TLS", "the listener OUT has the security protocol 'TLS'"),
        ("h:1", "OUT:SSL", r"network\.listener_protocols names OUT, which is no listener"),
        ("HTTP://h:1", "HTTP:SSL", "'HTTP' cannot be the name of a listener"),
        ("PEER://h:1", "PEER:SSL", "'PEER' cannot be the name of a listener"),
        ("a b://h:1", "", "'a b' cannot be the name of a listener"),
        ("://h:1", "", "'://h:1'.* cannot be the name"),
    ],
)
def test_listeners_that_cannot_be_are_refused(kafka: str, protocols: str, reason: str) -> None:
    with pytest.raises(SettingsError, match=reason):
        kafka_listeners(NetworkSettings(kafka=kafka, listener_protocols=protocols))


def test_clients_are_told_the_address_of_their_listener() -> None:
    network = NetworkSettings(
        kafka="127.0.0.1:0,SSL://127.0.0.1:0", http="https://127.0.0.1:0", advertised="SSL://kafka.example:443"
    )
    with opened(network) as listeners:
        plain = listeners.kafka[0].address
        assert plain.port
        assert listeners.endpoints == {
            "PLAINTEXT": BrokerEndpoint(*plain), "SSL": BrokerEndpoint("kafka.example", 443),
        }  # fmt: skip
        assert str(listeners) == f"{plain},SSL://{listeners.kafka[1].address}"
        assert listeners.http_url() == f"https://{listeners.http.address}" == str(listeners.http)
        assert listeners.http_url(host="h.example") == f"https://h.example:{listeners.http.address.port}"
        assert listeners.need_tls


def test_one_listener_needs_no_name() -> None:
    with opened(NetworkSettings(kafka="127.0.0.1:0", http="127.0.0.1:0", advertised="kafka.example:1")) as listeners:
        assert listeners.endpoints == {"PLAINTEXT": BrokerEndpoint("kafka.example", 1)}
        assert listeners.http_url() == f"http://{listeners.http}"
        assert not listeners.need_tls


def test_advertised_address_of_an_unknown_listener_is_refused() -> None:
    network = NetworkSettings(kafka="127.0.0.1:0", http="127.0.0.1:0", advertised="SSL://kafka.example:1")
    with pytest.raises(SettingsError, match=r"network\.advertised names SSL, which is no listener .* one of PLAINTEXT"):
        ClientListeners(Settings(network=network), has_tokens=False)


REQUIRED = TlsSettings(client_auth="required", client_ca_file="ca.pem")
REQUESTED = TlsSettings(client_auth="requested", client_ca_file="ca.pem")


@pytest.mark.parametrize(
    ("network", "tls", "flag"),
    [
        (NetworkSettings(kafka="0.0.0.0:0", http="127.0.0.1:0"), None, "--kafka"),
        (NetworkSettings(kafka="127.0.0.1:0,SSL://0.0.0.0:0", http="127.0.0.1:0"), None, "--kafka"),
        (NetworkSettings(kafka="SSL://0.0.0.0:0", http="127.0.0.1:0"), REQUESTED, "--kafka"),
        (NetworkSettings(kafka="SASL_PLAINTEXT://0.0.0.0:0", http="127.0.0.1:0"), None, "--kafka"),
        (NetworkSettings(kafka="SSL://0.0.0.0:0,0.0.0.0:0", http="127.0.0.1:0"), REQUIRED, "--kafka"),
        (NetworkSettings(kafka="SSL://0.0.0.0:0", http="0.0.0.0:0"), REQUIRED, "--http"),
        (NetworkSettings(kafka="SSL://0.0.0.0:0", http="https://0.0.0.0:0"), None, "--kafka"),
    ],
)
def test_listener_that_others_reach_without_authentication_is_refused(
    network: NetworkSettings, tls: TlsSettings | None, flag: str
) -> None:
    settings = Settings(network=network, tls=tls or TlsSettings())
    with pytest.raises(SettingsError, match=rf"{flag} 0\.0\.0\.0:0 can be reached from other machines"):
        ClientListeners(settings, has_tokens=False)


def test_clients_with_certificates_or_tokens_are_authenticated() -> None:
    with opened(NetworkSettings(kafka="SSL://0.0.0.0:0", http="https://0.0.0.0:0"), REQUIRED) as listeners:
        assert listeners.kafka[0].address.host == "0.0.0.0"
    with opened(NetworkSettings(kafka="127.0.0.1:0", http="0.0.0.0:0"), has_tokens=True) as listeners:
        assert listeners.http.address.host == "0.0.0.0"


def test_nothing_stays_bound_if_a_listener_is_refused() -> None:
    with opened(NetworkSettings(kafka="127.0.0.1:0", http="127.0.0.1:0")) as free:
        ports = [free.kafka[0].address, free.http.address]
    first, second = (str(Address(*port)) for port in ports)
    with pytest.raises(SettingsError):
        ClientListeners(
            Settings(network=NetworkSettings(kafka=first, http=second, advertised="SSL://h:1")), has_tokens=False
        )
    with opened(NetworkSettings(kafka=first, http=second)):
        pass
