"""Sessions on a cluster: how executors get what they need, and checks that they have it.

Each check fails with one line that says what to do. Without them Spark waits for executors without an end, or fails in
the first task with a long report.
"""

import atexit
import re
import shutil
import socket
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark_conveyor.pipeline_errors import PipelineError
from pyspark_conveyor.spark.executor_packages import FOLDER, pack

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_CONNECT_S = 5.0
_EXECUTORS_S = 60.0
_POLL_S = 0.1
_ARCHIVES, _PYTHONPATH = "spark.archives", "spark.executorEnv.PYTHONPATH"
_INSIDE = re.compile(r"local(\[[^,\]]*(,\d+)?\])?")


def is_cluster(master: str) -> bool:
    """Return whether tasks run in other processes than the driver's Java: all masters but `local`, `local[...]`."""
    return _INSIDE.fullmatch(master) is None


def cluster_settings(master: str, settings: Mapping[str, str]) -> dict[str, str]:
    """Return settings for executors to find the packages, in addition to what `settings` has of archives and paths.
    Raises PipelineError if no master answers.
    """
    directory = _temporary_directory()
    archive = directory / f"{FOLDER}.zip"
    pack(archive)
    given_archives, given_path = settings.get(_ARCHIVES), settings.get(_PYTHONPATH)
    return {
        _ARCHIVES: ",".join(filter(None, (given_archives, f"{archive}#{FOLDER}"))),
        _PYTHONPATH: ":".join(filter(None, (given_path, FOLDER))),
        **_driver_host(master),
    }


def check_executors(spark: "SparkSession", master: str) -> None:
    """Wait for an executor, and try out what readers and writers import there. Raises PipelineError."""
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    context = spark.sparkContext
    java_context = context._jsc.sc()  # noqa: SLF001 - PySpark has no public way to list executors
    deadline = time.monotonic() + _EXECUTORS_S
    # The driver is in this map, too.
    while java_context.getExecutorMemoryStatus().size() < 2:
        if time.monotonic() > deadline:
            raise PipelineError(
                f"{master} started no executor within {_EXECUTORS_S:.0f} s: check that its workers run and have"
                " free cores and memory, and that they can reach this machine"
            )
        time.sleep(_POLL_S)
    tasks = max(2, context.defaultParallelism)
    try:
        found = context.parallelize(range(tasks), tasks).mapPartitions(_probe()).collect()
    except (PySparkException, Py4JError, OSError) as error:
        raise PipelineError(_explained(str(error))) from error
    for host, module, reason in found:
        raise PipelineError(
            f"the Python of the executor on {host} cannot import {module} ({reason}): install conveyor[spark] there, or"
            " set PYSPARK_PYTHON to a Python that has it, at the same path on all nodes"
        )


def _probe() -> Callable[[Iterable[int]], Iterator[tuple[str, str, str]]]:
    """Return a function that tries imports. It travels by value, because it is inside of another one."""

    def probe(numbers: Iterable[int]) -> Iterator[tuple[str, str, str]]:
        from socket import gethostname

        try:
            import confluent_kafka  # noqa: F401
            import kafka  # noqa: F401
            import numpy as np  # noqa: F401
            import pandas as pd  # noqa: F401
            import pyarrow as pa  # noqa: F401

            import pyspark_conveyor.spark.spark_source  # noqa: F401
        except ImportError as error:
            yield gethostname(), error.name or "a package", str(error)

    return probe


def _explained(report: str) -> str:
    """Return what a failed first task means."""
    versions = re.search(r"\[PYTHON_VERSION_MISMATCH\] .*: ([\d.]+\d) than .*: ([\d.]+\d)", report)
    if versions is not None:
        theirs, ours = versions.groups()
        return (
            f"the executors run Python {theirs} and this driver {ours}: set PYSPARK_PYTHON to"
            " one of the same version, at the same path on all nodes"
        )
    missing = re.search(r'Cannot run program "([^"]+)"', report)
    if missing is not None:
        return (
            f"the executors have no {missing.group(1)}: set PYSPARK_PYTHON to a Python that is at the same path on all"
            " nodes"
        )
    raised = re.findall(r"^(?:\S+ )*([\w.]+(?:Error|Exception): .+)$", report, re.MULTILINE)
    return f"the first task on an executor failed: {raised[-1] if raised else report.partition(chr(10))[0]}"


def _driver_host(master: str) -> dict[str, str]:
    """Return this machine's address as its masters see it. Raises PipelineError if none of them answers."""
    addresses = re.findall(r"(?:^spark://|,)([^,:]+):(\d+)", master)
    if not addresses:
        return {}
    for host, port in addresses:
        try:
            with socket.create_connection((host, int(port)), _CONNECT_S) as connection:
                return {"spark.driver.host": connection.getsockname()[0]}
        except OSError:
            continue
    raise PipelineError(f"no Spark master answers at {master}: check the address, and that it runs")


def _temporary_directory() -> Path:
    directory = Path(tempfile.mkdtemp(prefix="conveyor-spark-"))
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    return directory
