"""PLAIN is one message with a user and a password."""

import pytest

from conveyor.kafka_api.wire.sasl.sasl_steps import PasswordWanted, PlainExchange, SaslFailed


@pytest.mark.parametrize("identity", [b"", b"alice"])
def test_user_and_password_are_found(identity: bytes) -> None:
    assert PlainExchange().step(identity + b"\0alice\0p\xc3\xa4ss") == PasswordWanted("alice", "päss")


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"\0",
        b"alice",
        b"\0alice",
        b"\0\0p",
        b"\0alice\0",
        b"bob\0alice\0p",
        b"\0a\0p\0",
        b"\0\xff\0p",
        b"\0a\0" + b"p" * 1_022,
    ],
)
def test_anything_else_is_refused(message: bytes) -> None:
    with pytest.raises(SaslFailed):
        PlainExchange().step(message)
