"""`python -m benchmarks.spark_settings`: what Spark settings and options of the source do, as ratios to their defaults.

Default and other value take turns in one run, so that what else the machine does hits both alike; the ratio is the
median over the turns, above 1 is faster than the default. What was chosen, and why, is in docs/pipeline.md.
"""

import gc
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any
from unittest.mock import patch
from uuid import uuid4

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from rich.console import Console
from rich.table import Table

from pyspark_conveyor.source import offset_ranges, record_fetch, rows
from pyspark_conveyor.source.batch_reader import BatchReader
from pyspark_conveyor.source.source_options import SourceOptions
from pyspark_conveyor.spark.session import spark_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

TURNS = 3
TOPICS = {"two": (2, 100_000), "one": (1, 300_000), "few": (2, 10_000)}
"""Partitions and records of each topic."""
_DAY_MS = 86_400_000
_START_MS = 1_700_000_000_000
_ARROW = "spark.sql.execution.arrow."
_OF_SMALL_BATCHES = (
    "spark.sql.adaptive.streaming.stateless.enabled",
    "spark.sql.streaming.checkpoint.fileChecksum.enabled",
)
_CODEC = "spark.sql.parquet.compression.codec"


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Work that is done with a setting's default, and with other values. run: does it once with a value."""

    work: str
    setting: str
    default: str
    others: tuple[str, ...]
    run: Callable[[str], None]
    turns: int = TURNS


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """How often as fast a value is as the default: the median, and the least and most of all turns."""

    comparison: Comparison
    value: str
    median: float
    least: float
    most: float


