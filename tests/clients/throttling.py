"""Quotas as a client meets them: it is held back, and loses nothing.

The broker's clock stands still, so that a client is too fast on any machine. It moves when a client is throttled.
"""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol
from urllib.request import urlopen

from conveyor.testing import Broker
from tests.clients.programs import Line, Program
from tests.clients.records import BASE_TIME_MS, Sent
from tests.clients.scenarios import from_line, make_topic, to_line
from tests.unit.kafka_api.requests import framed, request, response

ALTER_CLIENT_QUOTAS = 49
CLIENT_ID = "conformance"
BYTES_PER_SECOND = 2_000_000
COUNT = 6000
VALUE_BYTES = 900
_SETTINGS = {
    # Rates are measured over two windows of a second: what is sent while the clock stands still counts as a second's.
    "clients.quota_window_count": 2,
    "clients.quota_window_seconds": 1,
    "topics.message_timestamp_type": "CreateTime",
}
_FORGOTTEN_S = 3
_POLL_S = 0.02


@contextmanager
def still_broker() -> Iterator[Broker]:
    """Run a broker whose clock stands still, and which soon has enough of a client that is too fast."""
    with Broker(memory=True, manual_clock=True, settings=_SETTINGS) as running:
        yield running


def check_quotas(program: Program, broker: Broker, topic: str, *, is_told: bool) -> None:
    """is_told: whether the program can say for how long its client was throttled."""
    make_topic(broker.bootstrap_servers, topic, 1)
    values = [b"%d:" % number + bytes(VALUE_BYTES) for number in range(COUNT)]
    sent = [Sent(number, None, value, (), BASE_TIME_MS) for number, value in enumerate(values)]
    with quota(broker, "producer_byte_rate"):
        said = program.run("produce", broker.bootstrap_servers, topic, "none", given=map(to_line, sent))
        assert is_throttled(said) == is_told
    with quota(broker, "consumer_byte_rate"):
        said = program.run("consume", broker.bootstrap_servers, topic, topic, COUNT)
        assert is_throttled(said) == is_told
    assert [from_line(line) for line in said if "value" in line] == sent


def is_throttled(said: list[Line]) -> bool:
    return any(line.get("throttled", 0) > 0 for line in said)


@contextmanager
def quota(broker: Broker, name: str) -> Iterator[None]:
    """Hold the client to a rate, and check that the broker has throttled it."""
    before = throttled(broker, name)
    alter(broker, "client-id", CLIENT_ID, **{name: BYTES_PER_SECOND})
    with _clock_that_follows(broker, name):
        yield
    alter(broker, "client-id", CLIENT_ID, **{name: None})
    assert throttled(broker, name) > before


@contextmanager
def _clock_that_follows(broker: Broker, name: str) -> Iterator[None]:
    """Let time pass whenever a client was throttled, so much that its rate is forgotten."""
    ended = threading.Event()

    def follow() -> None:
        seen = throttled(broker, name)
        while not ended.wait(_POLL_S):
            if (now := throttled(broker, name)) > seen:
                seen = now
                broker.clock.advance(seconds=_FORGOTTEN_S)

    follower = threading.Thread(target=follow)
    follower.start()
    try:
        yield
    finally:
        ended.set()
        follower.join()


def throttled(broker: Broker, name: str) -> float:
    """How often a kind of quota has held somebody back."""
    with urlopen(f"{broker.http_url}/metrics") as answer:
        page = answer.read().decode()
    wanted = f'conveyor_quota_throttled_total{{quota="{name}"}} '
    return sum(float(line.removeprefix(wanted)) for line in page.splitlines() if line.startswith(wanted))


class HasKafka(Protocol):
    """A broker, alone or in a cluster."""

    @property
    def bootstrap_servers(self) -> str: ...


def connected(broker: HasKafka) -> socket.socket:
    host, _, port = broker.bootstrap_servers.rpartition(":")
    return socket.create_connection((host, int(port)), timeout=20)


def received(connection: socket.socket) -> bytes:
    """One answer."""
    size = int.from_bytes(connection.recv(4, socket.MSG_WAITALL), "big")
    return connection.recv(size, socket.MSG_WAITALL)


def alter(broker: HasKafka, kind: str, name: str | None, **values: float | None) -> None:
    """Set quotas of one entity; those without a value are removed."""
    ops = [{"key": key, "value": value or 0, "remove": value is None} for key, value in values.items()]
    entry = {"entity": [{"entity_type": kind, "entity_name": name}], "ops": ops}
    with connected(broker) as connection:
        connection.sendall(framed(request(ALTER_CLIENT_QUOTAS, 1, entries=[entry], validate_only=False)))
        answer = response(ALTER_CLIENT_QUOTAS, 1, received(connection))
    assert [int(each.error_code) for each in answer.entries] == [0]
