"""The deadletters job: groups dead letters by reason and time, and selects those to deliver again.

A dead letter is a record of a dead-letter topic with the headers `conveyor-dead-*` (docs/queues.md). Other records of
the topic are left out.
"""

from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from pyspark_conveyor.brokers.brokers import Brokers
from pyspark_conveyor.pipeline_errors import PipelineError
from pyspark_conveyor.source.source_options import whole_topics
from pyspark_conveyor.source.topic_bounds import find_topics, raw_client
from pyspark_conveyor.spark.connectors import Connector, read_topics
from pyspark_conveyor.spark.failed_jobs import spark_errors_in_one_line

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

_PREFIX = "conveyor-dead-"
_LAST_MS = 253_402_300_799_999
"""The last millisecond of the year 9999."""


class DeadLetterSelection(msgspec.Struct, frozen=True, kw_only=True):
    """A selection of dead letters. Empty or None selects all.

    reasons: any of these. since_ms, until_ms: of the last failure, in ms since 1970; the second is exclusive. where: an
    SQL expression over the columns of `dead_letters`.
    """

    reasons: tuple[str, ...] = ()
    since_ms: int | None = None
    until_ms: int | None = None
    where: str = ""


def read_dead_letters(
    spark: "SparkSession",
    brokers: Brokers,
    topics: tuple[str, ...],
    selection: DeadLetterSelection,
    connector: Connector = Connector.CONVEYOR,
) -> "DataFrame":
    """Return the selected dead letters of dead-letter topics, see `dead_letters`. Raises PipelineError."""
    records = read_topics(spark, connector, brokers.options | {"topic": ",".join(topics)})
    with spark_errors_in_one_line("--where cannot be used"):
        return selected_letters(dead_letters(records), selection)


def check_topics(brokers: Brokers, topics: tuple[str, ...]) -> None:
    """Raise PipelineError if a topic does not exist, or no broker answers."""
    options = whole_topics(brokers, topics)
    with raw_client(options) as client:
        find_topics(client, options)


def dead_letters(records: "DataFrame") -> "DataFrame":
    """Return the dead letters among the source's records, one row for each copy in the topic.

    Adds reason, subscription, origin_topic (string), origin_partition (int), origin_offset, deliveries (long),
    first_failure, last_failure (timestamp), value_text and key_text (string).
    """
    from pyspark.sql import functions as F  # noqa: N812 - Spark's own habit

    numbers = {"partition": "int", "offset": "bigint", "deliveries": "bigint"}
    texts = {"reason": "reason", "subscription": "subscription", "topic": "origin_topic"}
    columns: dict[str, Column] = {column: _header(name) for name, column in texts.items()}
    columns |= {
        name if name == "deliveries" else f"origin_{name}": _header(name).try_cast(kind)
        for name, kind in numbers.items()
    }
    for column in ("first_failure", "last_failure"):
        time_ms = _header(f"{column.replace('_', '-')}-ms").try_cast("bigint")
        columns[column] = F.when(time_ms.between(0, _LAST_MS), F.timestamp_millis(time_ms))
    found = records.withColumns(columns).dropna(subset=list(columns))
    return found.withColumns({"value_text": F.col("value").cast("string"), "key_text": F.col("key").cast("string")})


def selected_letters(letters: "DataFrame", selection: DeadLetterSelection) -> "DataFrame":
    """Return the selected rows of `dead_letters`."""
    from pyspark.sql import functions as F  # noqa: N812 - Spark's own habit

    chosen = letters.where(F.col("reason").isin(*selection.reasons)) if selection.reasons else letters
    if selection.since_ms is not None:
        chosen = chosen.where(F.col("last_failure") >= F.expr(f"timestamp_millis({selection.since_ms})"))
    if selection.until_ms is not None:
        chosen = chosen.where(F.col("last_failure") < F.expr(f"timestamp_millis({selection.until_ms})"))
    return chosen.where(selection.where) if selection.where else chosen


def grouped_letters(letters: "DataFrame", every: str) -> "DataFrame":
    """Return how many dead letters there are by subscription, reason and time.

    every: the length of a window of last failures, such as "1 hour". Grain: subscription, reason, since (timestamp, the
    start of the window). Adds letters (long), first_failure, last_failure (timestamp).
    """
    from pyspark.sql import functions as F  # noqa: N812 - Spark's own habit

    window = F.window("last_failure", every)["start"].alias("since")
    groups = letters.groupBy("subscription", "reason", window)
    return groups.agg(
        F.count("*").alias("letters"),
        F.min("first_failure").alias("first_failure"),
        F.max("last_failure").alias("last_failure"),
    ).orderBy("since", "subscription", "reason")


def write_groups(groups: "DataFrame", path: Path) -> None:
    """Write the groups to a new directory: CSV if its name ends with .csv, otherwise Parquet. Raises PipelineError."""
    if path.exists():
        raise PipelineError(f"{path} exists: name another path with --out")
    writer = groups.coalesce(1).write
    with spark_errors_in_one_line(f"{path} cannot be written"):
        if path.suffix == ".csv":
            writer.csv(str(path), header=True)
        else:
            writer.parquet(str(path))


def originals(letters: "DataFrame") -> Iterator[tuple[str, list[str]]]:
    """Yield each subscription with the ids of the messages of its dead letters, in order, each once."""
    places = letters.select("subscription", "origin_partition", "origin_offset").distinct()
    rows = places.orderBy("subscription", "origin_partition", "origin_offset").collect()
    for subscription, group in groupby(rows, key=lambda row: str(row.subscription)):
        yield subscription, [f"{row.origin_partition}-{row.origin_offset}" for row in group]


def _header(name: str) -> "Column":
    """Return the last header of a name as text; null if it is missing or null."""
    from pyspark.sql import functions as F  # noqa: N812 - Spark's own habit

    found = F.filter("headers", lambda header: header["key"] == _PREFIX + name)
    return F.try_element_at(found, F.lit(-1))["value"].cast("string")
