"""A machine under load: the Python process of a source does not connect in time, and the job starts its query again."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from conveyor.testing import Broker
from tests.pipeline.topics import create_topic, numbered, produce
from tests.sweep import part_of

MASTER = "local-cluster[1,1,1024]"
"""On it, PYSPARK_PYTHON chooses the Python that Spark's Java starts."""

PYTHON = """#!/bin/sh
case "$*" in
    *python_streaming_source_runner*) mkdir {latch} 2>/dev/null && exit;;
esac
exec {python} "$@"
"""
PIPELINE = """
name = "late"
checkpoint = "checkpoint"
[sources.records]
topic = "{topic}"
[sinks.files]
step = "records"
table = "files"
"""


@pytest.fixture
def python(tmp_path: Path) -> Path:
    """Return a Python whose first process for a source ends before it connects."""
    path = tmp_path / "python"
    path.write_text(PYTHON.format(latch=tmp_path / "latch", python=sys.executable))
    path.chmod(0o755)
    return path


# Several Java processes start, which takes minutes on a busy machine.
@pytest.mark.parametrize("job", part_of(["archive", "run"], "run"))
def test_a_job_starts_its_query_again(broker: Broker, topic: str, python: Path, tmp_path: Path, job: str) -> None:
    create_topic(broker, topic)
    produce(broker, topic, numbered(range(10)))
    (tmp_path / "late.toml").write_text(PIPELINE.format(topic=topic))
    arguments = {"archive": ("--topic", topic, "--to", "lake"), "run": ("late.toml",)}[job]
    own = {"CONVEYOR_BOOTSTRAP": broker.bootstrap_servers, "PYSPARK_PYTHON": str(python)}
    quick = {"JDK_JAVA_OPTIONS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"}
    done = subprocess.run(
        [sys.executable, "-m", "conveyor.cli.main", "pipeline", job, *arguments, "--master", MASTER],
        env=os.environ | own | quick,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=560,
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "latch").exists()
    assert "10 records" in done.stdout
