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
    """The offsets in a partition: `start` is the first, `end` the next to be written."""

    start: int
    end: int


def list_offsets(admin: Any, places: Iterable[Place], spec: Any) -> dict[Place, Any]:
    """Look up one kind of offset in each partition. Returns the client's results (`offset`, `timestamp`).

    Raises ClientError, which names the partition.
    """
    from confluent_kafka import TopicPartition

    requests = {TopicPartition(*place): spec for place in places}
    if not requests:
        return {}
    offsets = {}
    with errors_in_one_line():
        futures = admin.list_offsets(requests, **request_timeout())
    for partition, future in futures.items():
        try:
            with errors_in_one_line():
                offsets[partition.topic, partition.partition] = future.result()
        except ClientError as error:
            raise ClientError(
                f"partition {partition.partition} of '{partition.topic}' has no offset to show: {error}"
            ) from error
    return offsets


def log_ranges(admin: Any, places: Iterable[Place]) -> dict[Place, LogRange]:
    """Look up the range of each partition. Raises ClientError."""
    from confluent_kafka.admin import OffsetSpec

    places = list(places)
    starts = list_offsets(admin, places, OffsetSpec.earliest())
    ends = list_offsets(admin, places, OffsetSpec.latest())
    return {place: LogRange(start=starts[place].offset, end=ends[place].offset) for place in places}


def find_offsets(admin: Any, position: LogPosition, ranges: Mapping[Place, LogRange]) -> dict[Place, int]:
    """Look up a position in each partition, clamped to its range. Raises ClientError."""
    from confluent_kafka.admin import OffsetSpec

    if position.kind is PositionKind.EARLIEST:
        return {place: held.start for place, held in ranges.items()}
    if position.kind is PositionKind.LATEST:
        return {place: held.end for place, held in ranges.items()}
    if position.kind is PositionKind.OFFSET:
        return {place: clamp(held, position.value) for place, held in ranges.items()}
    offsets = list_offsets(admin, ranges, OffsetSpec.for_timestamp(position.value))
    return {
        place: clamp(held, offsets[place].offset) if offsets[place].offset >= 0 else held.end
        for place, held in ranges.items()
    }


def clamp(held: LogRange, offset: int) -> int:
    """Return the offset, or the nearest offset within the range."""
    return min(max(offset, held.start), held.end)
