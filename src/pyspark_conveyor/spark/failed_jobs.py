"""The failures of Spark's jobs, as errors of one line."""

from collections.abc import Iterator
from contextlib import contextmanager

from pyspark_conveyor.pipeline_errors import PipelineError
from pyspark_conveyor.spark.query_failure import own_message


@contextmanager
def spark_errors_in_one_line(about: str = "Spark failed") -> Iterator[None]:
    """Turn Spark's exceptions into PipelineError: with the pipeline's own message, if it raised one in a task.

    about: begins the message of all other errors.
    """
    from py4j.protocol import Py4JJavaError
    from pyspark.errors import PySparkException

    try:
        yield
    except (PySparkException, Py4JJavaError) as error:
        own = own_message(str(error))
        lines = [line for line in str(error).splitlines() if line.strip()]
        first = lines[0] if lines else type(error).__name__
        raise PipelineError(own or f"{about}: {first}") from error
