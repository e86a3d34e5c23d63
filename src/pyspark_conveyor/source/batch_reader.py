"""Reads topics as a table."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceReader, InputPartition

from pyspark_conveyor.brokers.raw_client import RawClient
from pyspark_conveyor.plain_errors import with_plain_errors
from pyspark_conveyor.source.offset_ranges import OffsetRange, plan_ranges, read_range
from pyspark_conveyor.source.pushdown import Pushed, push
from pyspark_conveyor.source.source_options import LATEST, Bounds, SourceOptions
from pyspark_conveyor.source.topic_bounds import TopicFound, find_topics, offsets_at, raw_client, resolve

if TYPE_CHECKING:
    import pyarrow as pa


@with_plain_errors
class BatchReader(DataSourceReader):
    """Reads the records between two bounds."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._pushed = Pushed()

    def partitions(self) -> list[OffsetRange]:
        options = self._options
        with raw_client(options) as client:
            topics = find_topics(client, options)
            start = resolve(client, options, topics, options.starting_offsets, options.starting_timestamp_ms)
            end = resolve(client, options, topics, options.ending_offsets, options.ending_timestamp_ms, LATEST)
            return plan_ranges(client, options, topics, *self._narrowed(client, topics, start, end))

    def read(self, partition: InputPartition) -> Iterator["pa.RecordBatch"]:
        return read_range(self._options, partition)

    def _narrowed(
        self, client: RawClient, topics: dict[str, TopicFound], start: Bounds, end: Bounds
    ) -> tuple[Bounds, Bounds]:
        """Leave out what the filters leave out. Bounds that the options set are checked as they are."""
        pushed = self._pushed
        if pushed == Pushed():
            return start, end
        plan_ranges(client, self._options, topics, start, end)
        since = start if pushed.since_ms is None else offsets_at(client, self._options, topics, pushed.since_ms)
        starts: Bounds = {topic: {} for topic in start}
        ends: Bounds = {topic: {} for topic in end}
        for topic, numbers in end.items():
            for number, stop in numbers.items():
                begin = start[topic][number]
                kept = pushed.numbers is None or number in pushed.numbers
                starts[topic][number] = first = min(max(begin, pushed.start, since[topic][number]), max(begin, stop))
                ends[topic][number] = max(first, min(stop, pushed.end)) if kept else first
        return starts, ends


@with_plain_errors
class FilteringBatchReader(BatchReader):
    """A batch reader that Spark offers its filters, where the session allows it."""

    def pushFilters(self, filters: list[Any]) -> Iterator[Any]:  # noqa: N802 - Spark's name
        self._pushed, left = push(filters)
        return iter(left)
