"""Running `conveyor pipeline archive`, and looking into what it made."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pyarrow.dataset as ds
from typer.testing import CliRunner

from conveyor.cli.pipeline import app
from conveyor.testing import Broker
from tests.processes import without_java_options

BATCH = 200
Place = tuple[str, int, int]


def arguments(broker: Broker, lake: Path, *topics: str) -> list[str]:
    named = [word for topic in topics for word in ("--topic", topic)]
    return ["archive", *named, "--to", str(lake), "--bootstrap", broker.bootstrap_servers, "--master", "local[2]"]


def archive(broker: Broker, lake: Path, *topics: str) -> str:
    """Run the command in this process, on the session that the test has; returns what it printed. Raises its error."""
    done = CliRunner().invoke(app, arguments(broker, lake, *topics), catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.stdout


def kill_archive(
    broker: Broker, lake: Path, topic: str, when: Callable[[], bool], number: signal.Signals = signal.SIGKILL
) -> tuple[int, str]:
    """Run the command in small batches in processes of its own, and send them all a signal once a condition holds.

    Returns the command's exit code, and what it printed as an error.
    """
    command = [sys.executable, "-m", "conveyor.cli.main", "pipeline", *arguments(broker, lake, topic)]
    process = subprocess.Popen(
        [*command, "--batch-records", str(BATCH)],
        start_new_session=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        env=without_java_options(),
        text=True,
    )
    while not when():
        with suppress(subprocess.TimeoutExpired):
            process.wait(0.01)
            raise AssertionError("the job ended before it could be killed")
    os.killpg(process.pid, number)
    _, error = process.communicate()
    return process.returncode, error


def files(lake: Path) -> list[Path]:
    return sorted(lake.glob("topic=*/day=*/part-*"))


def places(lake: Path) -> list[Place]:
    """Topic, partition and offset of every record in the files, in order, as a reader without Spark finds them."""
    found = ds.dataset(files(lake), format="parquet", partitioning="hive")
    table = found.to_table(columns=["topic", "partition", "offset"])
    return sorted(zip(*(table.column(name).to_pylist() for name in table.column_names), strict=True))


def expected(topic: str, *counts: int) -> list[Place]:
    """All places of a topic that has so many records in each partition."""
    return [(topic, partition, offset) for partition, count in enumerate(counts) for offset in range(count)]
