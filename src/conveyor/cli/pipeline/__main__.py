"""`python -m conveyor.cli.pipeline JOB ...`, and the program that spark-submit takes.

Under spark-submit, its master is used. docs/jobs/replay.md shows how to call it.
"""

import os
import sys

from conveyor.cli.pipeline import app
from conveyor.kernel.errors import ConveyorError

_SUBMITTED = "PYSPARK_GATEWAY_PORT"


def main() -> None:
    """Run a job. An expected failure prints one line and exits with 1."""
    arguments = sys.argv[1:]
    if _SUBMITTED in os.environ and "--master" not in arguments:
        from pyspark import SparkConf

        arguments += ["--master", SparkConf().get("spark.master", "local[*]") or "local[*]"]
    try:
        app(arguments, prog_name="conveyor pipeline")
    except ConveyorError as error:
        print(f"conveyor: {error}", file=sys.stderr)
        sys.exit(1)


if __name__ == "__main__":
    main()
