"""OAUTHBEARER is one message with a token; the client of a refused one has a last word."""

import pytest

from conveyor.kafka_api.wire.sasl.oauth_exchange import MAX_OAUTH_BYTES, OauthExchange
from conveyor.kafka_api.wire.sasl.sasl_steps import Challenge, ExchangeRefused, SaslFailed, TokenWanted

RFC_7628 = (
    b"n,a=user@example.com,\1host=server.example.com\1port=143\1"
    b"auth=Bearer vF9dft4qmTc2Nvb3RlckBhbHRhdmlzdGEuY29tCg==\1\1"
)
"""The example of section 4.1."""


def test_example_of_the_rfc_is_understood() -> None:
    token = "vF9dft4qmTc2Nvb3RlckBhbHRhdmlzdGEuY29tCg=="
    assert OauthExchange().step(RFC_7628) == TokenWanted(token, "user@example.com")


@pytest.mark.parametrize(
    ("message", "identity"),
    [
        (b"n,,\1auth=Bearer a.b-c_d\1\1", ""),
        (b"y,,\1auth=Bearer a.b-c_d\1\1", ""),
        (b"n,,\1auth=bearer   a.b-c_d\1logicalCluster=lkc-1\1empty=\1\1", ""),
        (b"n,a=a=2Cb=3D,\1traceId=1 2\1auth=BEARER a.b-c_d\1\1", "a,b="),
    ],
)
def test_what_clients_send_is_understood(message: bytes, identity: str) -> None:
    assert OauthExchange().step(message) == TokenWanted("a.b-c_d", identity)


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"\1",
        b"n,,",
        b"n,,\1\1",
        b"n,,\1auth=Bearer t\1",
        b"n,,auth=Bearer t\1\1",
        b"p=tls-unique,,\1auth=Bearer t\1\1",
        b"n,b=x,\1auth=Bearer t\1\1",
        b"n,a=x=zz,\1auth=Bearer t\1\1",
        b"n,,\1auth=Basic t\1\1",
        b"n,,\1auth=Bearer\1\1",
        b"n,,\1auth=Bearer a b\1\1",
        b"n,,\1auth=Bearer a=b\1\1",
        b"n,,\1auth=Bearer t\1auth=Bearer u\1\1",
        b"n,,\1auth=Bearer t\1\1\1",
        b"n,,\1auth=Bearer t\1k3y=value\1\1",
        b"n,,\1auth=Bearer t\1key=\0\1\1",
        b"n,,\1auth=Bearer t\1key\1\1",
        b"n,,\1host=h\1\1",
        b"\xff,,\1auth=Bearer t\1\1",
        b"n,,\1auth=Bearer " + b"t" * MAX_OAUTH_BYTES + b"\1\1",
        b"n,,\1auth=Bearer " + b"t" * (1 << 20) + b"\1\1",
    ],
)
def test_anything_else_is_refused(message: bytes) -> None:
    with pytest.raises(SaslFailed):
        OauthExchange().step(message)


@pytest.mark.parametrize("last", [b"\1", b"", RFC_7628])
def test_client_of_a_refused_token_is_told_and_has_a_last_word(last: bytes) -> None:
    exchange = OauthExchange()
    exchange.step(RFC_7628)
    assert exchange.refuse() == Challenge(b'{"status":"invalid_token"}')
    assert exchange.step(last) == ExchangeRefused()


def test_token_is_not_shown() -> None:
    assert "vF9" not in repr(OauthExchange().step(RFC_7628))
