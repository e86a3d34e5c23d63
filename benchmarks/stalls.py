"""The longest that a quiet client waits for its answer while the broker does something large for others.

    python -m benchmarks --only stalls --scale 1      segments of 1 GiB
    python -m benchmarks --only stalls --scale 0.05   a look

One event loop answers all clients of a broker: what holds it up is what this client waits. Each wait is that of a
request of a few bytes, sent every millisecond on a connection of its own.
"""

import socket
import threading
import time
from collections.abc import Iterator
from types import TracebackType
from typing import Any, Self

from confluent_kafka import Producer
from kio.schema.api_versions.v0.request import ApiVersionsRequest

from benchmarks import clients
from benchmarks.figures import Figure, Kind
from benchmarks.rows import Trial
from benchmarks.streams import consume, create_topic, produce
from benchmarks.wire import request_frame
from benchmarks.workers import Gate, run_together, work

_SEGMENT_BYTES = 1 << 30
_SMALL_SEGMENT_BYTES = 16 << 20
_MESSAGE_BYTES = 1000
_KEYS = 1000
_COMPACTION_S = 25
"""Both brokers look every 15 s for what to compact."""

_SETTLING_S = 2
_PAUSE_S = 0.001
_LONGEST_MS = 20
_API_VERSIONS: Any = ApiVersionsRequest


class QuietClient:
    """Asks every millisecond, on a thread, until its block ends. longest_ms: the longest wait for an answer."""

    def __init__(self, bootstrap_servers: str) -> None:
        host, _, port = bootstrap_servers.rpartition(":")
        self.longest_ms = 0.0
        self._connection = socket.create_connection((host, int(port)), 60)
        self._is_done = threading.Event()
        self._thread = threading.Thread(target=self._ask)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._is_done.set()
        self._thread.join()
        self._connection.close()

    def _ask(self) -> None:
        frame = request_frame(_API_VERSIONS())
        with self._connection.makefile("rb") as answers:
            while not self._is_done.wait(_PAUSE_S):
                began = time.perf_counter()
                self._connection.sendall(frame)
                answers.read(int.from_bytes(answers.read(4), "big"))
                self.longest_ms = max(self.longest_ms, (time.perf_counter() - began) * 1000)


def stalls(trial: Trial) -> Iterator[Figure]:
    """While others fill segments, append to a full one after a clean stop, read what is on the disk only, compact."""
    server, servers = trial.server, trial.server.bootstrap_servers
    segment_bytes = int(_SEGMENT_BYTES * min(1.0, trial.load.scale))
    count = segment_bytes * 19 // 10 // _MESSAGE_BYTES
    topic = _topic(trial, "stalls", {"segment.bytes": str(segment_bytes)})
    with QuietClient(servers) as client:
        run_together(work(produce, servers, topic, 0, count, _MESSAGE_BYTES))
    yield _figure("producing into new segments", client)
    server.wait_for_records(topic, 1, count)
    server.stop()
    server.start()
    time.sleep(_SETTLING_S)  # What a start leaves for later has ended.
    with QuietClient(servers) as client:
        run_together(work(produce, servers, topic, 0, 10, _MESSAGE_BYTES))
    yield _figure("the first append after a restart", client)
    server.drop_page_cache()
    with QuietClient(servers) as client:
        run_together(work(consume, servers, topic, 1, count))
    yield _figure("a consumer of what is not in memory", client)
    compacted = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01"}
    topic = _topic(trial, "stalls-compacted", compacted | {"segment.bytes": str(_SMALL_SEGMENT_BYTES)})
    run_together(work(_produce_keyed, servers, topic, count // 4))
    with QuietClient(servers) as client:
        time.sleep(_COMPACTION_S)
    yield _figure("compaction", client)


def _topic(trial: Trial, name: str, config: dict[str, str]) -> str:
    topic = f"{name}-{trial.label}"
    create_topic(trial.server.bootstrap_servers, topic, 1, trial.system.topic_settings | config)
    trial.server.wait_for_records(topic, 1, 0)
    return topic


def _figure(during: str, client: QuietClient) -> Figure:
    name = f"longest wait of a quiet client: {during}"
    return Figure(name=name, kind=Kind.STALL, value=client.longest_ms, unit="ms", own_target=_LONGEST_MS)


def _produce_keyed(gate: Gate, bootstrap_servers: str, topic: str, count: int) -> None:
    """Of few keys: most of it goes when it is compacted."""
    producer = Producer(clients.producer(bootstrap_servers, linger_ms=5, queue_buffering_max_messages=1_000_000))
    gate.wait()
    for number in range(count):
        producer.produce(topic, bytes(_MESSAGE_BYTES), key=b"%d" % (number % _KEYS))
        if number % 10_000 == 0:
            producer.poll(0)
    if producer.flush(120):
        raise RuntimeError(f"not acknowledged: {len(producer)} messages")
