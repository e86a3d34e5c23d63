"""The metrics job's tables: the traffic of topics by windows of time, and the consumers of topics.

<directory>/windows/      topic string | start timestamp | records long | bytes long | records_per_s double |
                          bytes_per_s double: one row for each topic and window that has records; rewritten by a run
<directory>/consumers/    the fields of ConsumerNumbers: one row for each consumer and run; a run adds its rows
<directory>/_metrics      marks the directory as the job's
"""

from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from pyspark_conveyor.pipeline_errors import PipelineError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_CONSUMERS = (
    "at timestamp, topic string, consumer string, kind string, lag long, oldest_age_ms long, in_flight long,"
    " acknowledged long, retried long, ack_rate double, retry_rate double, delay_since timestamp, delay_acks long,"
    " delay_mean_ms double, delay_p50_ms double, delay_p99_ms double,"
    " ack_delays struct<subscription_id: string, bounds_ms: array<long>, counts: array<long>, sum_ms: double>"
)
_MARK = "_metrics"


class DelayHistogram(msgspec.Struct, frozen=True):
    """Delays from publish to ack. subscription_id: differs from that of a deleted subscription of the same name.
    bounds_ms: the upper bounds of all buckets but the last, which has none. counts: of each bucket, not cumulative.
    sum_ms: of all delays.
    """

    subscription_id: str
    bounds_ms: list[int]
    counts: list[int]
    sum_ms: float


class ConsumerNumbers(msgspec.Struct, frozen=True, kw_only=True):
    """A consumer group or a subscription of a topic, at a time.

    kind: group or subscription. lag: records that a group has not read, messages that a subscription has not settled.
    The others are of subscriptions only: oldest_age_ms of the oldest message that is not settled, None without one;
    acknowledged, retried: counts since the broker started; ack_rate, retry_rate: recent rates per second.
    delay_since: the earlier run since which the delays from publish to ack count; None: since the broker started.
    delay_acks: the number of acks since then. Their delays are None without any. The percentiles are estimates.
    ack_delays: all acks since the broker started.
    """

    at: datetime
    topic: str
    consumer: str
    kind: str
    lag: int
    oldest_age_ms: int | None = None
    in_flight: int | None = None
    acknowledged: int | None = None
    retried: int | None = None
    ack_rate: float | None = None
    retry_rate: float | None = None
    delay_since: datetime | None = None
    delay_acks: int | None = None
    delay_mean_ms: float | None = None
    delay_p50_ms: float | None = None
    delay_p99_ms: float | None = None
    ack_delays: DelayHistogram | None = None


def traffic(records: "DataFrame", window_s: int) -> "DataFrame":
    """Return the traffic of the source's records by topic and window of their timestamps: the columns of `windows/`.

    bytes: of keys and values, without headers.
    """
    from pyspark.sql import functions as F  # noqa: N812 - Spark's own habit

    size = F.coalesce(F.octet_length("key"), F.lit(0)) + F.coalesce(F.octet_length("value"), F.lit(0))
    counted = records.groupBy("topic", F.window("timestamp", f"{window_s} seconds").alias("window")).agg(
        F.count("*").alias("records"), F.sum(size.cast("long")).alias("bytes")
    )
    return counted.select(
        "topic",
        F.col("window.start").alias("start"),
        "records",
        "bytes",
        (F.col("records") / window_s).alias("records_per_s"),
        (F.col("bytes") / window_s).alias("bytes_per_s"),
    )


def prepare_directory(directory: Path) -> None:
    """Create the directory of the tables. Raises PipelineError if it has other files, which a run could replace."""
    mark = directory / _MARK
    try:
        if not mark.exists():
            if directory.exists() and any(directory.iterdir()):
                raise PipelineError(f"{directory} holds other files: choose an empty directory with --to")
            directory.mkdir(parents=True, exist_ok=True)
            mark.touch()
    except OSError as error:
        raise PipelineError(f"{directory} cannot be written ({error.strerror}): choose another with --to") from error


def write_tables(
    spark: "SparkSession", windows: "DataFrame", consumers: Sequence[ConsumerNumbers], directory: Path
) -> list[Any]:
    """Write both tables. Returns the rows of the windows, by topic and time."""
    windows.coalesce(1).write.mode("overwrite").parquet(str(directory / "windows"))
    if consumers:
        rows = [msgspec.to_builtins(each, builtin_types=(datetime,)) for each in consumers]
        spark.createDataFrame(rows, _CONSUMERS).coalesce(1).write.mode("append").parquet(str(directory / "consumers"))
    written = spark.read.schema(windows.schema).parquet(str(directory / "windows"))
    return written.orderBy("topic", "start").collect()
