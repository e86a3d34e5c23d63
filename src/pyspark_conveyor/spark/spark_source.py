"""`format("conveyor")`: topics as a Spark table, batch and stream. One Spark partition per range of a topic partition.

The driver computes ranges, and each task reads its range with a client of its own. See `source_options` for the options
and `rows` for the columns.
"""

from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource

from pyspark_conveyor.pipeline_errors import PipelineError
from pyspark_conveyor.plain_errors import plain_errors
from pyspark_conveyor.segments.segment_reader import SegmentReader
from pyspark_conveyor.sink.outgoing_rows import check_columns
from pyspark_conveyor.sink.sink_options import parse_sink_options
from pyspark_conveyor.sink.table_writers import BatchWriter, StreamWriter
from pyspark_conveyor.source.batch_reader import BatchReader, FilteringBatchReader
from pyspark_conveyor.source.rows import spark_schema
from pyspark_conveyor.source.source_options import parse_options
from pyspark_conveyor.source.stream_reader import StreamReader
from pyspark_conveyor.subscriptions.subscription_options import parse_subscription_options
from pyspark_conveyor.subscriptions.subscription_reader import SubscriptionReader

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


class ConveyorDataSource(DataSource):
    """The data source; see the module's docstring."""

    @classmethod
    def name(cls) -> str:
        return "conveyor"

    def schema(self) -> "StructType":
        return spark_schema(headers_as_map=self.options.get("headersAs", "").lower() == "map")

    @plain_errors
    def reader(self, schema: Any) -> BatchReader | SegmentReader:
        options = parse_options(self.options, streaming=False)
        if options.data_dir is not None:
            return SegmentReader(options)
        return FilteringBatchReader(options) if options.filter_pushdown else BatchReader(options)

    def streamReader(self, schema: Any) -> StreamReader | SubscriptionReader:  # noqa: N802 - Spark's name
        # With its traceback: PySpark then fails to stop the reader, and reports this failure instead of the first.
        if "subscription" in self.options:
            return SubscriptionReader(parse_subscription_options(self.options))
        return StreamReader(parse_options(self.options, streaming=True))

    @plain_errors
    def writer(self, schema: "StructType", overwrite: bool) -> BatchWriter:
        if overwrite:
            raise PipelineError("a topic cannot be overwritten: use .mode('append')")
        options = parse_sink_options(self.options, streaming=False)
        check_columns(schema, options.topic)
        return BatchWriter(options)

    @plain_errors
    def streamWriter(self, schema: "StructType", overwrite: bool) -> StreamWriter:  # noqa: N802 - Spark's name
        if overwrite:
            raise PipelineError("a topic takes no complete output: use .outputMode('append')")
        options = parse_sink_options(self.options, streaming=True)
        check_columns(schema, options.topic)
        return StreamWriter(options)
