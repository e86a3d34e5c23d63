"""Maps offsets of a mirrored partition to those of its source, which the records carry in a header.

A search halves the range of offsets and reads one record each time, so it takes about twenty short reads.
"""

from typing import NamedTuple

from pyspark_conveyor.brokers.raw_client import RawClient
from pyspark_conveyor.pipeline_errors import PipelineError
from pyspark_conveyor.source.record_columns import decode
from pyspark_conveyor.source.record_fetch import FetchPlace, fetch
from pyspark_conveyor.source.source_options import EARLIEST, LATEST, SourceOptions
from pyspark_conveyor.source.topic_bounds import TopicFound, offsets_at

MIRRORED_FROM = "conveyor-mirrored-from"


class MirroredPlace(NamedTuple):
    """A partition of the source."""

    cluster: str
    topic: str
    partition: int


def last_mirrored(target: RawClient, topic: str, source: MirroredPlace) -> int:
    """Return the source's offset of the last record that the target has; -1 if it has none. Raises PipelineError."""
    first, end = _bounds(target, topic, source.partition)
    low, high = first, end  # The first offset from which on there is no record is in [low, high].
    while low < high:
        middle = (low + high) // 2
        if _first_mirrored(target, topic, source, middle, end) is None:
            high = middle
        else:
            low = middle + 1
    last = _first_mirrored(target, topic, source, low - 1, end) if low > first else None
    return -1 if last is None else last.source_offset


def translated_offset(target: RawClient, topic: str, source: MirroredPlace, offset: int) -> int:
    """Return the target's offset of the first record whose offset in the source is at least `offset`; the end, if the
    target has none. Raises PipelineError.
    """
    first, end = _bounds(target, topic, source.partition)
    low, high = first, end
    while low < high:
        middle = (low + high) // 2
        found = _first_mirrored(target, topic, source, middle, end)
        if found is None or found.source_offset >= offset:
            high = middle
        else:
            low = found.target_offset + 1
    found = _first_mirrored(target, topic, source, low, end)
    return end if found is None else found.target_offset


def _bounds(target: RawClient, topic: str, partition: int) -> tuple[int, int]:
    options = SourceOptions(topics=(topic,))
    topics = {topic: TopicFound("", (partition,))}
    first, end = (offsets_at(target, options, topics, name)[topic][partition] for name in (EARLIEST, LATEST))
    return first, end


class _Mirrored(NamedTuple):
    """The offsets of one record in both clusters."""

    target_offset: int
    source_offset: int


def _first_mirrored(target: RawClient, topic: str, source: MirroredPlace, offset: int, end: int) -> _Mirrored | None:
    """Return the first record from an offset of the target on; None if there is none."""
    place = FetchPlace(topic, source.partition, offset, end)
    place.bytes_wanted = 1  # One batch, whatever its size.
    for batches in fetch(target, place, read_committed=True):
        for columns in decode(batches, with_headers=True):
            header = 0
            for row, count in enumerate(columns.headers_counts.tolist()):
                if offset <= columns.offsets[row] < end:
                    names = columns.header_keys.slice(header, count).to_pylist()
                    values = columns.header_values.slice(header, count).to_pylist()
                    source_offset = _parsed(topic, source, dict(zip(names, values, strict=True)))
                    return _Mirrored(int(columns.offsets[row]), source_offset)
                header += count
    return None


def _parsed(topic: str, source: MirroredPlace, headers: dict[bytes, bytes | None]) -> int:
    """Return the offset in the last header of the name. Raises PipelineError for the record of another writer."""
    place, _, offset = (headers.get(MIRRORED_FROM.encode()) or b"").decode(errors="replace").rpartition("/")
    if place != f"{source.cluster}/{source.topic}/{source.partition}" or not offset.isdecimal():
        raise PipelineError(
            f"partition {source.partition} of '{topic}' has records that are not mirrored from '{source.topic}':"
            " mirror into a topic of its own, such as with --prefix"
        )
    return int(offset)
