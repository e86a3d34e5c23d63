"""One transactional worker: it reads records of a group, writes their results, and commits both in one transaction.

python -m tests.cluster.transactional_worker <bootstrap> <worker> <start> <history file>

It runs until SIGTERM, until it is fenced (exit code 3), or until its consumer goes back by itself (exit code 4). Before
each step whose outcome matters it appends a line to its file, so that the history is complete up to the moment at which
the process is killed.
"""

import signal
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from typing import Any

import msgspec
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition

SOURCE, RESULTS, LEDGER = "source", "results", "ledger"
PARTITIONS = 8
GROUP = "workers"
FENCED_CODE = 3
REWOUND_CODE = 4

_TIMEOUT_MS = 6_000
_PATIENCE_S = 60.0
_BATCH = 20
_ABORTS = 0.08
CLIENT_CONFIG = {
    "reconnect.backoff.ms": 50,
    "reconnect.backoff.max.ms": 500,
    "retry.backoff.ms": 50,
    "metadata.recovery.strategy": "none",
    "log_level": 0,
}
"""For all clients. With the default recovery strategy, librdkafka 2.16.0 was seen to wait forever in
`send_offsets_to_transaction` after all brokers had been down at once.
"""


def results_of(
    sources: Sequence[tuple[int, int]], transaction: str, topics: tuple[str, str]
) -> list[tuple[str, int, str, int]]:
    """Return what to send for records of (partition, offset): (topic, partition, value, index of the record).

    transaction: its name, which makes the values unique.
    """
    return [
        (topic, (partition + shift) % PARTITIONS, f"{transaction}:{topic}:{partition}:{offset}", at)
        for at, (partition, offset) in enumerate(sources)
        for topic, shift in zip(topics, (0, 3), strict=True)
    ]


class RewoundError(Exception):
    """The consumer has delivered records again although nothing was reset, revoked or sought.

    librdkafka 2.16.0 was seen to do so, once, after the broker had been killed and frozen.
    """


