"""A stream into the faulty sink, as a process of its own, whose JVM may be killed.

python -m tests.pipeline.sink_program <bootstrap> <source> <target> <checkpoint> <step> <latch> <master> <victim> [<id>]
"""

import sys

from pyspark.cloudpickle import register_pickle_by_value

from pyspark_conveyor.spark.session import spark_session
from tests.pipeline import faulty_sink
from tests.pipeline.sink_streams import SinkStream


def main(
    bootstrap: str,
    source: str,
    target: str,
    checkpoint: str,
    step: str,
    latch: str,
    master: str,
    victim: str,
    stream_id: str = "",
) -> None:
    spark = spark_session("faulty sink", master)
    register_pickle_by_value(faulty_sink)  # type: ignore[no-untyped-call]  # Executors do not have the tests.
    spark.dataSource.register(faulty_sink.FaultySink)
    options = {"streamId": stream_id} if stream_id else {}
    stream = SinkStream(spark, bootstrap, source, target, checkpoint)
    stream.run("faulty", step=step, latch=latch, victim=victim, **options)


if __name__ == "__main__":
    main(*sys.argv[1:])
