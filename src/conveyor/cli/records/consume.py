"""`conveyor consume`: print the records of a topic, alone or as a member of a group."""

import time
from typing import Annotated, Any

import typer

from conveyor.cli.records.offsets import LogRange, Place, find_offsets, log_ranges
from conveyor.cli.records.reader import LogEnds, Printer, print_records, reading_client
from conveyor.cli.records.record_format import Format, ShowKey, WriteRecord, record_writer
from conveyor.cli.terminal.kafka_client import (
    DEFAULT_BOOTSTRAP,
    TIMEOUT_S,
    Bootstrap,
    ClientError,
    OnlyPartitions,
    admin_client,
    counted,
    errors_in_one_line,
    require_partitions,
)
from conveyor.cli.terminal.position import METAVAR, LogPosition, PositionKind, parse_position

_MEMBER = {
    "enable.auto.offset.store": False,
    "auto.commit.interval.ms": 1000,
    # Short, so that a group soon continues without a killed member, and a member soon fails without its broker.
    "session.timeout.ms": 10_000,
    "heartbeat.interval.ms": 1000,
}


def consume(
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="The topic.")],
    from_: Annotated[str, typer.Option("--from", metavar=METAVAR, help="Where to start.")] = "latest",
    max_: Annotated[
        int | None, typer.Option("--max", "-n", min=0, metavar="N", help="Stop after this many records.")
    ] = None,
    to_end: Annotated[bool, typer.Option("--exit", "-e", help="Stop at the end that each partition has now.")] = False,
    partition: OnlyPartitions = None,
    group: Annotated[
        str | None,
        typer.Option(
            "--group", "-g", metavar="NAME", help="Read as a member of this group and commit the printed records."
        ),
    ] = None,
    format_: Format = "text",
    key: ShowKey = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Print records as they arrive, one per line. Stop with Ctrl-C.

    With --group, reading continues where the group stopped. A group without committed offsets starts at --from.

    TIME is a date and time, in local time unless it names a zone (2026-11-21T08:00, 2026-11-21T08:00Z), or how long ago
    (-90s, -15m, -2h, -3d).

    \b
    Examples:
      conveyor consume orders --from earliest --max 10
      conveyor consume orders --from -15m --exit --format json
      conveyor consume orders --from 2026-11-21T08:00 --partition 3 --key
      conveyor consume orders --group billing
    """
    write = record_writer(format_, key)
    position = parse_position("--from", from_)
    if group == "":
        raise ClientError("--group: the name is empty")
    if group is not None and partition:
        raise ClientError("a group assigns the partitions itself: give --group or --partition, not both")
    admin = admin_client(bootstrap)
    places = [(topic, number) for number in require_partitions(admin, bootstrap, topic, partition)]
    ranges = log_ranges(admin, places)
    with errors_in_one_line():
        starts = find_offsets(admin, position, ranges)
        _check_start(from_, position, starts, ranges)
        if group is None:
            print_from(bootstrap, starts, write, max_, end_offsets(ranges) if to_end else None)
        else:
            _print_as_member(bootstrap, admin, group, position, ranges, write, max_, to_end=to_end)


def _check_start(from_: str, position: LogPosition, starts: dict[Place, int], ranges: dict[Place, LogRange]) -> None:
    """Raise ClientError for a position that no partition has reached yet."""
    end = max(held.end for held in ranges.values())
    if position.kind is PositionKind.OFFSET and position.value > end:
        [topic] = {name for name, _ in ranges}
        where = (
            f"partition {min(ranges)[1]} of '{topic}'" if len(ranges) == 1 else f"the longest partition of '{topic}'"
        )
        raise ClientError(f"--from {from_}: {where} ends at offset {end}")
    is_ahead = position.kind is PositionKind.TIME and position.value > time.time() * 1000
    if is_ahead and all(starts[place] == held.end for place, held in ranges.items()):
        raise ClientError(f"--from {from_}: no record has a timestamp that late; use 'latest' to wait for new records")


def end_offsets(ranges: dict[Place, LogRange]) -> dict[int, int]:
    """Return the end offset of each partition of one topic."""
    return {partition: held.end for (_, partition), held in ranges.items()}


def print_from(
    bootstrap: str, starts: dict[Place, int], write: WriteRecord, limit: int | None, ends: dict[int, int] | None
) -> None:
    """Print the records of one topic from these offsets on, up to `ends` if given. Raises ClientError."""
    from confluent_kafka import TopicPartition

    consumer = reading_client(bootstrap, "conveyor-consume", **{"enable.auto.commit": False})
    try:
        consumer.assign([TopicPartition(*place, offset) for place, offset in starts.items()])
        print_records(consumer, Printer(consumer, write), limit, None if ends is None else LogEnds(ends, ends))
    finally:
        consumer.close()


def _print_as_member(
    bootstrap: str,
    admin: Any,
    group: str,
    position: LogPosition,
    ranges: dict[Place, LogRange],
    write: WriteRecord,
    limit: int | None,
    *,
    to_end: bool,
) -> None:
    consumer = reading_client(bootstrap, group, **_MEMBER)
    printer = Printer(consumer, write, stores_offsets=True)
    ends = LogEnds(end_offsets(ranges))

    def begin(_consumer: Any, partitions: list[Any]) -> None:
        starts = _starts(admin, consumer, partitions, position)
        consumer.assign(starts)
        if starts:
            consumer.store_offsets(offsets=starts)
        ends.assign(assigned.partition for assigned in partitions)

    def give_up(_consumer: Any, _partitions: list[Any]) -> None:
        printer.flush()

    [topic] = {name for name, _ in ranges}
    try:
        consumer.subscribe([topic], on_assign=begin, on_revoke=give_up)
        print_records(consumer, printer, limit, ends if to_end else None)
    finally:
        _commit(consumer, group, printer.printed)
        consumer.close()


def _starts(admin: Any, consumer: Any, partitions: list[Any], position: LogPosition) -> list[Any]:
    """Return a member's start offset in each partition: the group's committed offset, or else the position."""
    starts: list[Any] = consumer.committed(partitions, TIMEOUT_S)
    fresh = [start for start in starts if start.offset < 0]
    located = find_offsets(admin, position, log_ranges(admin, [(start.topic, start.partition) for start in fresh]))
    for start in fresh:
        start.offset = located[start.topic, start.partition]
    return starts


def _commit(consumer: Any, group: str, printed: int) -> None:
    from confluent_kafka import KafkaError, KafkaException

    try:
        errors = [partition.error for partition in consumer.commit(asynchronous=False) if partition.error is not None]
    except KafkaException as error:
        errors = [error.args[0]]
    for failure in errors:
        if failure.code() != KafkaError._NO_OFFSET:  # noqa: SLF001 - the client's public name for it
            raise ClientError(
                f"group '{group}' read {counted(printed, 'record')} but could not commit: {failure.str()}"
            )
    typer.echo(f"group {group}: read and committed {counted(printed, 'record')}", err=True)
