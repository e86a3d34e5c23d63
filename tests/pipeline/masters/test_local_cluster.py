"""Jobs on `local-cluster`: executors are processes of their own, with code that the driver has sent them."""

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.pipeline.masters.cluster_program import COUNT

MASTER = "local-cluster[2,1,1024]"


# Several Java processes start, which takes minutes on a busy machine.
@pytest.mark.sweep
def test_readers_writers_and_the_archive_run_in_executors(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.pipeline.masters.cluster_program", MASTER, str(tmp_path)]
    quick = dict(os.environ) | {"JDK_JAVA_OPTIONS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"}
    ended = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=560, env=quick)
    assert ended.returncode == 0
    found = {line["step"]: line["found"] for line in map(json.loads, ended.stdout.splitlines())}
    assert found["batch"] == found["stream"] == list(range(COUNT))
    assert found["lake"] == list(range(COUNT // 2))
    assert all("/conveyor_packages/conveyor/" in path for path in found["code"])
    spark = find_spec("pyspark")
    assert spark is not None
    assert not Path(str(spark.origin)).with_name("work").exists(), "Spark's own directory is left as it is"
