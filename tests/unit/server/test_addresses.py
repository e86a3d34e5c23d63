"""Addresses are parsed, bound, and restricted to this machine."""

import socket

import pytest

from conveyor.kernel.errors import SettingsError, StartupError
from conveyor.server.addresses import Address, bind, bound_address, check_exposure, parse_address


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("127.0.0.1:9092", Address("127.0.0.1", 9092)),
        ("localhost:0", Address("localhost", 0)),
        ("[::1]:65535", Address("::1", 65535)),
        ("::1:9092", Address("::1", 9092)),
    ],
)
def test_an_address_is_parsed(text: str, address: Address) -> None:
    assert parse_address(text, "network.kafka") == address


@pytest.mark.parametrize(
    "text", ["", "9092", ":9092", "host:", "host:x", "host:65536", "host:-1", "host:1.5", "host:²"]
)
def test_an_invalid_address_is_refused_with_the_settings_name(text: str) -> None:
    with pytest.raises(SettingsError, match=r"setting 'network\.http' is .*: it takes host:port, such as"):
        parse_address(text, "network.http")


@pytest.mark.parametrize("address", [Address("127.0.0.1", 1), Address("::1", 2), Address("broker.example", 3)])
def test_a_printed_address_parses_to_the_same_value(address: Address) -> None:
    assert parse_address(str(address), "x") == address


@pytest.mark.parametrize("host", ["127.0.0.1", "127.9.9.9", "::1", "localhost"])
def test_this_machine_may_always_connect(host: str) -> None:
    check_exposure(Address(host, 1), "--kafka", insecure=False)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "broker.example", ""])
def test_other_machines_may_connect_only_if_insecure(host: str) -> None:
    with pytest.raises(SettingsError, match=r"^--kafka .* 127\.0\.0\.1, or add --insecure$"):
        check_exposure(Address(host, 1), "--kafka", insecure=False)
    check_exposure(Address(host, 1), "--kafka", insecure=True)


def test_port_0_is_replaced_by_a_free_one() -> None:
    with bind(Address("127.0.0.1", 0), "kafka") as bound:
        address = bound_address(bound)
        assert address.port > 0
        with socket.create_connection(address):
            pass


def test_a_taken_port_is_named() -> None:
    with bind(Address("127.0.0.1", 0), "kafka") as taken:
        address = bound_address(taken)
        with pytest.raises(StartupError, match=f"port {address.port} on 127.0.0.1 is in use .* --http 127.0.0.1:PORT"):
            bind(address, "http")


def test_a_foreign_address_is_named() -> None:
    with pytest.raises(StartupError, match=r"cannot listen on 192\.0\.2\.1:0 \(--kafka\)"):
        bind(Address("192.0.2.1", 0), "kafka")