class Bench:
    """A session, a broker with filled topics, and the work that is measured."""

    def __init__(self, spark: "SparkSession", servers: str, directory: Path) -> None:
        self._spark = spark
        self._servers = servers
        self._directory = directory
        self._parquet = directory / "parquet"
        self._cached = self.read("two").cache()
        self.discard(self._cached)

    def comparisons(self) -> Iterator[Comparison]:
        """Everything that is compared."""
        yield from self._source()
        yield from self._reader()
        yield from self._arrow()
        yield from self._batches()
        yield from self._streams()

    def read(self, topic: str, **options: str) -> "DataFrame":
        given = {"bootstrap.servers": self._servers, "topic": topic, **options}
        return self._spark.read.format("conveyor").options(**given).load()

    @staticmethod
    def discard(table: "DataFrame") -> None:
        table.write.format("noop").mode("overwrite").save()

    def parquet_bytes(self, codec: str) -> int:
        """The size of all files, written with a codec."""
        self._with(_CODEC, self._write)(codec)
        return sum(each.stat().st_size for each in self._parquet.glob("*.parquet"))

    def _source(self) -> Iterator[Comparison]:
        for topic, option, default, *others in (
            ("one", "maxRecordsPerPartition", "1000000", "200000", "20000"),
            ("two", "includeHeaders", "true", "false"),
        ):
            yield Comparison(
                work=f"topic, {TOPICS[topic][0]} partition(s) -> nothing",
                setting=option,
                default=default,
                others=tuple(others),
                run=self._reading(topic, option),
            )

    def _reading(self, topic: str, option: str) -> Callable[[str], None]:
        return lambda value: self.discard(self.read(topic, **{option: value}))

    def _reader(self) -> Iterator[Comparison]:
        work = "topic -> Arrow, no Spark"
        yield Comparison(
            work=work,
            setting="records of an Arrow batch",
            default="20000",
            others=("2000", "100000"),
            run=lambda records: self._read_with(rows, "_BATCH_ROWS", int(records)),
        )
        yield Comparison(
            work=work,
            setting="MiB of a fetch",
            default="8",
            others=("2", "32"),
            run=lambda size: self._read_with(record_fetch, "_MOST_BYTES", int(size) << 20),
        )
        yield Comparison(
            work=work, setting="garbage collector of the reader", default="on", others=("paused",), run=self._collected
        )

    def _read_with(self, module: ModuleType, name: str, value: int) -> None:
        with patch.object(module, name, value):
            self._read_here()

    def _collected(self, collector: str) -> None:
        gc.collect()
        with patch.object(offset_ranges, "_collector_paused", nullcontext) if collector == "on" else nullcontext():
            self._read_here()

    def _read_here(self) -> None:
        reader = BatchReader(SourceOptions(bootstrap_servers=self._servers, topics=("two",)))
        found = sum(batch.num_rows for part in reader.partitions() for batch in reader.read(part))
        assert found == TOPICS["two"][1]

    def _arrow(self) -> Iterator[Comparison]:
        to_python = "memory -> Python -> nothing"
        plain = self._cached.selectExpr("*")
        for setting, default, *others in (
            (_ARROW + "maxBytesPerBatch", "64m", "256m", "2147483647"),
            (_ARROW + "maxRecordsPerBatch", "10000", "2000", "50000"),
        ):
            run = self._with(setting, lambda: self.discard(plain.mapInArrow(_unchanged, plain.schema)))
            yield Comparison(work=to_python, setting=setting, default=default, others=tuple(others), run=run)

    def _batches(self) -> Iterator[Comparison]:
        yield Comparison(
            work="memory -> Parquet",
            setting=_CODEC,
            default="snappy",
            others=("zstd",),
            run=self._with(_CODEC, self._write),
        )
        work = "memory -> count by minute"
        cores = str(self._spark.sparkContext.defaultParallelism)
        partitions, adaptive = "spark.sql.shuffle.partitions", "spark.sql.adaptive.enabled"
        run = self._with(partitions, self._aggregate)
        yield Comparison(work=work, setting=partitions, default="200", others=(cores,), run=run)
        run = self._with(adaptive, self._aggregate)
        yield Comparison(work=work, setting=adaptive, default="true", others=("false",), run=run)

    def _write(self) -> None:
        self._cached.write.mode("overwrite").parquet(str(self._parquet))

    def _aggregate(self) -> None:
        from pyspark.sql import functions as F  # noqa: N812 - Spark's own habit

        self.discard(self._cached.groupBy(F.window("timestamp", "1 minute")).count())

    def _streams(self) -> Iterator[Comparison]:
        cores = str(self._spark.sparkContext.defaultParallelism)
        yield Comparison(
            work="stream -> count by hour, with state",
            setting="spark.sql.shuffle.partitions",
            default="200",
            others=(cores,),
            run=self._with("spark.sql.shuffle.partitions", self._count_stream),
            turns=1,
        )
        for setting in _OF_SMALL_BATCHES:
            yield Comparison(
                work="stream -> nothing, 5 small batches",
                setting=setting,
                default="true",
                others=("false",),
                run=self._with(setting, lambda: self._drain(self._stream(2_000))),
            )

    def _stream(self, records: int) -> "DataFrame":
        reader = self._spark.readStream.format("conveyor").option("bootstrap.servers", self._servers)
        reader = reader.option("topic", "few").option("startingOffsets", "earliest")
        return reader.option("maxOffsetsPerTrigger", str(records)).load()

    def _count_stream(self) -> None:
        from pyspark.sql import functions as F  # noqa: N812 - Spark's own habit

        rows = self._stream(1_000_000).withWatermark("timestamp", "1 day")
        self._drain(rows.groupBy(F.window("timestamp", "1 hour")).count(), "update")

    def _drain(self, rows: "DataFrame", mode: str = "append") -> None:
        writer = rows.writeStream.format("noop").outputMode(mode).trigger(availableNow=True)
        writer.option("checkpointLocation", str(self._directory / uuid4().hex)).start().awaitTermination()

    def _with(self, setting: str, work: Callable[[], Any]) -> Callable[[str], None]:
        """The work, done with a value of a setting of the session."""

        def run(value: str) -> None:
            before = self._spark.conf.get(setting, None)
            self._spark.conf.set(setting, value)
            try:
                work()
            finally:
                if before is None:
                    self._spark.conf.unset(setting)
                else:
                    self._spark.conf.set(setting, before)

        return run


