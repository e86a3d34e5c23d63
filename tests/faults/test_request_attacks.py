"""Crowds, slow clients, large frames and batches made to be slow to read: others are served on, memory stays bounded.

REQUEST_ATTACKS multiplies connections and bytes; 5 comes to the defaults of the settings.
"""

import gzip
import json
import os
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from conveyor.records.record import encode_batch
from tests.clients.raw_login import exactly
from tests.faults.rest_client import RestClient, cpu_seconds, resident_bytes
from tests.processes import BrokerProcess
from tests.unit.kafka_api.requests import API_VERSIONS, SOFTWARE, framed, produce, request

SCALE = int(os.environ.get("REQUEST_ATTACKS", "1"))
CONNECTIONS = 200 * SCALE
FRAME_BYTES = 18_000_000 * SCALE
FRAMES = 8
BUFFERED_BYTES = 40_000_000 * SCALE
PING = framed(request(API_VERSIONS, 3, **SOFTWARE))


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    limits = {
        "network.max_http_connections": CONNECTIONS,
        "network.max_receive_ms": 2_000,
        "network.max_buffered_bytes": BUFFERED_BYTES,
        "network.max_request_bytes": 20_000_000 * SCALE,
        "topics.max_message_bytes": 20_000_000 * SCALE,
    }
    options = [word for name, value in limits.items() for word in ("--set", f"{name}={value}")]
    process = BrokerProcess(tmp_path / "data", *options).start()
    yield process
    assert process.stop() == 0
    assert "Traceback" not in process.log()


def connect(address: str) -> socket.socket:
    host, _, port = address.rpartition(":")
    return socket.create_connection((host, int(port)), timeout=60)


def ask_operations(broker: BrokerProcess) -> None:
    for path in ("/healthz", "/readyz", "/metrics"):
        with connect(broker.http) as probe:
            probe.sendall(f"GET {path} HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n".encode())
            assert probe.recv(100).startswith(b"HTTP/1.1 200"), path


def receive_frame(connection: socket.socket) -> bytes:
    return exactly(connection, struct.unpack(">i", exactly(connection, 4))[0])


CROWDS = {
    "long polls": b"GET /subscriptions/s/messages?wait=20s HTTP/1.1\r\nHost: h\r\n\r\n",
    "half a head": b"GET /subscriptions/s/mess",
    "half a body": b"POST /topics/t/messages HTTP/1.1\r\nHost: h\r\nContent-Length: 100\r\n\r\nhalf",
    "half a chunk": b"POST /topics/t/messages HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n64\r\nhalf",
    "half a packed batch": b"POST /topics/t/messages:batch HTTP/1.1\r\nHost: h\r\nContent-Encoding: gzip\r\n"
    b"Content-Length: 1000000\r\n\r\n\x1f\x8b",
}


@pytest.mark.parametrize("crowd", CROWDS)
def test_operators_are_answered_behind_a_crowd(broker: BrokerProcess, crowd: str) -> None:
    client = RestClient(broker)
    client.ask("POST", "/topics", {"name": "t"})
    client.ask("POST", "/topics/t/subscriptions", {"name": "s"})
    client.close()
    with ExitStack() as stack:
        connections = [stack.enter_context(connect(broker.http)) for _ in range(CONNECTIONS + 100)]
        for connection in connections:
            connection.sendall(CROWDS[crowd])
        ask_operations(broker)
        if "body" in crowd or "chunk" in crowd or "batch" in crowd:
            assert connections[0].recv(100).startswith(b"HTTP/1.1 408")


BATCHES = {
    "many messages": b'{"messages":[' + b",".join([b'{"payload":""}'] * 900_000) + b"]}",
    "many headers": b'{"messages":[{"payload":"","headers":{%b}}]}'
    % b",".join(b'"%d":""' % n for n in range(1_000_000)),
    "many values": b'{"messages":[{"payload":"","headers":{"a":[%b]}}]}' % b",".join([b"null"] * 3_000_000),
    "deep": b'{"messages":[' + b"[" * 16_000_000,
}


@pytest.mark.parametrize("batch", BATCHES)
def test_batch_that_is_refused_costs_little(broker: BrokerProcess, batch: str) -> None:
    client = RestClient(broker)
    client.ask("POST", "/topics", {"name": "t"})
    before_seconds, before_bytes = cpu_seconds(broker), resident_bytes(broker)
    packed = gzip.compress(BATCHES[batch])
    for _ in range(SCALE):
        client.ask("POST", "/topics/t/messages:batch", packed, status=400, headers={"Content-Encoding": "gzip"})
    assert cpu_seconds(broker) - before_seconds < 0.4 * SCALE
    assert resident_bytes(broker) - before_bytes < 96 << 20
    client.close()


def test_others_are_served_while_a_large_batch_is_worked_on(broker: BrokerProcess) -> None:
    headers = {f"h{number}": "v" * 90 for number in range(10)}
    batch = json.dumps({"messages": [{"payload": "x", "headers": headers}] * 10_000}, separators=(",", ":")).encode()
    client = RestClient(broker)
    client.ask("POST", "/topics", {"name": "t"})
    results: list[object] = []
    publishing = threading.Thread(
        target=lambda: results.extend(client.ask("POST", "/topics/t/messages:batch", batch)["results"])
    )
    pings = 0
    with connect(broker.kafka) as other:
        publishing.start()
        while publishing.is_alive():
            other.sendall(PING)
            receive_frame(other)
            pings += 1
    assert len(results) == 10_000
    assert pings > 30, "a few would be answered if each stage of the work took one tick of the event loop"
    client.close()


def test_large_frames_at_once_are_answered_within_the_bound(broker: BrokerProcess) -> None:
    """Eight frames of 90 MB, at the scale of the defaults: together three times what there is for requests."""
    client = RestClient(broker)
    client.ask("POST", "/topics", {"name": "t", "partitions": 1})
    frame = framed(produce(7, encode_batch([(1, None, bytes(FRAME_BYTES), [])])))
    before_bytes = resident_bytes(broker)
    most_bytes = [0]
    with ExitStack() as stack:
        connections = [stack.enter_context(connect(broker.kafka)) for _ in range(FRAMES)]
        senders = [threading.Thread(target=connection.sendall, args=(frame,)) for connection in connections]
        for sender in senders:
            sender.start()
        other = stack.enter_context(connect(broker.kafka))
        while any(sender.is_alive() for sender in senders):
            other.sendall(PING)
            receive_frame(other)
            most_bytes.append(resident_bytes(broker))
        for connection in connections:
            connection.settimeout(120)
            assert receive_frame(connection)[:4] == struct.pack(">i", 7)
    assert max(most_bytes) - before_bytes < BUFFERED_BYTES + (64 << 20)
    client.close()


def test_half_sent_frames_make_way_for_whole_ones(broker: BrokerProcess) -> None:
    client = RestClient(broker)
    client.ask("POST", "/topics", {"name": "t", "partitions": 1})
    frame = framed(produce(7, encode_batch([(1, None, bytes(FRAME_BYTES), [])])))
    with ExitStack() as stack:
        for _ in range(FRAMES):
            stack.enter_context(connect(broker.kafka)).sendall(frame[:1_000_000])
        whole = stack.enter_context(connect(broker.kafka))
        whole.sendall(frame)
        assert receive_frame(whole)[:4] == struct.pack(">i", 7)
    client.close()
    assert "network.max_receive_ms" in broker.log()
