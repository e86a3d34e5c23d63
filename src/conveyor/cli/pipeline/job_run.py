"""Runs a job in a command: starts its Spark session, prints a failure in one line, and ends it at Ctrl-C."""

import logging
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from conveyor.cli.terminal.client_security import ClientSecurity, client_security
from conveyor.cli.terminal.kafka_client import ClientError, refusal_at
from pyspark_conveyor.spark.connectors import Connector

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from pyspark_conveyor.brokers.brokers import Brokers

_SILENCE_S = 5.0


def job_brokers(bootstrap: str, client_config: str = "") -> "Brokers":
    """Return the brokers of a job, with what a file says of clients, or else that of `--client-config`.

    Raises ConveyorError.
    """
    from pyspark_conveyor.brokers.brokers import Brokers

    security = ClientSecurity(client_config) if client_config else client_security()
    return Brokers(bootstrap_servers=bootstrap, client=security.settings)


def job_session(app_name: str, master: str, connector: Connector, jars: Path | None) -> "Callable[[], SparkSession]":
    """Return what starts a job's session. Raises PipelineError if Spark, or a jar in the directory, is missing."""
    from pyspark_conveyor.spark.connectors import connector_settings
    from pyspark_conveyor.spark.session import require_spark, spark_session

    require_spark()
    settings = connector_settings(connector, jars)

    def start() -> "SparkSession":
        _silence_python()
        with _late_interrupt():
            return spark_session(app_name, master, **settings)

    return start


@contextmanager
def job_errors() -> Iterator[None]:
    """Turn the failures of a job into ClientError. After a KeyboardInterrupt, Java prints no more errors."""
    from pyspark_conveyor.brokers.raw_client import ConnectionFailedError
    from pyspark_conveyor.pipeline_errors import PipelineError
    from pyspark_conveyor.spark.query_failure import failure_line

    try:
        yield
    except KeyboardInterrupt:
        # The interrupted call has left the connection to Java of this thread in the middle of an answer.
        silencer = threading.Thread(target=_silence_java, daemon=True)
        silencer.start()
        silencer.join(_SILENCE_S)
        raise
    except ConnectionFailedError as error:
        raise ClientError(refusal_at(error.bootstrap_servers) or str(error)) from error
    except PipelineError as error:
        raise ClientError(str(error)) from error
    except _spark_errors() as error:
        raise ClientError(failure_line(error)) from error


def _spark_errors() -> tuple[type[Exception], ...]:
    """Return the exceptions of Spark and of the connection to it; none if it was not started."""
    if "pyspark" not in sys.modules:
        return ()
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    return PySparkException, Py4JError


def _silence_python() -> None:
    """Let Spark's Python log no errors, which the command reports in one line. A library must not do this."""
    from pyspark.logger import PySparkLogger

    logging.getLogger().addHandler(logging.NullHandler())  # py4j logs the calls that Ctrl-C interrupts.
    for context in ("SQL", "DataFrame"):  # PySpark logs the stack trace of a query that cannot work.
        PySparkLogger.getLogger(f"{context}QueryContextLogger").setLevel(logging.CRITICAL)


def _silence_java() -> None:
    """Close the standard error of Java, if it runs: a query that still runs when Java ends prints a long one there."""
    if "pyspark" not in sys.modules:
        return
    from py4j.protocol import Py4JError
    from pyspark import SparkContext

    gateway = SparkContext._gateway  # noqa: SLF001
    if gateway is not None:
        with suppress(Py4JError, OSError):
            java = gateway.jvm.java
            java.lang.System.setErr(java.io.PrintStream(java.io.OutputStream.nullOutputStream()))


@contextmanager
def _late_interrupt() -> Iterator[None]:
    """Let a first Ctrl-C take effect at the end of the block, and a second one at once.

    Spark's Java reports a long error if Python ends while it starts. The block also undoes the handler that PySpark
    installs: it calls Java while the interrupted call is in progress, which fails with a long error, too. Spark's Java
    ends with this process.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGINT)
    interrupts: list[int] = []

    def handle(number: int, frame: FrameType | None) -> None:
        interrupts.append(number)
        if len(interrupts) > 1:
            raise KeyboardInterrupt
        print("Spark is starting, and the job ends then: Ctrl-C again ends it at once", file=sys.stderr)

    signal.signal(signal.SIGINT, handle)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if interrupts:
        raise KeyboardInterrupt
