"""Ranges of offsets: what each Spark task reads."""

import gc
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING

from pyspark.sql.datasource import InputPartition

from pyspark_conveyor.brokers.kept_client import kept_client
from pyspark_conveyor.brokers.raw_client import RawClient
from pyspark_conveyor.pipeline_errors import DataLossError
from pyspark_conveyor.source.record_columns import decode
from pyspark_conveyor.source.record_fetch import FetchPlace, fetch
from pyspark_conveyor.source.rows import arrow_schema, to_batches
from pyspark_conveyor.source.source_options import EARLIEST, LATEST, Bounds, SourceOptions
from pyspark_conveyor.source.topic_bounds import TopicFound, offsets_at

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True)
class OffsetRange(InputPartition):
    """The records of one partition in [start, end). topic_id: "" if it is not known."""

    topic: str
    partition: int
    start: int
    end: int
    topic_id: str = ""


def plan_ranges(
    client: RawClient, options: SourceOptions, topics: Mapping[str, TopicFound], start: Bounds, end: Bounds
) -> list[OffsetRange]:
    """Return the ranges to read. If the first records were deleted, raise DataLossError or shorten the range."""
    first = offsets_at(client, options, topics, EARLIEST)
    last = offsets_at(client, options, topics, LATEST)
    whole = []
    for topic, ends in end.items():
        for number, stop in ends.items():
            first_offset, high_watermark = first[topic][number], last[topic][number]
            begin = start.get(topic, {}).get(number, first_offset)
            if begin < first_offset or stop > high_watermark or begin > high_watermark:
                check_loss(
                    options,
                    f"partition {number} of '{topic}' has offsets {first_offset} to {high_watermark},"
                    f" but {begin} to {stop} were requested: records were deleted, or the topic was recreated",
                )
                begin, stop = max(begin, first_offset), min(stop, high_watermark)
            whole.append(OffsetRange(topic, number, begin, stop, topics[topic].topic_id))
    most = options.max_records_per_partition
    if options.min_partitions:
        total = sum(max(0, each.end - each.start) for each in whole)
        most = max(1, min(most, -(-total // options.min_partitions)))
    return [replace(each, start=part[0], end=part[1]) for each in whole for part in split(each.start, each.end, most)]


def check_loss(options: SourceOptions, found: str) -> None:
    """Raise DataLossError, unless the options allow loss."""
    if options.fail_on_data_loss:
        raise DataLossError(f"{found}; set failOnDataLoss to false to continue without them")


def split(start: int, end: int, most: int) -> list[tuple[int, int]]:
    """Split a range into parts of at most `most` offsets, as even as possible; an empty range has no parts."""
    if end <= start:
        return []
    count = -(-(end - start) // most)
    edges = [start + (end - start) * number // count for number in range(count + 1)]
    return list(pairwise(edges))


def read_range(options: SourceOptions, wanted: InputPartition) -> Iterator["pa.RecordBatch"]:
    """Yield the records of a range. If some are deleted meanwhile, raise DataLossError or continue after them."""
    if not isinstance(wanted, OffsetRange):
        return  # Spark passes a placeholder partition when there is nothing to read.
    schema = arrow_schema(headers_as_map=options.headers_as_map)
    place = FetchPlace(wanted.topic, wanted.partition, wanted.start, wanted.end, wanted.topic_id)
    start = wanted.start
    with _collector_paused(), kept_client(options.bootstrap_servers, options.client) as client:
        while place.position < place.end:
            try:
                for batches in fetch(client, place, read_committed=options.read_committed):
                    for columns in decode(batches, with_headers=options.include_headers):
                        bounds = (start, wanted.end)
                        yield from to_batches(columns, wanted.topic, wanted.partition, bounds, schema)
            except DataLossError:
                topics = {wanted.topic: TopicFound("", (wanted.partition,))}
                first_offset = offsets_at(client, options, topics, EARLIEST)[wanted.topic][wanted.partition]
                if options.fail_on_data_loss or first_offset <= place.position:
                    raise
                place.position = start = first_offset


@contextmanager
def _collector_paused() -> Iterator[None]:
    """Pause the garbage collector: records form no cycles, and searching for some takes time."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
