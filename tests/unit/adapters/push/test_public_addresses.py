"""The addresses that a push may reach without the operator's permission."""

import pytest

from conveyor.adapters.push.public_addresses import is_loopback, is_public


@pytest.mark.parametrize("address", ["1.1.1.1", "93.184.216.34", "2606:4700::1111", "2a00:1450::1", "64:ff9b::101:101"])
def test_public_addresses(address: str) -> None:
    assert is_public(address)


@pytest.mark.parametrize(
    "address",
    [
        "0.0.0.0", "0.1.2.3", "10.0.0.1", "100.64.0.1", "127.0.0.1", "127.8.8.8", "169.254.169.254", "172.16.0.1",
        "172.31.255.255", "192.0.0.1", "192.0.2.1", "192.168.1.1", "198.18.0.1", "198.51.100.1", "203.0.113.1",
        "224.0.0.1", "239.255.255.255", "240.0.0.1", "255.255.255.255", "192.88.99.1",
        "::", "::1", "::ffff:127.0.0.1", "::ffff:10.0.0.1", "::ffff:1.1.1.1", "::127.0.0.1", "::7f00:1",
        "::ffff:0:127.0.0.1", "64:ff9b::127.0.0.1", "64:ff9b::a00:1", "64:ff9b::169.254.169.254",
        "64:ff9b:1::7f00:1", "100::1", "2001::1", "2001:db8::1", "2002:7f00:1::1", "2002:101:101::1", "fc00::1",
        "fd00:ec2::254", "fe80::1", "fe80::1%eth0", "2606:4700::1%1", "fec0::1", "ff02::1", "5f00::1", "3fff::1",
        "", "localhost", "1.1.1", "0x7f.1", "2130706433", "1.1.1.1 ",
    ],
)  # fmt: skip
def test_all_others_are_refused(address: str) -> None:
    assert not is_public(address)


@pytest.mark.parametrize("address", ["127.0.0.1", "127.255.255.254", "::1", "::ffff:127.0.0.1"])
def test_loopback_addresses(address: str) -> None:
    assert is_loopback(address)


@pytest.mark.parametrize("address", ["", "1.1.1.1", "10.0.0.1", "::", "0.0.0.0", "::ffff:10.0.0.1", "localhost"])
def test_other_addresses_are_not_loopback(address: str) -> None:
    assert not is_loopback(address)
