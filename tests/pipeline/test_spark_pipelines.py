"""The example of Spark Declarative Pipelines."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

from conveyor.testing import Broker
from tests.pipeline.pipelines import values
from tests.pipeline.topics import Sent, create_topic, produce

EXAMPLE = Path(__file__).parents[2] / "examples" / "pipelines"


def test_the_example_of_spark_pipelines_runs(tmp_path: Path) -> None:
    shutil.copytree(EXAMPLE, tmp_path / "example")
    declared = tmp_path / "example" / "spark-pipeline.yml"
    declared.write_text(declared.read_text().replace("/tmp/orders-pipeline", str(tmp_path / "storage")))
    with Broker(memory=True) as broker:
        create_topic(broker, "orders", partitions=2)
        create_topic(broker, "approvals")
        orders = [json.dumps({"id": number, "amount": 100.0 * number}).encode() for number in range(12)]
        produce(broker, "orders", [Sent(value=order, partition=number % 2) for number, order in enumerate(orders)])
        done = subprocess.run(
            [sys.executable, "run.py", "run"],
            cwd=tmp_path / "example",
            env=os.environ | {"CONVEYOR_BOOTSTRAP": broker.bootstrap_servers},
            capture_output=True,
            text=True,
            timeout=280,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        assert values(broker, "approvals") == ['{"id":10,"amount":1000.0}', '{"id":11,"amount":1100.0}']
