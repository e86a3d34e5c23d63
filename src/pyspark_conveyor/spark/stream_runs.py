"""Runs streaming queries, and starts those again whose Python process Spark has given up too early.

The query has done nothing by then, and begins where it would have begun. See docs/decisions/spark-source.md.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

MOST_STARTS = 6
_LATE = "Python worker failed to connect back"


def _until_its_end(query: "StreamingQuery") -> None:
    query.awaitTermination()


def run_stream(
    writer: "DataStreamWriter", wait: "Callable[[StreamingQuery], None]" = _until_its_end
) -> "StreamingQuery":
    """Start a query and wait. wait: raises the failure of the query, as `awaitTermination` does.

    Returns the query that was waited for. Raises StreamingQueryException.
    """
    from pyspark.errors import StreamingQueryException

    for _ in range(MOST_STARTS - 1):
        query = writer.start()
        try:
            wait(query)
        except StreamingQueryException as error:
            if not is_late_start(error):
                raise
        else:
            return query
    query = writer.start()
    wait(query)
    return query


def is_late_start(error: BaseException) -> bool:
    """Return whether a query has ended because the Python process of a source did not connect in time."""
    return _LATE in str(error)
