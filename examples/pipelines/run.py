"""Runs `spark-pipelines` with the Java that Conveyor finds, on machines that may have none.

python examples/pipelines/run.py run
"""

import os
import subprocess
import sys
from pathlib import Path

from pyspark_conveyor.spark.java import java_home

environment = os.environ | {"JAVA_HOME": str(java_home()), "PYSPARK_PYTHON": sys.executable}
command = [str(Path(sys.executable).with_name("spark-pipelines")), *sys.argv[1:]]
sys.exit(subprocess.run(command, env=environment, cwd=Path(__file__).parent).returncode)
