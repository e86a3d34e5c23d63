"""Strangers at the listeners with TLS and users: whatever they send, nobody gets in, and nothing of it stays.

`STRANGERS` in the environment says how many connections are tried at each listener, by default 150, `STRANGER_SEED`
which ones; a failure names its seed.
"""

import logging
import os
import socket
import ssl
import time
from collections.abc import Iterator
from contextlib import suppress
from random import Random

import pytest
from confluent_kafka.admin import AdminClient

from conveyor.kafka_api.authentication import MAX_REQUEST_BYTES
from conveyor.settings.sasl_settings import MECHANISMS
from conveyor.testing import Broker
from tests.identity_provider import AUDIENCE, key_set, segment, signing_key, token
from tests.unit.kafka_api.requests import METADATA, framed, request, response

STRANGERS = int(os.environ.get("STRANGERS", "150"))
SEED = int(os.environ.get("STRANGER_SEED", "20261129"))
_WAIT_S = 0.05
"""A stranger whose connection stays open waits so long for more answers."""
HANDSHAKE, API_VERSIONS, AUTHENTICATE = 17, 18, 36
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


def metadata() -> bytes:
    return request(METADATA, 4, topics=None, allow_auto_topic_creation=False)


def frames(random: Random) -> Iterator[bytes]:
    """Yield what a stranger sends over one connection."""
    mechanism = random.choice((*MECHANISMS, "GSSAPI", "", "x" * 1_000))
    beginnings: tuple[list[bytes], ...] = (
        [],
        [request(API_VERSIONS, 0)],
        [request(HANDSHAKE, 1, mechanism=mechanism)],
        [request(API_VERSIONS, 0), request(HANDSHAKE, 1, mechanism=mechanism)],
    )
    yield from random.choice(beginnings)
    for _ in range(random.randrange(4)):
        yield random.choice((login, scram, bearer, broken, request_of_a_user, noise))(random)
    if random.random() < 0.3:
        yield metadata()


def login(random: Random) -> bytes:
    parts = [random.choice(("", "admin", "eve", "\0", "a" * 10_000)) for _ in range(random.randrange(1, 5))]
    return request(AUTHENTICATE, random.randrange(3), auth_bytes="\0".join(parts).encode())


def scram(random: Random) -> bytes:
    first = random.choice(("n,,n=admin,r=x", "n,,n=eve,r=x", "p=tls-unique,,n=admin,r=x", "n,,n=,r=", "y,a=b,n=a,r=x"))
    last = random.choice(("c=biws,r=x,p=AAAA", "c=biws,r=", "c=,r=x,p=", "e=other-error"))
    text = random.choice((first, last, first[: random.randrange(len(first))], last * 500))
    return request(AUTHENTICATE, 2, auth_bytes=text.encode())


def bearer(random: Random) -> bytes:
    """Return a message with a token that is of another audience, not signed, or changed; or the client's last word."""
    foreign = token(int(time.time() * 1000), "ES256", aud="another")
    unsigned = f"{segment({'alg': 'none', 'kid': 'one'}).decode()}.{foreign.split('.')[1]}."
    text = random.choice((foreign, unsigned, foreign[: random.randrange(len(foreign))], "a" * 60_000, "." * 10_000))
    whole = f"n,,\1auth=Bearer {text}\1\1"
    return request(AUTHENTICATE, 2, auth_bytes=random.choice((whole, whole[:-1], "\1")).encode())


def broken(random: Random) -> bytes:
    whole = bytearray(random.choice((login, scram, bearer, request_of_a_user))(random))
    for _ in range(random.randrange(1, 4)):
        whole[random.randrange(len(whole))] = random.randrange(256)
    return bytes(whole[: random.randrange(8, len(whole) + 1)])


def request_of_a_user(random: Random) -> bytes:
    return random.choice((metadata(), request(AUTHENTICATE, 0, auth_bytes=b""), request(3, 0, topics=())))


def noise(random: Random) -> bytes:
    return random.randbytes(random.choice((8, 9, 100, 5_000, MAX_REQUEST_BYTES, MAX_REQUEST_BYTES + 1)))


def answers(connection: socket.socket, sent: bytes) -> bytes:
    """Return what the broker answers until it closes the connection, or says nothing more."""
    received = b""
    with suppress(OSError):
        connection.sendall(sent)
        while data := connection.recv(65_536):
            received += data
    return received


def dial(broker: Broker, name: str, *, shakes: bool) -> socket.socket:
    host, _, port = broker.kafka_addresses[name].rpartition(":")
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
        sent = b"".join(map(framed, frames(random)))
        try:
            with dial(broker, name, shakes=name == "SASL_SSL") as connection:
                connection.settimeout(_WAIT_S)
                for frame in shown(answers(connection, sent)):
                    with pytest.raises(Exception):  # noqa: B017 - whatever kio says of another response
                        assert response(METADATA, 4, frame).brokers
        except AssertionError as failure:
            failure.add_note(f"STRANGER_SEED={SEED + number} STRANGERS=1")
            raise
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]
    assert_quiet(broker)


@pytest.mark.parametrize("name", ["SSL", "SASL_SSL"])
def test_bytes_that_are_no_tls_do_no_harm(broker: Broker, name: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR)
    for number in range(STRANGERS):
        random = Random(SEED + number)
        head = random.choice((b"", b"\x16\x03\x01\x40\x00", b"\x16\x03\x01\x00\x05", b"\x17\x03\x03\x00\x10", b"GET"))
        with dial(broker, name, shakes=False) as connection:
            connection.settimeout(_WAIT_S)
            answers(connection, head + random.randbytes(random.choice((0, 1, 5, 100, 20_000))))
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]
    assert_quiet(broker)
