"""Strangers at the listeners with TLS and users: whatever they send, nobody gets in, and nothing of it stays.

`STRANGERS` in the environment says how many connections are tried at each listener, by default 150, `STRANGER_SEED`
which ones; a failure names its seed.
"""

import logging
import os
import socket
import ssl
from collections.abc import Iterator
from contextlib import suppress
from random import Random
from urllib.parse import urlsplit

import pytest
from confluent_kafka.admin import AdminClient

from conveyor.settings.sasl_settings import MECHANISMS
from conveyor.testing import Broker
from tests.faults.hostile_frames import no_tls, strange_frames
from tests.identity_provider import AUDIENCE, key_set, signing_key
from tests.unit.kafka_api.requests import METADATA, response

STRANGERS = int(os.environ.get("STRANGERS", "150"))
SEED = int(os.environ.get("STRANGER_SEED", "20261129"))
WAIT_S = 0.05
"""A stranger whose connection stays open waits so long for more answers."""
SASL_NAMES = ("SASL_PLAINTEXT", "SASL_SSL")


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    keys = tmp_path_factory.mktemp("keys") / "keys.json"
    keys.write_bytes(key_set(signing_key("ES256")))
    settings = {
        "network.kafka": ",".join(f"{name}://127.0.0.1:0" for name in (*SASL_NAMES, "SSL")),
        "network.sasl_mechanisms": ",".join(MECHANISMS),
        "sasl.jwks_file": str(keys),
        "sasl.oauth_audience": AUDIENCE,
        "sasl.oauth_issuer": "*",
    }
    with Broker(memory=True, security=True, settings=settings) as running:
        yield running


def answers(connection: socket.socket, sent: bytes) -> bytes:
    """Return what the broker answers until it closes the connection, or says nothing more."""
    received = b""
    with suppress(OSError):
        connection.sendall(sent)
        while data := connection.recv(65_536):
            received += data
    return received


def dial(broker: Broker, name: str, *, shakes: bool) -> socket.socket:
    address = urlsplit(broker.http_url).netloc if name == "HTTPS" else broker.kafka_addresses[name]
    host, _, port = address.rpartition(":")
    connection = socket.create_connection((host, int(port)), 5)
    if not shakes:
        return connection
    context = ssl.create_default_context(cafile=broker.ca_file)
    return context.wrap_socket(connection, server_hostname=host)


def shown(received: bytes) -> list[bytes]:
    """Return the frames in what was received."""
    found = []
    while len(received) >= 4:
        end = 4 + int.from_bytes(received[:4], "big")
        found.append(received[4:end])
        received = received[end:]
    return found


def assert_quiet(broker: Broker) -> None:
    """Nothing of strangers is left, and the user gets in."""
    settings = {
        "bootstrap.servers": broker.kafka_addresses["SASL_SSL"], "security.protocol": "SASL_SSL",
        "ssl.ca.location": broker.ca_file, "sasl.mechanism": "SCRAM-SHA-512", "sasl.username": broker.admin_user,
        "sasl.password": broker.admin_password,
    }  # fmt: skip
    assert AdminClient(settings).list_topics(timeout=30).topics == {}


@pytest.mark.parametrize("name", SASL_NAMES)
def test_nobody_gets_in_without_a_proof(broker: Broker, name: str, caplog: pytest.LogCaptureFixture) -> None:
    """No frame is an answer to Metadata, and no bug is logged."""
    caplog.set_level(logging.ERROR)
    for number in range(STRANGERS):
        random = Random(SEED + number)
        sent = strange_frames(random)
        try:
            with dial(broker, name, shakes=name == "SASL_SSL") as connection:
                connection.settimeout(WAIT_S)
                for frame in shown(answers(connection, sent)):
                    with pytest.raises(Exception):  # noqa: B017 - whatever kio says of another response
                        assert response(METADATA, 4, frame).brokers
        except AssertionError as failure:
            failure.add_note(f"STRANGER_SEED={SEED + number} STRANGERS=1")
            raise
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]
    assert_quiet(broker)


@pytest.mark.parametrize("name", ["SSL", "SASL_SSL", "HTTPS"])
def test_bytes_that_are_no_tls_do_no_harm(broker: Broker, name: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR)
    for number in range(STRANGERS):
        with dial(broker, name, shakes=False) as connection:
            connection.settimeout(WAIT_S)
            answers(connection, no_tls(Random(SEED + number)))
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]
    assert_quiet(broker)