def main() -> None:
    """See the module's docstring."""
    from pyspark.sql import SparkSession

    console = Console()
    console.width = max(console.width, 150)
    with (
        tempfile.TemporaryDirectory(prefix="conveyor-bench-") as directory,
        running_broker(Path(directory) / "broker") as servers,
        console.status("filling topics") as status,
    ):
        fill(servers)
        status.update("starting Spark")
        spark = spark_session("conveyor benchmark")
        bench = Bench(spark, servers, Path(directory))
        findings = []
        for comparison in (*bench.comparisons(), _starting()):
            status.update(f"{comparison.setting}: {comparison.work}")
            sizes = comparison.setting == _CODEC
            findings += compare(comparison)
            if sizes:
                volumes = {codec: bench.parquet_bytes(codec) for codec in (comparison.default, *comparison.others)}
        SparkSession.active().stop()
    console.print(_table(findings))
    console.print("Size of the Parquet files: " + ", ".join(f"{k} {v / 1e6:.1f} MB" for k, v in volumes.items()))


@contextmanager
def running_broker(data_dir: Path, *options: str) -> Iterator[str]:
    """A broker in a process of its own; its address."""
    command = [sys.executable, "-m", "conveyor.cli.main", "serve", "--data-dir", str(data_dir)]
    command += ["--kafka", "127.0.0.1:0", "--http", "127.0.0.1:0", "--log-level", "warning", *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield dict(word.partition("=")[::2] for word in process.stdout.readline().split()[1:])["kafka"]
        finally:
            process.terminate()


def fill(servers: str) -> None:
    """Records of 100 bytes, half of them alike from one to the next, with two headers, over one day."""
    admin = AdminClient({"bootstrap.servers": servers})
    producer = Producer(
        {"bootstrap.servers": servers, "linger.ms": 20, "queue.buffering.max.messages": 1_000_000, "log_level": 4}
    )
    for topic, (partitions, count) in TOPICS.items():
        # The records are of 2023, which the usual retention would delete in the middle of it all.
        wanted = NewTopic(topic, num_partitions=partitions, config={"retention.ms": "-1"})
        admin.create_topics([wanted])[topic].result(60)
        for number in range(count):
            producer.produce(
                topic,
                value=(b'{"number": %d, "city": "%d", "more": "' % (number, number * 7919 % 1000)).ljust(100, b"-"),
                key=b"key-%d" % number,
                headers=[("sequence", b"%d" % number), ("source", b"bench")],
                partition=number % partitions,
                timestamp=_START_MS + number * _DAY_MS // count,
            )
            if number % 1000 == 0:
                producer.poll(0)
        assert producer.flush(120) == 0


def compare(comparison: Comparison) -> list[Finding]:
    """Let default and other values take turns, after one turn that does not count."""
    values = (comparison.default, *comparison.others)
    seconds: dict[str, list[float]] = {value: [] for value in values}
    for _ in range(comparison.turns + 1):
        for value in values:
            started = time.perf_counter()
            comparison.run(value)
            seconds[value].append(time.perf_counter() - started)
    findings = []
    for value in comparison.others:
        turns = zip(seconds[comparison.default][1:], seconds[value][1:], strict=True)
        ratios = [default / other for default, other in turns]
        findings.append(
            Finding(
                comparison=comparison,
                value=value,
                median=statistics.median(ratios),
                least=min(ratios),
                most=max(ratios),
            )
        )
    return findings


def _starting() -> Comparison:
    """Starting a session, in a Java that runs already: what a setting costs that is fixed then."""
    from pyspark.sql import SparkSession

    def start(interface: str) -> None:
        active = SparkSession.getActiveSession()
        if active is not None:
            active.stop()
        spark_session("conveyor benchmark", spark__ui__enabled=interface).range(10).count()

    return Comparison(
        work="start a session, count to ten", setting="spark.ui.enabled", default="true", others=("false",), run=start
    )


def _unchanged(batches: Iterator[Any]) -> Iterator[Any]:
    yield from batches


def _table(findings: list[Finding]) -> Table:
    table = Table(title="Times as fast as with the default", title_justify="left")
    for title in ("work", "setting", "default", "tried", "ratio", "of all turns"):
        table.add_column(title, justify="right" if title in ("ratio", "of all turns") else "left")
    for each in findings:
        done = each.comparison
        spread = f"{each.least:.2f} - {each.most:.2f}"
        table.add_row(done.work, done.setting, done.default, each.value, f"{each.median:.2f}", spread)
    return table


if __name__ == "__main__":
    main()
