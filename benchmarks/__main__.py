"""`python -m benchmarks`: measure this machine, print a table, keep the figures as JSON.

The load generators run on the same cores as the broker; figures of different runs or machines do not compare. What to
compare is in one run: policy with policy, a figure with its target, the broker's CPU a request.
"""

import argparse
import json
import os
import platform
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks import rows
from benchmarks.rows import Row

_POLICIES = ("ack", "os")
_TABLE_WIDTH = 110


def main() -> None:
    """See the module's docstring."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="Measure Conveyor on this machine.")
    parser.add_argument("--scale", type=float, default=1.0, help="how much load, 1.0 takes about two minutes")
    parser.add_argument("--json", type=Path, default=Path("bench.json"), help="where the figures go (bench.json)")
    arguments = parser.parse_args()
    console = Console()
    console.width = max(console.width, _TABLE_WIDTH)
    measured = []
    with console.status("starting") as status:
        for row in _measure(arguments.scale):
            measured.append(row)
            status.update(f"{row.name}: {row.value:,.1f} {row.unit}")
    console.print(_table(measured))
    machine = {"cores": os.cpu_count(), "python": platform.python_version(), "system": platform.platform()}
    arguments.json.write_text(json.dumps({"machine": machine, "rows": [asdict(row) for row in measured]}, indent=2))
    console.print(f"The figures are in {arguments.json}.")


def _measure(scale: float) -> Iterator[Row]:
    yield from rows.start_and_memory(scale)
    for measure in (rows.throughput, rows.requests, rows.latency):
        for policy in _POLICIES:
            yield from measure(policy, scale)


def _table(measured: list[Row]) -> Table:
    table = Table(title=f"Conveyor on {os.cpu_count()} cores, load generators included")
    for title in ("what", "flush.policy", "measured", "unit", "target", "target met"):
        table.add_column(title, justify="left" if title in ("what", "flush.policy", "unit") else "right")
    for row in measured:
        target = "" if row.target is None else f"{row.target:,.0f}"
        met = "" if row.ratio is None else f"{row.ratio:.2f}x"
        digits = 0 if row.value >= 1000 else 1
        table.add_row(row.name, row.policy, f"{row.value:,.{digits}f}", row.unit, target, met)
    return table


if __name__ == "__main__":
    main()
