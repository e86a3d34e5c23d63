"""Ready-made Produce requests over many connections, with one record each: what a request costs the broker, with
nothing to batch. Or with thousands each: what the broker takes from clients that cost next to nothing.

The requests are made once, by kio, and sent again and again; a real client would spend more on making them than the
broker on answering. Responses are counted by their length; the first one of a connection is read in full, and whoever
asked for them compares their number with the records that the log holds afterwards.
"""

import asyncio
import time
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import uvloop
from kio.schema.produce.v9.request import PartitionProduceData, ProduceRequest, TopicProduceData
from kio.schema.produce.v9.response import ProduceResponse

from benchmarks.wire import read_response, request_frame
from benchmarks.workers import Gate
from conveyor.records.record import encode_batch

IN_FLIGHT = 5
"""Open requests of a connection, as Kafka's clients have them."""

_PRODUCE_REQUEST: Any = ProduceRequest
_TOPIC_DATA: Any = TopicProduceData
_PARTITION_DATA: Any = PartitionProduceData


@dataclass(frozen=True, slots=True)
class Answered:
    """requests: answered within these seconds. all_requests: with those that were still open then, none is left out."""

    requests: int
    seconds: float
    all_requests: int


def produce_frame(topic: str, partition: int, acks: int, size: int, records: int = 1) -> bytes:
    """A Produce request (version 9) with one batch of records, of now: old ones might be due for deletion."""
    batch = encode_batch([(time.time_ns() // 1_000_000, None, bytes(size), ())] * records)
    return batch_frame(topic, partition, acks, batch)


def batch_frame(topic: str, partition: int, acks: int, batch: bytes) -> bytes:
    """A Produce request (version 9) with a batch."""
    data = _PARTITION_DATA(index=partition, records=batch)
    return request_frame(
        _PRODUCE_REQUEST(
            transactional_id=None,
            acks=acks,
            timeout=timedelta(seconds=30),
            topic_data=(_TOPIC_DATA(name=topic, partition_data=(data,)),),
        )
    )


def send_requests(
    gate: Gate, bootstrap_servers: str, topic: str, connections: int, acks: int, records: int, seconds: float
) -> Answered:
    """Keep some requests open on each connection, each with a partition of its own, for a time."""
    return uvloop.run(_send_requests(gate, bootstrap_servers, topic, connections, acks, records, seconds))


async def _send_requests(
    gate: Gate, bootstrap_servers: str, topic: str, connections: int, acks: int, records: int, seconds: float
) -> Answered:
    host, _, port = bootstrap_servers.rpartition(":")
    loop = asyncio.get_running_loop()
    clients = []
    for number in range(connections):
        frame = produce_frame(topic, number, acks, 100, records)
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
        client.stopping = True
    await asyncio.wait_for(asyncio.gather(*(client.drained.wait() for client in clients)), 60)
    for client in clients:
        client.transport.close()
        check_answer(client.first)
    return Answered(answered, elapsed, sum(client.answered for client in clients))


def check_answer(frame: bytes) -> None:
    """Raise RuntimeError unless a Produce response, length in front, reports success."""
    response = read_response(ProduceResponse, frame[4:])
    errors = [str(each.error_code) for topic in response.responses for each in topic.partition_responses]
    if len(errors) != 1 or int(response.responses[0].partition_responses[0].error_code) != 0:
        raise RuntimeError(f"the produce request was answered with {errors}")


class _Client(asyncio.Protocol):
    """Answers each response with the next request, until it is told to stop."""

    def __init__(self, frame: bytes) -> None:
        self._frame = frame
        self._rest = b""
        self._open = 0
        self.first = b""
        self.answered = 0
        self.stopping = False
        self.drained = asyncio.Event()

    def connection_made(self, transport: Any) -> None:
        self.transport: asyncio.Transport = transport

    def start(self) -> None:
        self._open = IN_FLIGHT
        self.transport.write(self._frame * IN_FLIGHT)

    def data_received(self, data: bytes) -> None:
        data = self._rest + data if self._rest else data
        length = int.from_bytes(data[:4], "big") + 4
        count = len(data) // length
        self._rest = data[count * length :]
        if not count:
            return
        self.first = self.first or data[:length]
        self.answered += count
        if not self.stopping:
            self.transport.write(self._frame * count)
            return
        self._open -= count
        if not self._open:
            self.drained.set()
