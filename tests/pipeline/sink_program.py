"""A stream into the faulty sink, as a process of its own, whose JVM may be killed.

python -m tests.pipeline.sink_program <bootstrap> <source> <target> <checkpoint> <step> <latch>
"""

import sys

from conveyor.pipeline.spark.session import spark_session
from tests.pipeline.faulty_sink import FaultySink
from tests.pipeline.sink_streams import SinkStream


def main(bootstrap: str, source: str, target: str, checkpoint: str, step: str, latch: str) -> None:
    spark = spark_session("faulty sink", "local[2]")
    spark.dataSource.register(FaultySink)
    SinkStream(spark, bootstrap, source, target, checkpoint).run("faulty", step=step, latch=latch)


if __name__ == "__main__":
    main(*sys.argv[1:])
