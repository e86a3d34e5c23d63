"""docs/jobs/clusters.md on a standalone cluster: the example, and what a session says if executors lack something.

All sessions are in one process, because a new JVM costs most of a test's time.
"""

import re
import subprocess
import sys
from pathlib import Path

from conveyor.testing import Broker
from tests.pipeline.masters.standalone import WITHOUT_PACKAGES, running_standalone
from tests.pipeline.topics import create_topic, numbered, produce

PAGE = Path(__file__).parents[3] / "docs" / "jobs" / "clusters.md"
REFUSED_SESSIONS = f"""
import os
from pyspark_conveyor.pipeline_errors import PipelineError
from pyspark_conveyor.spark import cluster

os.environ["PYSPARK_PYTHON"] = "{WITHOUT_PACKAGES}"
for seconds, settings in ((60, dict()), (2, dict(spark__executor__memory="900g"))):
    cluster._EXECUTORS_S = seconds
    try:
        spark_session("refused", "spark://127.0.0.1:7077", **settings)
    except PipelineError as error:
        print(error)
"""


# Several Java processes start, which takes minutes on a busy machine.
def test_the_example_of_the_page_runs_and_what_executors_lack_is_said(broker: Broker, tmp_path: Path) -> None:
    create_topic(broker, "orders", partitions=2)
    create_topic(broker, "orders-copy", partitions=2)
    produce(broker, "orders", numbered(range(1_000), partitions=2))
    example = re.search(r"^```python\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    assert example is not None
    with running_standalone(tmp_path) as cluster:
        program = example.group(1) + REFUSED_SESSIONS
        for shown, here in (
            ("spark://127.0.0.1:7077", cluster.master),
            ("127.0.0.1:9092", broker.bootstrap_servers),
            ("/data/", f"{tmp_path}/"),
        ):
            program = program.replace(shown, here)
        command = [sys.executable, "-c", program]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=560, env=cluster.environment)
    assert ended.returncode == 0, ended.stderr
    copied, counted, lacking, waiting = ended.stdout.splitlines()
    assert (copied, counted) == ("orders 1000", "orders-copy 1000")
    assert re.fullmatch(r"the Python of the executor on \S+ cannot import \w+ \(No module .*\): install .*", lacking)
    assert waiting.startswith(f"{cluster.master} started no executor within 2 s")
