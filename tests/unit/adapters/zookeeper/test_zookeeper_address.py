"""Addresses of a ZooKeeper."""

import pytest

from conveyor.adapters.zookeeper.zookeeper_address import parse_zookeeper_address
from conveyor.kernel.errors import SettingsError


@pytest.mark.parametrize(
    ("text", "servers", "root", "credentials"),
    [
        ("zookeeper://a", "a:2181", "", None),
        ("zookeeper://a/", "a:2181", "", None),
        ("zookeeper://a:1,b:2,c/x/y/", "a:1,b:2,c:2181", "/x/y", None),
        ("zookeeper://10.0.0.1:2181,[::1]:2182/x", "10.0.0.1:2181,[::1]:2182", "/x", None),
        ("zookeeper://me:a%40b%2Fc:d@host/x", "host:2181", "/x", "me:a@b/c:d"),
    ],
)
def test_address_is_read(text: str, servers: str, root: str, credentials: str | None) -> None:
    address = parse_zookeeper_address(text)
    assert (address.servers, address.root, address.credentials) == (servers, root, credentials)
    assert str(address) == f"zookeeper://{servers}{root}"


@pytest.mark.parametrize(
    "text",
    [
        "embeded",
        "sqlite://secret",
        "zookeeper://",
        "zookeeper://a:0",
        "zookeeper://a:65536",
        "zookeeper://a,,b",
        "zookeeper://a b",
        "zookeeper://secret@a/x",
        "zookeeper://:secret@a/x",
        "zookeeper://a/x/../y",
        "zookeeper://a/x\ny",
    ],
)
def test_anything_else_is_refused_without_its_password(text: str) -> None:
    with pytest.raises(SettingsError, match=r"zookeeper://host:2181,host:2181/path") as refusal:
        parse_zookeeper_address(text)
    assert "secret" not in str(refusal.value)
