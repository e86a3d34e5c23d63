"""Hostile users who have logged in and have no right, and strangers at the HTTP door: they learn and change nothing.

`STRANGERS` and `STRANGER_SEED` in the environment are those of `test_hostile_strangers`.
"""

import logging
import os
import socket
import time
from collections.abc import Callable, Iterator
from random import Random
from urllib.parse import urlsplit

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient

from conveyor.settings.sasl_settings import MECHANISMS
from conveyor.testing import Broker
from tests.certificates import Certificates
from tests.clients.raw_login import encrypted, logged_in, logged_in_by_token
from tests.clients.test_rest_users import set_password
from tests.clients.test_secure_testing import add_user, settings
from tests.faults.hostile_frames import http_requests, strange_frames, users_frames
from tests.faults.test_hostile_strangers import SEED, WAIT_S, answers
from tests.identity_provider import AUDIENCE, key_set, signing_key, token

ATTEMPTS = int(os.environ.get("STRANGERS", "100"))
HIDDEN, SECRET = "hidden", b"the secret message"


EVE = "eve", "secret"
"""A user without rights, and the password."""


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def broker(certificates: Certificates, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """Yield a broker with a topic and a message in it, which only the administrator may see."""
    keys = tmp_path_factory.mktemp("keys") / "keys.json"
    keys.write_bytes(key_set(signing_key("ES256")))
    own = {
        "network.kafka": ",".join(f"{name}://127.0.0.1:0" for name in ("SASL_SSL", "SASL_PLAINTEXT", "SSL")),
        "tls.client_ca_file": certificates.authority,
        "tls.client_auth": "requested",
        "network.sasl_mechanisms": ",".join(MECHANISMS),
        "sasl.jwks_file": str(keys),
        "sasl.oauth_audience": AUDIENCE,
        "sasl.oauth_issuer": "*",
    }
    with Broker(memory=True, security=True, settings=own) as running:
        add_user(running, EVE[0])
        hide_a_message(settings(running))
        yield running
        assert topics(settings(running)) == {HIDDEN}


@pytest.fixture(scope="module")
def unencrypted(certificates: Certificates) -> Iterator[Broker]:
    """As `broker`, with plain HTTP and required certificates. The administrator uses the plain listener for Kafka."""
    own = {
        **certificates.settings("127.0.0.1:0,SSL://127.0.0.1:0", "required"),
        "network.http_users": True,
        "access.enabled": True,
        "access.super_users": "User:ANONYMOUS",
    }
    with Broker(memory=True, settings=own) as running:
        set_password(running, *EVE)
        hide_a_message(plain(running))
        yield running


def plain(broker: Broker) -> dict[str, str]:
    """Return how the administrator connects without TLS."""
    return {"bootstrap.servers": broker.bootstrap_servers}


def hide_a_message(administrator: dict[str, str]) -> None:
    producer = Producer(administrator)
    producer.produce(HIDDEN, SECRET)
    assert producer.flush(60) == 0


def topics(administrator: dict[str, str]) -> set[str]:
    """Return the topics of users as the administrator sees them."""
    return {name for name in AdminClient(administrator).list_topics(timeout=60).topics if not name.startswith("__")}


def eves_token() -> str:
    return token(int(time.time() * 1000), "ES256", sub=EVE[0])


Dial = Callable[[Broker, Certificates], socket.socket]
USERS: dict[str, Dial] = {
    "SASL_PLAINTEXT": lambda broker, _: logged_in(broker.kafka_addresses["SASL_PLAINTEXT"], None, *EVE),
    "SASL_SSL": lambda broker, _: logged_in(broker.kafka_addresses["SASL_SSL"], broker.ca_file, *EVE),
    "OAUTHBEARER": lambda broker, _: logged_in_by_token(
        broker.kafka_addresses["SASL_SSL"], broker.ca_file, eves_token()
    ),
    "SSL": lambda broker, own: encrypted(broker.kafka_addresses["SSL"], broker.ca_file, own.client),
}


def check_attempts(
    administrator: dict[str, str],
    dial: Callable[[], socket.socket],
    sent: Callable[[Random], bytes],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Nothing that is sent is answered with what only the administrator may see, and no bug is logged."""
    caplog.set_level(logging.ERROR)
    for number in range(ATTEMPTS):
        with dial() as connection:
            connection.settimeout(WAIT_S)
            content = sent(Random(SEED + number))
            received = answers(connection, content)
        assert SECRET not in received, f"STRANGER_SEED={SEED + number} STRANGERS=1"
        assert HIDDEN.encode() not in received or HIDDEN.encode() in content or b"%68idden" in content
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]
    assert topics(administrator) == {HIDDEN}


@pytest.mark.parametrize("listener", USERS)
def test_user_without_rights_learns_and_changes_nothing(
    broker: Broker, certificates: Certificates, listener: str, caplog: pytest.LogCaptureFixture
) -> None:
    check_attempts(settings(broker), lambda: USERS[listener](broker, certificates), users_frames, caplog)


def requests_of(credentials: str | None) -> Callable[[Random], bytes]:
    return lambda random: b"".join(http_requests(random, credentials))


@pytest.mark.parametrize("credentials", [None, ":".join(EVE)], ids=["stranger", "user"])
def test_http_client_without_rights_learns_and_changes_nothing(
    broker: Broker, credentials: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    address = urlsplit(broker.http_url).netloc
    check_attempts(settings(broker), lambda: encrypted(address, broker.ca_file), requests_of(credentials), caplog)


@pytest.mark.parametrize("credentials", [None, ":".join(EVE)], ids=["stranger", "user"])
def test_client_of_plain_http_without_rights_learns_and_changes_nothing(
    unencrypted: Broker, credentials: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    address = urlsplit(unencrypted.http_url).netloc
    check_attempts(plain(unencrypted), lambda: encrypted(address, None), requests_of(credentials), caplog)


@pytest.mark.parametrize("is_foreign", [False, True])
def test_client_without_the_required_certificate_gets_no_answer(
    unencrypted: Broker, certificates: Certificates, is_foreign: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """It has none, or one of another authority. With TLS 1.3 its handshake ends before the broker has looked."""
    address, own = unencrypted.kafka_addresses["SSL"], certificates.foreign_client if is_foreign else None
    caplog.set_level(logging.ERROR)
    for number in range(ATTEMPTS):
        with encrypted(address, certificates.authority, own) as connection:
            assert answers(connection, strange_frames(Random(SEED + number))) == b""
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]
    assert topics(plain(unencrypted)) == {HIDDEN}
