"""`format("conveyor")`: topics as a Spark table, batch and stream. One Spark partition per range of a topic partition.

The driver computes ranges, and each task reads its range with a client of its own. See `source_options` for the options
and `rows` for the columns.
"""

import os
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource

from conveyor.pipeline.pipeline_errors import PipelineError
from conveyor.pipeline.segments.segment_reader import SegmentReader
from conveyor.pipeline.sink.outgoing_rows import check_columns
from conveyor.pipeline.sink.sink_options import parse_sink_options
from conveyor.pipeline.sink.table_writers import BatchWriter, StreamWriter
from conveyor.pipeline.source.batch_reader import BatchReader, FilteringBatchReader
from conveyor.pipeline.source.rows import spark_schema
from conveyor.pipeline.source.source_options import parse_options
from conveyor.pipeline.source.stream_reader import StreamReader

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

PUSHDOWN_VARIABLE = "SPARK_CONVEYOR_PUSHDOWN"
"""Set by `spark_session`, which turns filter pushdown on. Without it Spark refuses a reader that takes filters, and a
reader cannot see the session's settings.
"""


class ConveyorDataSource(DataSource):
    """The data source; see the module's docstring."""

    @classmethod
    def name(cls) -> str:
        return "conveyor"

    def schema(self) -> "StructType":
        return spark_schema(headers_as_map=self.options.get("headersAs", "").lower() == "map")

    def reader(self, schema: Any) -> BatchReader | SegmentReader:
        options = parse_options(self.options, streaming=False)
        if options.data_dir is not None:
            return SegmentReader(options)
        is_allowed = options.filter_pushdown
        if is_allowed is None:
            is_allowed = os.environ.get(PUSHDOWN_VARIABLE) == "1"
        return FilteringBatchReader(options) if is_allowed else BatchReader(options)

    def streamReader(self, schema: Any) -> StreamReader:  # noqa: N802 - Spark's name
        return StreamReader(parse_options(self.options, streaming=True))

    def writer(self, schema: "StructType", overwrite: bool) -> BatchWriter:
        if overwrite:
            raise PipelineError("a topic cannot be overwritten: use .mode('append')")
        options = parse_sink_options(self.options, streaming=False)
        check_columns(schema, options.topic)
        return BatchWriter(options)

    def streamWriter(self, schema: "StructType", overwrite: bool) -> StreamWriter:  # noqa: N802 - Spark's name
        if overwrite:
            raise PipelineError("a topic takes no complete output: use .outputMode('append')")
        options = parse_sink_options(self.options, streaming=True)
        check_columns(schema, options.topic)
        return StreamWriter(options)
