"""The Spark session, with the settings that matter for this source. What was measured: docs/decisions."""

import os
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from conveyor.pipeline.errors import PipelineError
from conveyor.pipeline.java import java_home

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SETTINGS = {
    # A nested headers column makes Arrow batches tiny at the default, and 25 times slower.
    "spark.sql.execution.arrow.maxBytesPerBatch": "2147483647",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.sql.parquet.compression.codec": "zstd",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.streaming.metricsEnabled": "false",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}
_QUIET = f"-Dlog4j2.configurationFile={Path(__file__).with_name('log4j2.properties').as_uri()}"


def require_spark() -> None:
    """Raises PipelineError if the extra is not installed."""
    missing = [name for name in ("pyspark", "pyarrow", "pandas") if find_spec(name) is None]
    if missing:
        raise PipelineError(f"{', '.join(missing)} not installed: pip install 'conveyor[spark]'")


def spark_session(app_name: str, master: str = "local[*]", **more: str) -> "SparkSession":
    """A session; it knows the data source by itself, see `pyspark_conveyor`.

    more: Spark settings, their dots written as double underscores.
    """
    require_spark()
    os.environ["JAVA_HOME"] = str(java_home())
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1" if master.startswith("local") else "0.0.0.0")  # noqa: S104
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master(master).appName(app_name)
    cores = str(os.cpu_count() or 2)
    settings = SETTINGS | {"spark.sql.shuffle.partitions": cores, "spark.driver.extraJavaOptions": _QUIET}
    settings |= {"spark.driver.memory": "2g", "spark.driver.host": "127.0.0.1"} if master.startswith("local") else {}
    for name, value in (settings | {key.replace("__", "."): value for key, value in more.items()}).items():
        builder = builder.config(name, value)
    return builder.getOrCreate()
