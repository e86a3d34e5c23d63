"""Ten thousand hostile frames: others are served on, memory stays bounded, each connection is closed with one line."""

import os
import random
import socket
import struct
from pathlib import Path

import psutil
import pytest
from confluent_kafka import Producer

from tests.processes import BrokerProcess

FRAMES = 10_000
MEMORY_LIMIT_BYTES = 64 << 20
SEED = int(os.environ.get("HOSTILE_SEED", "20260101"))


def started(directory: Path, **limits: int) -> BrokerProcess:
    limits = {"max_request_bytes": 2_000_000, "max_buffered_bytes": 4_000_000} | limits
    options = [word for name, value in limits.items() for word in ("--set", f"network.{name}={value}")]
    return BrokerProcess(directory / "data", *options).start()


@pytest.fixture
def broker(tmp_path: Path) -> BrokerProcess:
    """It closes no idle connection: on a slow machine those of honest clients are idle for long, too."""
    return started(tmp_path)


@pytest.fixture
def impatient_broker(tmp_path: Path) -> BrokerProcess:
    return started(tmp_path, max_idle_ms=500)


def connect(broker: BrokerProcess) -> socket.socket:
    host, _, port = broker.kafka.rpartition(":")
    return socket.create_connection((host, int(port)), timeout=30)


def framed(body: bytes) -> bytes:
    return struct.pack(">i", len(body)) + body


def request(api_key: int, version: int, body: bytes = b"") -> bytes:
    return struct.pack(">hhih", api_key, version, 7, -1) + body


def hostile_frame(chance: random.Random) -> bytes:
    """One of: noise, a huge or negative length, a truncated request, an unknown API or version, a lying length."""
    noise = chance.randbytes(chance.randrange(8, 300))
    kind = chance.randrange(7)
    if kind == 0:
        return framed(noise)
    if kind == 1:
        return struct.pack(">i", chance.choice([2**31 - 1, 2_000_001, -1, -(2**31), 0, 7]))
    if kind == 2:
        return framed(request(chance.choice([0, 1, 3, 11, 19]), chance.randrange(14), noise[: chance.randrange(20)]))
    if kind == 3:
        return framed(request(chance.choice([-1, 77, 999, 32767]), 0, noise))
    if kind == 4:
        return framed(request(chance.choice([0, 1, 2, 8, 11]), chance.choice([-1, 99, 32767]), noise))
    if kind == 5:
        return framed(request(0, 3, b"\xff\xff\xff\xff\xff\xff" + noise))
    return framed(request(1, 12, noise) + b"\xff" * 5)


def closed_by_broker(connection: socket.socket) -> bool:
    """Read what comes until the broker closes."""
    with connection:
        try:
            while connection.recv(65536):
                pass
        except ConnectionResetError:
            return True
    return True


def test_hostile_frames_close_only_their_own_connection(broker: BrokerProcess) -> None:
    chance = random.Random(SEED)
    producer = Producer({"bootstrap.servers": broker.kafka, "log_level": 0})
    before = psutil.Process(broker.pid).memory_info().rss
    acknowledged: list[object] = []
    for number in range(FRAMES):
        connection = connect(broker)
        connection.sendall(hostile_frame(chance))
        connection.shutdown(socket.SHUT_WR)
        if number % 500 == 0:
            producer.produce("others", value=b"x", on_delivery=lambda error, _: acknowledged.append(error))
            assert producer.flush(30) == 0, f"seed {SEED}"
        assert closed_by_broker(connection), f"seed {SEED}"
    assert acknowledged == [None] * (FRAMES // 500)
    grown = psutil.Process(broker.pid).memory_info().rss - before
    assert grown < MEMORY_LIMIT_BYTES, f"memory grew by {grown} bytes, seed {SEED}"
    assert broker.stop() == 0
    lines = [line for line in broker.log().splitlines() if "connection closed" in line]
    assert FRAMES // 2 < len(lines) <= FRAMES, "one line for each connection that the broker closed"
    assert "Traceback" not in broker.log()


def test_half_open_connections_are_closed_when_idle(impatient_broker: BrokerProcess) -> None:
    connections = [connect(impatient_broker) for _ in range(50)]
    for connection in connections:
        connection.sendall(struct.pack(">i", 1000) + b"half a request")
    assert all(closed_by_broker(connection) for connection in connections)
    assert impatient_broker.stop() == 0
    assert impatient_broker.log().count("no finished request") == 50


def test_partly_received_requests_are_bounded_together(broker: BrokerProcess) -> None:
    """15 connections send 400 kB of a 500 kB request each; 4 MB are allowed: some are closed, the broker goes on."""
    connections = [connect(broker) for _ in range(15)]
    for connection in connections:
        try:
            connection.sendall(struct.pack(">i", 500_000) + bytes(400_000))
        except (ConnectionResetError, BrokenPipeError):
            continue
    producer = Producer({"bootstrap.servers": broker.kafka, "log_level": 0})
    producer.produce("others", value=b"x")
    assert producer.flush(30) == 0
    for connection in connections:
        connection.close()
    assert broker.stop() == 0
    assert "network.max_buffered_bytes" in broker.log()


def test_an_unknown_version_of_api_versions_gets_the_protocols_own_answer(broker: BrokerProcess) -> None:
    connection = connect(broker)
    connection.sendall(framed(struct.pack(">hhih", 18, 99, 42, -1)))
    size, correlation_id, error_code, count = struct.unpack(">iihi", connection.recv(14))
    assert (correlation_id, error_code) == (42, 35)
    assert size == 4 + 2 + 4 + count * 6
    connection.close()
    broker.stop()
