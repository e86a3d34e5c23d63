"""Hostile users who have logged in and have no right, and strangers at the HTTP door: they learn and change nothing.

`STRANGERS` and `STRANGER_SEED` in the environment are those of `test_hostile_strangers`.
"""

import logging
import os
import socket
from collections.abc import Callable, Iterator
from random import Random
from urllib.parse import urlsplit

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient

from conveyor.testing import Broker
from tests.certificates import Certificates
from tests.clients.raw_login import encrypted, logged_in
from tests.clients.test_secure_testing import add_user, settings
from tests.faults.hostile_frames import http_requests, users_frames
from tests.faults.test_hostile_strangers import SEED, WAIT_S, answers

ATTEMPTS = int(os.environ.get("STRANGERS", "100"))
HIDDEN, SECRET = "hidden", b"the secret message"


EVE = "eve", "secret"
"""A user without rights, and the password."""


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def broker(certificates: Certificates) -> Iterator[Broker]:
    """Yield a broker with a topic and a message in it, which only the administrator may see."""
    own = {
        "network.kafka": ",".join(f"{name}://127.0.0.1:0" for name in ("SASL_SSL", "SASL_PLAINTEXT", "SSL")),
        "tls.client_ca_file": certificates.authority,
        "tls.client_auth": "requested",
    }
    with Broker(memory=True, security=True, settings=own) as running:
        add_user(running, EVE[0])
        producer = Producer(settings(running))
        producer.produce(HIDDEN, SECRET)
        assert producer.flush(60) == 0
        yield running
        assert topics(running) == {HIDDEN}


def topics(broker: Broker) -> set[str]:
    """Return the topics of users as the administrator sees them."""
    return {name for name in AdminClient(settings(broker)).list_topics(timeout=60).topics if not name.startswith("__")}


Dial = Callable[[Broker, Certificates], socket.socket]
USERS: dict[str, Dial] = {
    "SASL_PLAINTEXT": lambda broker, _: logged_in(broker.kafka_addresses["SASL_PLAINTEXT"], None, *EVE),
    "SASL_SSL": lambda broker, _: logged_in(broker.kafka_addresses["SASL_SSL"], broker.ca_file, *EVE),
    "SSL": lambda broker, own: encrypted(broker.kafka_addresses["SSL"], broker.ca_file, own.client),
}


def check_attempts(
    broker: Broker, dial: Callable[[], socket.socket], sent: Callable[[Random], bytes], caplog: pytest.LogCaptureFixture
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
    assert topics(broker) == {HIDDEN}


@pytest.mark.parametrize("listener", USERS)
def test_user_without_rights_learns_and_changes_nothing(
    broker: Broker, certificates: Certificates, listener: str, caplog: pytest.LogCaptureFixture
) -> None:
    check_attempts(broker, lambda: USERS[listener](broker, certificates), users_frames, caplog)


@pytest.mark.parametrize("credentials", [None, ":".join(EVE)], ids=["stranger", "user"])
def test_http_client_without_rights_learns_and_changes_nothing(
    broker: Broker, credentials: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    address = urlsplit(broker.http_url).netloc

    def sent(random: Random) -> bytes:
        return b"".join(http_requests(random, credentials))

    check_attempts(broker, lambda: encrypted(address, broker.ca_file), sent, caplog)
