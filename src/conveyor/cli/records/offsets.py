"""Looks up the offsets of many partitions with one request."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from conveyor.cli.terminal.kafka_client import ClientError, errors_in_one_line, request_timeout
from conveyor.cli.terminal.position import LogPosition, PositionKind

Place = tuple[str, int]
"""Topic and partition."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogRange:
    """The offsets that a partition holds: `start` is the first, `end` the next to be written."""

    start: int
    end: int


def list_offsets(admin: Any, places: Iterable[Place], spec: Any) -> dict[Place, Any]:
    """One kind of offset of each partition, as the client's results (`offset`, `timestamp`).

    Raises ClientError, which names the partition.
    """
    from confluent_kafka import TopicPartition

    asked = {TopicPartition(*place): spec for place in places}
    if not asked:
        return {}
    found = {}
    with errors_in_one_line():
        futures = admin.list_offsets(asked, **request_timeout())
    for each, future in futures.items():
        try:
            with errors_in_one_line():
                found[each.topic, each.partition] = future.result()
        except ClientError as error:
            raise ClientError(f"partition {each.partition} of '{each.topic}' has no offset to show: {error}") from error
    return found


def log_ranges(admin: Any, places: Iterable[Place]) -> dict[Place, LogRange]:
    """Raises ClientError."""
    from confluent_kafka.admin import OffsetSpec

    places = list(places)
    starts = list_offsets(admin, places, OffsetSpec.earliest())
    ends = list_offsets(admin, places, OffsetSpec.latest())
    return {place: LogRange(start=starts[place].offset, end=ends[place].offset) for place in places}


def locate(admin: Any, position: LogPosition, ranges: Mapping[Place, LogRange]) -> dict[Place, int]:
    """The offset of a position in each log, at most its end and at least its start. Raises ClientError."""
    from confluent_kafka.admin import OffsetSpec

    if position.kind is PositionKind.EARLIEST:
        return {place: held.start for place, held in ranges.items()}
    if position.kind is PositionKind.LATEST:
        return {place: held.end for place, held in ranges.items()}
    if position.kind is PositionKind.OFFSET:
        return {place: within(held, position.value) for place, held in ranges.items()}
    found = list_offsets(admin, ranges, OffsetSpec.for_timestamp(position.value))
    return {
        place: within(held, found[place].offset) if found[place].offset >= 0 else held.end
        for place, held in ranges.items()
    }


def within(held: LogRange, offset: int) -> int:
    """The offset, or the nearest one that the log holds."""
    return min(max(offset, held.start), held.end)
