"""What is measured: rates of both connectors, and figures of Conveyor's alone."""

import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from uuid import uuid4

from benchmarks.spark.connectors import Connector, discard
from benchmarks.spark.processes import peak_worker_bytes
from benchmarks.spark.topics import Load, create, fill

_MEBIBYTE = 1 << 20
_STREAM_BATCH = 500_000
_SMALL_BATCHES = 30
_SMALL_BATCH = 10
_HEADERS = 2

Measure = Callable[[Connector], float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A figure of each connector.

    target: of Conveyor's figure relative to the other's. own_target: of Conveyor's figure. loads: the topics to fill
    first. records: how many one measurement moves, if its CPU time is of interest. alone: only Conveyor is measured.
    """

    name: str
    unit: str
    measure: Measure
    loads: tuple[Load, ...] = ()
    target: float | None = None
    own_target: float | None = None
    records: int | None = None
    more_is_better: bool = True
    alone: bool = False

    def is_met(self, figure: float, target: float) -> bool:
        return figure >= target if self.more_is_better else figure <= target


def rows(scale: float) -> dict[str, list[Row]]:
    """Every row, by the name of its group."""
    plain = Load(topic="plain", records=int(4_000_000 * scale), size=100)
    headed = Load(topic="headed", records=int(4_000_000 * scale), size=100, headers=_HEADERS)
    streamed = Load(topic="streamed", records=int(2_000_000 * scale), size=96)
    small = Load(topic="small", records=_SMALL_BATCHES * _SMALL_BATCH, size=100)
    large = Load(topic="large", records=int(100_000 * scale), size=10_000)
    written = int(1_000_000 * scale)
    return {
        "read": [
            _reading("batch read, no headers, rows/s", plain, headers=False),
            _reading(f"batch read, {_HEADERS} headers, rows/s", headed, headers=True),
            _reading(f"batch read, {_HEADERS} headers left out, rows/s", headed, headers=False, target=None),
        ],
        "segments": [
            _reading("read of segment files, no headers, rows/s", plain, headers=False, target=2.0, from_files=True),
            _reading(f"the same, {_HEADERS} headers, rows/s", headed, headers=True, target=2.0, from_files=True),
        ],
        "stream": [
            Row(
                name="stream to zstd Parquet, rows/s",
                unit="rows/s",
                measure=lambda connector: _rate(
                    streamed.records, lambda: connector.to_parquet("streamed", _STREAM_BATCH)
                ),
                loads=(streamed,),
                target=1.1,
                records=streamed.records,
            )
        ],
        "write": [
            Row(
                name="write, values of 100 B, rows/s",
                unit="rows/s",
                measure=lambda connector: _writing(connector, written),
                target=1.0,
                records=written,
            )
        ],
        "floor": [
            Row(
                name=f"micro-batch of {_SMALL_BATCH} records, ms",
                unit="ms",
                measure=_floor_ms,
                loads=(small,),
                own_target=200,
                more_is_better=False,
            )
        ],
        "memory": list(_memory(plain, large)),
    }


def _reading(name: str, load: Load, *, headers: bool, target: float | None = 1.3, from_files: bool = False) -> Row:
    def measure(connector: Connector) -> float:
        read = connector.read_files if from_files else connector.read
        return _rate(load.records, lambda: discard(read(load.topic, headers=headers)))

    return Row(name=name, unit="rows/s", measure=measure, loads=(load,), target=target, records=load.records)


def _memory(*loads: Load) -> Iterator[Row]:
    for load in loads:
        amount = f"{load.records:,} x {load.size:,} B"
        yield _peak(f"a reader's memory, batch of {amount}, MiB", load, _read_all)
        yield _peak(f"a reader's memory, one micro-batch of {amount}, MiB", load, _stream_all)


def _peak(name: str, load: Load, work: Callable[[Connector, str], object]) -> Row:
    return Row(
        name=name,
        unit="MiB",
        measure=lambda connector: peak_worker_bytes(lambda: work(connector, load.topic)) / _MEBIBYTE,
        loads=(load,),
        own_target=512,
        more_is_better=False,
        alone=True,
    )


def _read_all(connector: Connector, topic: str) -> None:
    discard(connector.read(topic, headers=True))


def _stream_all(connector: Connector, topic: str) -> None:
    connector.in_batches(topic, 1 << 40)


def _rate(records: int, work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return records / (time.perf_counter() - started)


def _writing(connector: Connector, records: int) -> float:
    """Write rows that exist in memory already, to a topic of its own."""
    topic = f"written-{uuid4().hex[:8]}"
    create(connector.servers, topic)
    spark = connector.spark
    table = spark.range(records, numPartitions=2).selectExpr("rpad(CAST(id AS STRING), 100, '-') AS value")
    return _rate(records, lambda: connector.write(table, topic))


def _floor_ms(connector: Connector) -> float:
    """The median of a micro-batch with next to nothing in it."""
    query = connector.in_batches("small", _SMALL_BATCH)
    batches = [batch["durationMs"]["triggerExecution"] for batch in query.recentProgress if batch["numInputRows"]]
    assert len(batches) >= _SMALL_BATCHES // 2, len(batches)
    return float(statistics.median(batches))


def prepare(servers: str, chosen: list[Row]) -> None:
    """Fill the topics of rows, each once."""
    for load in dict.fromkeys(load for row in chosen for load in row.loads):
        fill(servers, load)
