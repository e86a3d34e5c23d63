"""Many messages in a topic before a measurement starts: batches straight to the broker's socket, a Kafka client's."""

import random
import socket
import time
from collections.abc import Iterable, Iterator

from benchmarks.requests import batch_frame, check_answer
from conveyor.records.record import Header, encode_batch

_BATCH = 1_000
_PRIORITIES = 10
_TIMEOUT_S = 60


def fill(bootstrap_servers: str, topic: str, batches: Iterable[bytes]) -> None:
    """Produce batches to partition 0 with acks=all. Raises RuntimeError unless each is acknowledged."""
    host, _, port = bootstrap_servers.rpartition(":")
    with socket.create_connection((host, int(port)), _TIMEOUT_S) as connection, connection.makefile("rb") as answers:
        for batch in batches:
            connection.sendall(batch_frame(topic, 0, -1, batch))
            length = answers.read(4)
            check_answer(length + answers.read(int.from_bytes(length)))


def plain(count: int, size: int) -> Iterator[bytes]:
    """So many messages, without headers."""
    yield from _repeated(count, size, [()] * _BATCH)


def prioritised(count: int, size: int) -> Iterator[bytes]:
    """Each of some priority."""
    chosen = random.Random(0)
    priorities = (b"%d" % chosen.randrange(_PRIORITIES) for _ in range(_BATCH))
    yield from _repeated(count, size, [(("conveyor-priority", each),) for each in priorities])


def delayed(count: int, from_ms: int, rate: int) -> Iterator[bytes]:
    """Messages of which so many a second fall due from a moment on, in any order; payload: when, in ms."""
    due = [from_ms + number * 1000 // rate for number in range(count)]
    random.Random(0).shuffle(due)
    for first in range(0, count, _BATCH):
        now_ms = _now_ms()
        each_due = [b"%d" % each for each in due[first : first + _BATCH]]
        yield encode_batch([(now_ms, None, each, (("conveyor-deliver-at-ms", each),)) for each in each_due])


def _repeated(count: int, size: int, headers: list[tuple[Header, ...]]) -> Iterator[bytes]:
    now_ms = _now_ms()
    batch = encode_batch([(now_ms, None, bytes(size), each) for each in headers])
    for _ in range(count // _BATCH):
        yield batch


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
