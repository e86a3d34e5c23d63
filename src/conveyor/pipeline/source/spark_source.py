"""`format("conveyor")`: topics as a Spark table, batch and stream. One Spark partition per range of a topic partition.

A stream offset is a dict of the next offsets to read, `{"topic": {"0": 17}}`. The driver computes ranges, and each task
reads its range with a client of its own. See `options` for the options and `rows` for the columns.
"""

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

from conveyor.pipeline.pipeline_errors import DataLossError
from conveyor.pipeline.source.offset_client import consumer, latest_bounds, records, resolve, watermarks
from conveyor.pipeline.source.ranges import limited, split
from conveyor.pipeline.source.rows import arrow_schema, spark_schema, to_batch
from conveyor.pipeline.source.source_options import LATEST, Bounds, SourceOptions, parse_options

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

StreamOffset = dict[str, dict[str, int]]


@dataclass(frozen=True)
class OffsetRange(InputPartition):
    """The records of one partition in [start, end)."""

    topic: str
    partition: int
    start: int
    end: int


class ConveyorDataSource(DataSource):
    """The data source; see the module's docstring."""

    @classmethod
    def name(cls) -> str:
        return "conveyor"

    def schema(self) -> "StructType":
        return spark_schema()

    def reader(self, schema: Any) -> "BatchReader":
        return BatchReader(parse_options(self.options, streaming=False))

    def streamReader(self, schema: Any) -> "StreamReader":  # noqa: N802 - Spark's name
        return StreamReader(parse_options(self.options, streaming=True))


class BatchReader(DataSourceReader):
    """Reads the records between two bounds."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options

    def partitions(self) -> list[OffsetRange]:
        options = self._options
        with consumer(options) as client:
            start = resolve(client, options, options.starting_offsets, options.starting_timestamp_ms)
            end = resolve(client, options, options.ending_offsets, options.ending_timestamp_ms, LATEST)
            return _ranges(client, options, start, end)

    def read(self, partition: InputPartition) -> Iterator["pa.RecordBatch"]:
        return _read(self._options, partition)


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads records as they are appended."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._goal: Bounds | None = None

    def initialOffset(self) -> StreamOffset:  # noqa: N802 - Spark's name
        options = self._options
        with consumer(options) as client:
            return _to_json(resolve(client, options, options.starting_offsets, options.starting_timestamp_ms))

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        limit = self._options.max_offsets_per_trigger
        return ReadAllAvailable() if limit is None else ReadMaxRows(limit)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        with consumer(self._options) as client:
            self._goal = latest_bounds(client, self._options)

    def latestOffset(self, start: StreamOffset, limit: ReadLimit) -> StreamOffset:  # noqa: N802 - Spark's name
        with consumer(self._options) as client:
            end = self._goal or latest_bounds(client, self._options)
            begin = _from_json(start)
            for topic, numbers in end.items():
                for number in numbers:
                    starts = begin.setdefault(topic, {})
                    if number not in starts:
                        starts[number] = watermarks(client, topic, number)[0]
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        return _to_json(limited(begin, end, most))

    def partitions(self, start: StreamOffset, end: StreamOffset) -> list[OffsetRange]:
        with consumer(self._options) as client:
            return _ranges(client, self._options, _from_json(start), _from_json(end))

    def read(self, partition: InputPartition) -> Iterator["pa.RecordBatch"]:
        return _read(self._options, partition)

    def commit(self, end: StreamOffset) -> None:
        """Nothing to do: Spark's checkpoint stores the offsets."""


def _ranges(client: Any, options: SourceOptions, start: Bounds, end: Bounds) -> list[OffsetRange]:
    """Return the ranges to read. If the first records were deleted, raise DataLossError or shorten the range."""
    ranges = []
    for topic, ends in end.items():
        for number, stop in ends.items():
            first_offset, high_watermark = watermarks(client, topic, number)
            begin = start.get(topic, {}).get(number, first_offset)
            if begin < first_offset or stop > high_watermark or begin > high_watermark:
                _lost(options, topic, number, begin, stop, first_offset, high_watermark)
                begin, stop = max(begin, first_offset), min(stop, high_watermark)
            parts = split(begin, stop, options.max_records_per_partition)
            ranges += [OffsetRange(topic, number, *part) for part in parts]
    return ranges


def _lost(
    options: SourceOptions, topic: str, number: int, begin: int, stop: int, first_offset: int, high_watermark: int
) -> None:
    if options.fail_on_data_loss:
        raise DataLossError(
            f"partition {number} of '{topic}' has offsets {first_offset} to {high_watermark}, but {begin} to"
            f" {stop} were requested: records"
            " were deleted, or the topic was recreated; set failOnDataLoss to false to continue without them"
        )


def _read(options: SourceOptions, wanted: InputPartition) -> Iterator["pa.RecordBatch"]:
    if not isinstance(wanted, OffsetRange):
        return  # Spark passes a placeholder partition when there is nothing to read.
    schema = arrow_schema()
    with _collector_paused(), consumer(options) as client:
        for messages in _records_left(client, options, wanted):
            yield to_batch(messages, schema, include_headers=options.include_headers)


def _records_left(client: Any, options: SourceOptions, wanted: OffsetRange) -> Iterator[list[Any]]:
    """Yield the records of a range. If some are deleted meanwhile, raise DataLossError or continue after them."""
    position = wanted.start
    while True:
        try:
            for messages in records(client, wanted.topic, wanted.partition, position, wanted.end):
                yield messages
                position = messages[-1].offset() + 1
        except DataLossError:
            first_offset = watermarks(client, wanted.topic, wanted.partition)[0]
            if options.fail_on_data_loss or first_offset <= position:
                raise
            position = first_offset
        else:
            return


@contextmanager
def _collector_paused() -> Iterator[None]:
    """Pause the garbage collector: records form no cycles, and searching for some takes half of a reading task's
    time.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _to_json(bounds: Bounds) -> StreamOffset:
    return {topic: {str(number): offset for number, offset in offsets.items()} for topic, offsets in bounds.items()}


def _from_json(offset: StreamOffset) -> Bounds:
    return {topic: {int(number): value for number, value in offsets.items()} for topic, offsets in offset.items()}
