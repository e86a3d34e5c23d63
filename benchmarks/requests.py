"""One-record Produce requests over many connections: what a request costs the broker, with nothing to batch.

The requests are made once, by kio, and sent again and again; a real client would spend more on making them than the
broker on answering.
"""

import asyncio
import io
import time
from datetime import timedelta
from typing import Any

import uvloop
from kio.schema.produce.v9.request import PartitionProduceData, ProduceRequest, TopicProduceData
from kio.serial import entity_writer

from benchmarks.workers import Gate
from conveyor.log.records import encode_batch

_IN_FLIGHT = 5
"""Open requests of a connection, as Kafka's clients have them."""


def request_frame(topic: str, partition: int, acks: int, size: int) -> bytes:
    """A Produce request (version 9) with one record."""
    batch = encode_batch([(1_700_000_000_000, None, bytes(size), ())])
    buffer = io.BytesIO()
    header_schema: Any = ProduceRequest.__header_schema__
    values = {"request_api_key": 0, "request_api_version": 9, "correlation_id": 1, "client_id": "bench"}
    entity_writer(header_schema)(buffer, header_schema(**values))
    partition_data: Any = PartitionProduceData
    data = partition_data(index=partition, records=batch)
    produce_request: Any = ProduceRequest
    request = produce_request(
        transactional_id=None,
        acks=acks,
        timeout=timedelta(seconds=30),
        topic_data=(TopicProduceData(name=topic, partition_data=(data,)),),  # type: ignore[arg-type]
    )
    entity_writer(ProduceRequest)(buffer, request)
    body = buffer.getvalue()
    return len(body).to_bytes(4, "big") + body


def send_requests(
    gate: Gate, bootstrap_servers: str, topic: str, partitions: int, connections: int, acks: int, seconds: float
) -> tuple[int, float]:
    """Keep some requests open on each connection for a time. Returns (requests answered, seconds)."""
    return uvloop.run(_send_requests(gate, bootstrap_servers, topic, partitions, connections, acks, seconds))


async def _send_requests(
    gate: Gate, bootstrap_servers: str, topic: str, partitions: int, connections: int, acks: int, seconds: float
) -> tuple[int, float]:
    host, _, port = bootstrap_servers.rpartition(":")
    loop = asyncio.get_running_loop()
    clients = []
    for number in range(connections):
        frame = request_frame(topic, number % partitions, acks, 100)
        _, client = await loop.create_connection(lambda frame=frame: _Client(frame), host, int(port))  # type: ignore[misc]
        clients.append(client)
    gate.wait()
    started = time.perf_counter()
    for client in clients:
        client.start()
    await asyncio.sleep(seconds)
    answered = sum(client.answered for client in clients)
    elapsed = time.perf_counter() - started
    for client in clients:
        client.transport.abort()
    return answered, elapsed


class _Client(asyncio.Protocol):
    """Answers each response with the next request."""

    def __init__(self, frame: bytes) -> None:
        self._frame = frame
        self._rest = b""
        self.answered = 0

    def connection_made(self, transport: Any) -> None:
        self.transport: asyncio.Transport = transport

    def start(self) -> None:
        self.transport.write(self._frame * _IN_FLIGHT)

    def data_received(self, data: bytes) -> None:
        data = self._rest + data if self._rest else data
        length = int.from_bytes(data[:4], "big") + 4
        count = len(data) // length
        self._rest = data[count * length :]
        self.answered += count
        if count:
            self.transport.write(self._frame * count)
