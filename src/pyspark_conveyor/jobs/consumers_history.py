"""Reads what earlier runs of the metrics job have written to `consumers/`: one file for each run."""

from collections.abc import Collection, Iterator
from itertools import islice
from pathlib import Path

import msgspec

from pyspark_conveyor.jobs.topic_metrics import ConsumerNumbers
from pyspark_conveyor.pipeline_errors import PipelineError

MAX_RUNS = 500
"""The number of runs that are read at most, the newest first."""

Consumer = tuple[str, str]
"""Topic and subscription."""


def last_numbers(directory: Path, subscriptions: Collection[Consumer]) -> dict[Consumer, ConsumerNumbers]:
    """Return the newest numbers with delays of each subscription that has any. Raises PipelineError.

    directory: of the job's tables.
    """
    missing, found = set(subscriptions), dict[Consumer, ConsumerNumbers]()
    runs = _runs(directory)
    while missing and (numbers := next(runs, None)) is not None:
        found |= {_consumer(row): row for row in numbers if _consumer(row) in missing}
        missing -= found.keys()
    return found


def delays_of(directory: Path, topics: Collection[str]) -> list[ConsumerNumbers]:
    """Return the numbers with delays of the topics' subscriptions, by time. Raises PipelineError.

    directory: of the job's tables.
    """
    numbers = [row for run in _runs(directory) for row in run if row.topic in topics]
    return sorted(numbers, key=lambda row: row.at)


def _consumer(numbers: ConsumerNumbers) -> Consumer:
    return numbers.topic, numbers.consumer


def _runs(directory: Path) -> Iterator[list[ConsumerNumbers]]:
    """Yield the numbers with delays of each run, newest first. Consumer groups have none."""
    for file in islice(_newest_first(directory / "consumers"), MAX_RUNS):
        yield [numbers for numbers in _read(file) if numbers.ack_delays is not None]


def _newest_first(directory: Path) -> Iterator[Path]:
    try:
        yield from sorted(directory.glob("*.parquet"), key=lambda file: file.stat().st_mtime_ns, reverse=True)
    except OSError as error:
        raise PipelineError(f"{directory} cannot be read: {error.strerror}") from error


def _read(file: Path) -> list[ConsumerNumbers]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        table = pq.read_table(file, coerce_int96_timestamp_unit="us")
        for index, field in enumerate(table.schema):
            if pa.types.is_timestamp(field.type):
                table = table.set_column(index, field.name, table[index].cast(pa.timestamp("us", "UTC")))
        return msgspec.convert(table.to_pylist(), list[ConsumerNumbers])
    except (OSError, pa.ArrowException, msgspec.ValidationError) as error:
        raise PipelineError(f"{file} cannot be read: {error}: remove it, or choose another --to") from error
