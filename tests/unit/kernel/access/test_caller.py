"""A caller names who asks, and is decoded only if nothing in it is unknown."""

from typing import Any

import msgspec
import pytest

from conveyor.kernel.access.caller import (
    ANONYMOUS,
    HTTP,
    PEER,
    PLAINTEXT,
    Caller,
    Principal,
    PrincipalType,
    client_address,
)
from conveyor.kernel.ids import NodeId
from tests.callers import CALLER

ALICE = Caller(Principal(PrincipalType.USER, "alice"), "192.0.2.7", HTTP, 12)
SENT = [["User", "alice"], "192.0.2.7", "HTTP", 12]


def decoded(value: Any) -> Caller:
    return msgspec.msgpack.decode(msgspec.msgpack.encode(value), type=Caller)


def test_a_client_without_authentication_is_kafkas_anonymous_user() -> None:
    assert str(ANONYMOUS) == "User:ANONYMOUS"
    assert str(CALLER) == "User:ANONYMOUS@192.0.2.1"
    assert CALLER.principal.type is PrincipalType.USER


def test_a_broker_on_its_own_account_is_recognised() -> None:
    broker = Caller.broker(NodeId(3))
    assert broker.principal.type is PrincipalType.BROKER
    assert str(broker) == "Broker:3"
    assert (broker.address, broker.listener, broker.connection_id) == ("", PEER, 0)


def test_a_client_cannot_take_the_name_of_a_broker() -> None:
    named = Caller(Principal(PrincipalType.USER, "Broker:3"), "192.0.2.7", PLAINTEXT, 1)
    assert named.principal != Caller.broker(NodeId(3)).principal


@pytest.mark.parametrize(
    ("shown", "address"),
    [
        ("192.0.2.1", "192.0.2.1"),
        ("::ffff:192.0.2.1", "192.0.2.1"),
        ("::ffff:c000:201", "192.0.2.1"),
        ("2001:db8::1", "2001:db8::1"),
        ("::ffff:0:c000:201", "::ffff:0:c000:201"),
        ("fe80::1%eth0", "fe80::1%eth0"),
        ("?", "?"),
    ],
)
def test_an_address_of_ipv4_is_written_in_one_way(shown: str, address: str) -> None:
    assert client_address(shown) == address


def test_a_caller_arrives_as_it_was_sent() -> None:
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(ALICE)) == SENT
    assert decoded(SENT) == ALICE
    assert hash(decoded(SENT)) == hash(ALICE)


@pytest.mark.parametrize(
    "value",
    [
        None,
        "User:alice",
        [],
        SENT[:3],
        [*SENT, "a restriction of a later version"],
        [["User", "alice", "a later field"], *SENT[1:]],
        [["User"], *SENT[1:]],
        [["User", ""], *SENT[1:]],
        [["Group", "alice"], *SENT[1:]],
        [SENT[0], "192.0.2.7", "", 12],
        [SENT[0], None, "HTTP", 12],
        [SENT[0], "192.0.2.7", "HTTP", -1],
        [SENT[0], "192.0.2.7", "HTTP", "12"],
    ],
)
def test_anything_else_is_no_caller(value: Any) -> None:
    with pytest.raises(msgspec.ValidationError):
        decoded(value)


def test_a_caller_does_not_change() -> None:
    with pytest.raises(AttributeError):
        CALLER.principal = Principal(PrincipalType.USER, "mallory")  # type: ignore[misc]
