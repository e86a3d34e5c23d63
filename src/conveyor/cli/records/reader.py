"""Reads records and prints them: the loop of `conveyor consume` and `conveyor topic tail`."""

import signal
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from conveyor.cli.records.record_format import WriteRecord
from conveyor.cli.terminal.kafka_client import ClientError, client_config

_WAIT_S = 0.2


def reading_client(bootstrap: str, group: str, **more: Any) -> Any:
    """Return a Consumer that reports the end of a partition, and closes within 100 ms even if a fetch is in flight."""
    from confluent_kafka import Consumer

    config = {"group.id": group, "auto.offset.reset": "earliest", "enable.partition.eof": True}
    return Consumer(client_config(bootstrap, **(config | {"fetch.wait.max.ms": 100} | more)))


class Printer:
    """Writes records to standard output. stores_offsets: mark records as ready to commit once they are flushed, as a
    member of a group does.
    """

    def __init__(self, consumer: Any, write: WriteRecord, *, stores_offsets: bool = False) -> None:
        self._consumer = consumer
        self._write = write
        self.stores_offsets = stores_offsets
        self._unstored: dict[tuple[str, int], int] = {}
        self.printed = 0

    def print(self, message: Any) -> None:
        self._unstored[message.topic(), message.partition()] = message.offset() + 1
        line = self._write(message)
        if line is not None:
            sys.stdout.buffer.write(line + b"\n")
            self.printed += 1

    def flush(self) -> None:
        """Flush standard output and mark the printed records as ready to commit."""
        from confluent_kafka import KafkaException, TopicPartition

        sys.stdout.buffer.flush()
        read, self._unstored = self._unstored, {}
        for place, offset in read.items() if self.stores_offsets else ():
            try:
                self._consumer.store_offsets(offsets=[TopicPartition(*place, offset)])
            except KafkaException:
                continue  # The partition moved to another member, which reads these records again.


class LogEnds:
    """Tracks whether every assigned partition was read up to its end as of the command's start."""

    def __init__(self, end_offsets: Mapping[int, int], assigned: Iterable[int] | None = None) -> None:
        self._end_offsets = end_offsets
        self._assigned = None if assigned is None else set(assigned)
        self._reached: set[int] = set()

    def assign(self, partitions: Iterable[int]) -> None:
        """Replace the assigned partitions."""
        self._assigned = set(partitions)

    def note(self, partition: int, next_offset: int) -> None:
        if next_offset >= self._end_offsets.get(partition, 0):
            self._reached.add(partition)

    def is_beyond(self, partition: int, offset: int) -> bool:
        """Return whether a record was written after the ends were looked up."""
        return offset >= self._end_offsets.get(partition, offset + 1)

    def all_reached(self) -> bool:
        return self._assigned is not None and self._assigned <= self._reached


def print_records(consumer: Any, printer: Printer, limit: int | None, ends: LogEnds | None) -> None:
    """Print until the limit, the ends, Ctrl-C or SIGTERM. Raises ClientError."""
    with _stop_signals() as received:
        while not received and (limit is None or printer.printed < limit):
            if ends is not None and ends.all_reached():
                break
            _print_next(consumer, printer, ends)
    printer.flush()


@contextmanager
def _stop_signals() -> Iterator[list[int]]:
    """Collect signals, so that none separates printing a record from storing its offset. The second one interrupts."""
    received: list[int] = []

    def note(number: int, _frame: Any) -> None:
        if received:
            raise KeyboardInterrupt
        received.append(number)

    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    handled = [number for number, handler in before.items() if handler is not signal.SIG_IGN]
    for number in handled:
        signal.signal(number, note)
    try:
        yield received
    finally:
        for number in handled:
            signal.signal(number, before[number])


def _print_next(consumer: Any, printer: Printer, ends: LogEnds | None) -> None:
    message = consumer.poll(0)
    if message is None:
        printer.flush()
        message = consumer.poll(_WAIT_S)
    if message is None:
        return
    if message.error() is not None:
        if not _is_end(message.error(), is_member=printer.stores_offsets):
            return
        next_offset = message.offset()
    else:
        if ends is None or not ends.is_beyond(message.partition(), message.offset()):
            printer.print(message)
        next_offset = message.offset() + 1
    if ends is not None:
        ends.note(message.partition(), next_offset)


def _is_end(error: Any, *, is_member: bool) -> bool:
    """Return whether an error is the end of a partition, and no reason to stop. Raises ClientError.

    confluent-kafka looks for the coordinator of a group in any case. Without a group, no right on it is needed.
    """
    from confluent_kafka import KafkaError

    if error.code() == KafkaError._PARTITION_EOF:  # noqa: SLF001 - the client's public name for it
        return True
    if error.code() == KafkaError.GROUP_AUTHORIZATION_FAILED and not is_member:
        return False
    raise ClientError(error.str())