class HistoryFile:
    """Appends lines of JSON, each at once."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("ab", buffering=0)

    def note(self, kind: str, **content: Any) -> None:
        self._file.write(msgspec.json.encode({"kind": kind, "at": time.monotonic(), **content}) + b"\n")


class TransactionalWorker:
    """See the module's docstring. process: the name of this start of the worker."""

    def __init__(self, bootstrap: str, worker: str, process: str, history: HistoryFile) -> None:
        self._history = history
        self._process = process
        self._chance = Random(process)
        self._serial = 0
        self._is_over = False
        self._offsets: dict[str, int] = {}
        self._positions: dict[int, int] = {}
        self._assigned_at: dict[int, float] = {}
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "transactional.id": worker,
                "transaction.timeout.ms": _TIMEOUT_MS,
                "linger.ms": 2,
                **CLIENT_CONFIG,
            }
        )
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": GROUP,
                "isolation.level": "read_committed",
                "enable.auto.commit": False,
                "auto.offset.reset": "error",
                "session.timeout.ms": 6_000,
                # A worker that hangs in its client must not keep its partitions for the five minutes of the default.
                "max.poll.interval.ms": 20_000,
                "heartbeat.interval.ms": 500,
                "partition.assignment.strategy": "cooperative-sticky",
                **CLIENT_CONFIG,
            }
        )

    def stop(self, *_: object) -> None:
        self._is_over = True

    def run(self) -> None:
        """Raises KafkaException if another process has taken over, and RewoundError."""
        self._history.note("initialize")
        self._insist(lambda: self._producer.init_transactions(_PATIENCE_S))
        self._history.note("initialized")
        self._subscribe()
        while not self._is_over:
            answers = self._consumer.consume(_BATCH, 0.3)
            messages = [message for message in answers if message.error() is None]
            for message in answers:
                self._check_position(message)
            if messages:
                self._process_all(messages)
        self._consumer.close()

    def _subscribe(self) -> None:
        self._consumer.subscribe([SOURCE], on_assign=self._assigned, on_revoke=self._revoked, on_lost=self._revoked)

    def _assigned(self, consumer: Consumer, places: list[TopicPartition]) -> None:
        self._revoked(consumer, places)
        for place in places:
            self._assigned_at[place.partition] = time.monotonic()

    def _revoked(self, _: Consumer, places: list[TopicPartition]) -> None:
        for place in places:
            self._positions.pop(place.partition, None)

    def _check_position(self, message: Message) -> None:
        """A consumer that has lost its position would read everything again, or leave records out."""
        error, partition, offset = message.error(), message.partition(), message.offset()
        if error is not None and error.name() == "_AUTO_OFFSET_RESET":
            self._history.note("reset", partition=partition, reason=error.str())
        if error is None and partition is not None and offset is not None:
            if offset < self._positions.get(partition, 0):
                raise RewoundError(f"{SOURCE}-{partition}: {offset} after {self._positions[partition] - 1}")
            self._positions[partition] = offset + 1

    def _process_all(self, messages: list[Message]) -> None:
        self._serial += 1
        sources = [(message.partition(), message.offset()) for message in messages]
        sends = results_of(sources, f"{self._process}.{self._serial}", (RESULTS, LEDGER))
        # The client may deliver what it has fetched before it lost a partition. It asks for positions once assigned.
        asked_at = min(self._assigned_at[partition] for partition, _ in sources)
        self._history.note("begin", serial=self._serial, asked_at=asked_at, sources=sources, sends=sends)
        self._producer.begin_transaction()
        try:
            self._send(sends, sources)
            if self._chance.random() >= _ABORTS:
                self._history.note("ask", serial=self._serial)
                self._insist(lambda: self._producer.commit_transaction(_PATIENCE_S))
                return self._told("committed")
        except KafkaException as failure:
            if not failure.args[0].txn_requires_abort():
                raise
        self._insist(lambda: self._producer.abort_transaction(_PATIENCE_S))
        self._told("aborted")
        self._go_back(sources)
        return None

    def _send(self, sends: list[tuple[str, int, str, int]], sources: list[tuple[int, int]]) -> None:
        self._offsets = {}
        for topic, partition, value, _ in sends:
            self._producer.produce(topic, value.encode(), partition=partition, on_delivery=self._delivered)
            if self._chance.random() < 0.02:
                self._producer.poll(self._chance.uniform(0.0, 0.2))
        ends: dict[int, int] = {}
        for partition, offset in sources:
            ends[partition] = max(offset + 1, ends.get(partition, 0))
        positions = [TopicPartition(SOURCE, partition, end) for partition, end in ends.items()]
        group = self._consumer.consumer_group_metadata()
        self._insist(lambda: self._producer.send_offsets_to_transaction(positions, group, _PATIENCE_S))
        self._producer.flush(_PATIENCE_S)

    def _told(self, outcome: str) -> None:
        self._history.note("told", serial=self._serial, outcome=outcome, offsets=self._offsets)

    def _go_back(self, sources: list[tuple[int, int]]) -> None:
        """Read the records of an aborted transaction again, as far as they are still assigned to this worker."""
        first: dict[int, int] = {}
        for partition, offset in sources:
            first.setdefault(partition, offset)
        assigned = {place.partition for place in self._consumer.assignment()}
        for partition, offset in first.items():
            self._positions.pop(partition, None)
            if partition in assigned:
                try:
                    self._consumer.seek(TopicPartition(SOURCE, partition, offset))
                except KafkaException:  # It is being revoked, or not fetched yet: leave the group and join it anew.
                    self._consumer.unsubscribe()
                    self._subscribe()
                    return

    def _insist(self, ask: Callable[[], None]) -> None:
        """Repeat a call while its error says so. Raises KafkaException."""
        ends = time.monotonic() + _PATIENCE_S
        while True:
            try:
                return ask()
            except KafkaException as failure:
                if not failure.args[0].retriable() or time.monotonic() > ends:
                    raise

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        value, offset = message.value(), message.offset()
        if error is None and value is not None and offset is not None and offset >= 0:
            self._offsets[value.decode()] = offset


def main(arguments: list[str]) -> int:
    bootstrap, worker, start, path = arguments
    history = HistoryFile(Path(path))
    member = TransactionalWorker(bootstrap, worker, f"{worker}.{start}", history)
    signal.signal(signal.SIGTERM, member.stop)
    try:
        member.run()
    except KafkaException as failure:
        history.note("ended", reason=str(failure))
        return FENCED_CODE
    except RewoundError as failure:
        history.note("ended", reason=str(failure))
        return REWOUND_CODE
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
