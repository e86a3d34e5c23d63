"""Signatures by Standard Webhooks, as its own library checks them."""

import time

import pytest
from standardwebhooks.webhooks import Webhook, WebhookVerificationError

from conveyor.kernel.errors import RequestError
from conveyor.queues.push.webhook_signature import parse_secret, secret_text, webhook_headers

OLD, NEW = bytes(range(32)), bytes(range(100, 132))


def test_signature_of_the_specification() -> None:
    secret = parse_secret("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
    headers = webhook_headers("msg_p5jXN8AQM9LWM0D4loKWxJek", 1_614_265_330, b'{"test": 2432232314}', [secret])
    assert dict(headers) == {
        "webhook-id": "msg_p5jXN8AQM9LWM0D4loKWxJek",
        "webhook-timestamp": "1614265330",
        "webhook-signature": "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=",
    }


@pytest.mark.parametrize("secret", [OLD, NEW])
def test_receiver_with_either_of_two_secrets_takes_a_request(secret: bytes) -> None:
    headers = dict(webhook_headers("id", int(time.time()), b'{"a": 1}', [NEW, OLD]))
    assert Webhook(secret_text(secret)).verify(b'{"a": 1}', headers) == {"a": 1}
    with pytest.raises(WebhookVerificationError):
        Webhook(secret_text(bytes(32))).verify(b'{"a": 1}', headers)
    with pytest.raises(WebhookVerificationError):
        Webhook(secret_text(secret)).verify(b'{"a": 2}', headers)


def test_secret_is_read_as_it_is_shown() -> None:
    assert parse_secret(secret_text(OLD)) == OLD


@pytest.mark.parametrize(
    "text",
    [
        "",
        "whsec_",
        "whsec_AAAA",
        "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=",
        "whsec_" + "A" * 200,
        "whsec_!!!!",
        "whsec_\u00e4",
    ],
)
def test_other_secrets_are_refused_without_being_repeated(text: str) -> None:
    with pytest.raises(RequestError, match=r"push\.secret must be") as refused:
        parse_secret(text)
    assert len(text) < 7 or text not in refused.value.message
