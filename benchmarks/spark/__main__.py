"""`python -m benchmarks.spark`: `format("conveyor")` beside Spark's own connector for Kafka, `format("kafka")`.

Both read the same topics of one Conveyor broker, in one session of local[2], in alternating turns after one turn that
does not count. A ratio is Conveyor's figure relative to the other's in the same turn: the median, and the range of all
turns. CPU times are those of Java, Python and the broker together, and depend less on what else the machine does.
"""

import argparse
import json
import statistics
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.kafka.release import NotFetchedError, fetch_spark_connector
from benchmarks.spark.connectors import Connector
from benchmarks.spark.processes import cpu_seconds
from benchmarks.spark.rows import Row, prepare, rows
from benchmarks.spark_settings import running_broker
from pyspark_conveyor.spark.session import spark_session

_WIDTH = 120


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """The figures of all turns that count, by connector. cpu_us: of all processes, per record; empty where it does not
    tell anything.
    """

    row: Row
    figures: dict[str, list[float]]
    cpu_us: dict[str, list[float]]

    def median(self, name: str) -> float | None:
        return statistics.median(self.figures[name]) if self.figures.get(name) else None

    def median_cpu_us(self, name: str) -> float | None:
        return statistics.median(self.cpu_us[name]) if self.cpu_us.get(name) else None

    def ratios(self) -> list[float]:
        """Conveyor's figure relative to the other's, of each turn; empty without the other."""
        return [
            own / other for own, other in zip(self.figures["conveyor"], self.figures.get("kafka", ()), strict=False)
        ]

    def verdict(self) -> str:
        """The target, and whether it is met."""
        own, ratios = self.median("conveyor"), self.ratios()
        if own is not None and self.row.own_target is not None:
            met = self.row.is_met(own, self.row.own_target)
            return f"{'>=' if self.row.more_is_better else '<='} {self.row.own_target:g}, {'met' if met else 'missed'}"
        if self.row.target is not None and ratios:
            met = self.row.is_met(statistics.median(ratios), self.row.target)
            return f"ratio >= {self.row.target:g}, {'met' if met else 'missed'}"
        return ""


def main() -> None:
    """See the module's docstring."""
    arguments = _parser().parse_args()
    console = Console()
    console.width = max(console.width, _WIDTH)
    groups = rows(arguments.scale)
    chosen = [row for name in arguments.only or groups for row in groups[name]]
    jars = _jars(console)
    measured: list[Measured] = []
    with (
        tempfile.TemporaryDirectory(prefix="conveyor-bench-") as directory,
        running_broker(Path(directory) / "broker") as servers,
        console.status("filling topics") as status,
    ):
        prepare(servers, chosen)
        status.update("starting Spark")
        more = {"spark__jars": jars} if jars else {}
        spark = spark_session("conveyor benchmark", "local[2]", **more)
        names = ("conveyor", "kafka") if jars else ("conveyor",)
        connectors = [
            Connector(
                name=name,
                spark=spark,
                servers=servers,
                directory=Path(directory) / "streams",
                data_dir=Path(directory) / "broker",
            )
            for name in names
        ]
        try:
            for row in chosen:
                status.update(row.name)
                measured.append(_measure(row, connectors, arguments.turns))
                console.print(_line(measured[-1]), markup=False, highlight=False)
        finally:
            spark.stop()
            _write(arguments.json, measured)
    console.print(_table(measured))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.spark", description="Measure the Spark connectors.")
    parser.add_argument("--turns", type=int, default=3, help="how many turns count (3)")
    parser.add_argument("--scale", type=float, default=1.0, help="how many records; less favours neither Java nor us")
    parser.add_argument("--only", nargs="+", choices=sorted(rows(1.0)), help="groups of rows")
    parser.add_argument("--json", type=Path, default=Path("bench-spark.json"), help="where the figures go")
    return parser


def _jars(console: Console) -> str | None:
    """The jars of Spark's connector for Kafka; None, and a line that says why, if they are not to be had."""
    try:
        return ",".join(map(str, sorted(fetch_spark_connector().glob("*.jar"))))
    except NotFetchedError as reason:
        console.print(f"Spark's Kafka connector cannot be fetched, so ours is measured alone: {reason}", markup=False)
        return None


def _measure(row: Row, connectors: list[Connector], turns: int) -> Measured:
    """Let the connectors take turns; every second turn begins with the other one."""
    taking_part = connectors[:1] if row.alone else connectors
    done = Measured(
        row=row, figures={each.name: [] for each in taking_part}, cpu_us={each.name: [] for each in taking_part}
    )
    for turn in range(turns + 1):
        for connector in _order(taking_part, turn):
            before = cpu_seconds()
            figure = row.measure(connector)
            if turn:
                done.figures[connector.name].append(figure)
                if row.records:
                    done.cpu_us[connector.name].append((cpu_seconds() - before) * 1e6 / row.records)
    return done


def _order(connectors: list[Connector], turn: int) -> Iterator[Connector]:
    return iter(connectors) if turn % 2 else reversed(connectors)


def _line(done: Measured) -> str:
    figures = "; ".join(
        f"{name} {', '.join(f'{figure:,.0f}' for figure in figures)}" for name, figures in done.figures.items()
    )
    costs = "; ".join(f"{name} {done.median_cpu_us(name):,.2f}" for name in done.cpu_us if done.cpu_us[name])
    return f"{done.row.name}: {figures}" + (f"; CPU, us a record: {costs}" if costs else "")


def _table(measured: list[Measured]) -> Table:
    table = Table(title="Conveyor's connector beside Spark's own for Kafka", title_justify="left")
    for title in ("measurement", "conveyor", "kafka", "ratio", "range of turns", "CPU ratio", "target"):
        table.add_column(title, justify="left" if title in ("measurement", "target") else "right")
    for done in measured:
        ratios = done.ratios()
        own_cpu, other_cpu = done.median_cpu_us("conveyor"), done.median_cpu_us("kafka")
        table.add_row(
            done.row.name,
            *("" if (median := done.median(name)) is None else f"{median:,.0f}" for name in ("conveyor", "kafka")),
            f"{statistics.median(ratios):.2f}" if ratios else "",
            f"{min(ratios):.2f} to {max(ratios):.2f}" if ratios else "",
            f"{own_cpu / other_cpu:.2f}" if own_cpu and other_cpu else "",
            done.verdict(),
        )
    return table


def _write(path: Path, measured: list[Measured]) -> None:
    document = [
        {"name": done.row.name, "figures": done.figures, "ratios": done.ratios(), "cpu_us": done.cpu_us}
        for done in measured
    ]
    path.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
