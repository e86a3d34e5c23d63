"""The Spark session, with settings for this source. Measurements: docs/pipeline.md."""

import os
import re
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark_conveyor.pipeline_errors import PipelineError
from pyspark_conveyor.spark.cluster import check_executors, cluster_settings, is_cluster
from pyspark_conveyor.spark.java import java_home
from pyspark_conveyor.spark.spark_home import own_spark_home

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SETTINGS = {
    # Files a third of the size of snappy's, written in about the same time.
    "spark.sql.parquet.compression.codec": "zstd",
    # A lake's days are UTC days, wherever a job runs.
    "spark.sql.session.timeZone": "UTC",
    # For the option `filterPushdown`: Spark refuses a reader that takes filters where this is off.
    "spark.sql.python.filterPushdown.enabled": "true",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}
_QUIET = f"-Dlog4j2.configurationFile={Path(__file__).with_name('log4j2.properties').as_uri()}"


def require_spark() -> None:
    """Raise PipelineError if the extra `spark` is not installed."""
    missing = [name for name in ("pyspark", "pyarrow", "pandas") if find_spec(name) is None]
    if missing:
        raise PipelineError(f"{', '.join(missing)} not installed: pip install 'conveyor[spark]'")


def spark_session(app_name: str, master: str = "local[*]", **more: str) -> "SparkSession":
    """Return a session that knows the data source, through `pyspark_conveyor`.

    more: Spark settings, with dots written as double underscores. Executors of a cluster get Conveyor and its packages
    from the driver. Raises PipelineError, on a cluster also if an executor lacks something.
    """
    require_spark()
    settings = SETTINGS | {"spark.driver.extraJavaOptions": _QUIET} | _local_settings(master)
    settings |= {key.replace("__", "."): value for key, value in more.items()}
    os.environ["JAVA_HOME"] = str(java_home())
    if is_cluster(master) and not _has_context():
        return _on_cluster(app_name, master, settings)
    if not is_cluster(master):
        os.environ["PYSPARK_PYTHON"] = sys.executable
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        os.environ.setdefault("SPARK_HOME", str(own_spark_home()))
    return _started(app_name, master, settings)


def _on_cluster(app_name: str, master: str, settings: dict[str, str]) -> "SparkSession":
    """Start a session whose executors have what the data source needs. PYSPARK_PYTHON, if it is set, names their
    Python.
    """
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    if master.startswith("local-cluster"):
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        os.environ.setdefault("SPARK_HOME", str(own_spark_home()))
    spark = _started(app_name, master, settings | cluster_settings(master, settings))
    try:
        check_executors(spark, master)
    except PipelineError:
        spark.stop()
        raise
    return spark


def _has_context() -> bool:
    from pyspark import SparkContext

    return SparkContext._active_spark_context is not None  # noqa: SLF001 - public ways know only this thread's sessions


def _started(app_name: str, master: str, settings: dict[str, str]) -> "SparkSession":
    from pyspark.errors import PySparkRuntimeError
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master(master).appName(app_name)
    for name, value in settings.items():
        builder = builder.config(name, value)
    try:
        return builder.getOrCreate()
    except PySparkRuntimeError as error:
        raise PipelineError(_start_failure(error, settings)) from error


def _start_failure(error: Exception, settings: dict[str, str]) -> str:
    packages = settings.get("spark.jars.packages")
    if packages is None:
        return f"Spark did not start: {str(error).partition(chr(10))[0]}"
    return f"Spark did not start: {packages} may not be at Maven Central; name a directory with the jars instead"


def _local_settings(master: str) -> dict[str, str]:
    """Return settings for a local master. A cluster's number of cores, and so a suitable number of partitions, is
    unknown.
    """
    local_master = re.fullmatch(r"local(?:\[(\d+|\*)(?:,\d+)?\])?", master)
    if local_master is None:
        return {}
    cores = (os.cpu_count() or 2) if local_master.group(1) == "*" else int(local_master.group(1) or 1)
    return {
        # Checkpoints on local disks. Spark's own choice starts 16 `readlink` processes for each batch of a stream.
        "spark.sql.streaming.checkpointFileManagerClass": (
            "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
        ),
        # Each partition is a task, and in a stateful stream a store with its own files: 200 would be slow.
        "spark.sql.shuffle.partitions": str(cores),
        "spark.driver.memory": "2g",
        "spark.driver.host": "127.0.0.1",
    }
