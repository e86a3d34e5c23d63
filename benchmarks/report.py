"""The tables on the terminal and the figures in a file."""

import json
import os
import platform
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.table import Table

from benchmarks.figures import is_met
from benchmarks.rounds import Comparison, Run

_LEFT = ("what", "flush", "unit")


def ratios(compared: Sequence[Comparison], beside: str, version: str) -> Table:
    """Conveyor beside another system."""
    titles = ("what", "flush", "Conveyor", beside, "unit", "ratio", "target", "met")
    table = _table(f"Conveyor and {beside} {version} on {os.cpu_count()} cores, load generators included", titles)
    for each in compared:
        if each.beside != beside or each.other is None or each.ratio is None:
            continue
        target = "" if each.target is None else f"{'>=' if each.kind.more_is_better else '<='} {each.target:g}"
        figures = (_number(each.conveyor), _number(each.other), each.unit, ratio_text(each.ratio))
        table.add_row(each.name, each.policy, *figures, target, _yes_or_no(each.met))
    return table


def own_targets(compared: Sequence[Comparison]) -> Table:
    """Conveyor beside what it aims at; and the rows that are in no other table."""
    table = _table(
        f"Conveyor on {os.cpu_count()} cores, load generators included",
        ("what", "flush", "Conveyor", "unit", "target", "met"),
    )
    for each in compared:
        if each.own_target is not None:
            met = is_met(each.kind, each.conveyor, each.own_target)
            target = f"{'>=' if each.kind.more_is_better else '<='} {_target(each.own_target)}"
            table.add_row(each.name, each.policy, _number(each.conveyor), each.unit, target, _yes_or_no(met))
        elif each.ratio is None:
            table.add_row(each.name, each.policy, _number(each.conveyor), each.unit, "", "")
    return table


def write_json(path: Path, settings: dict[str, Any], runs: Sequence[Run], compared: Sequence[Comparison]) -> None:
    """Every single run, and the medians."""
    machine = {"cores": os.cpu_count(), "python": platform.python_version(), "system": platform.platform()}
    report = {
        "machine": machine,
        "settings": settings,
        "rows": [_as_row(each) for each in compared],
        "runs": [
            {
                "round": run.round,
                "system": run.system,
                "policy": run.policy,
                "name": run.figure.name,
                "value": run.figure.value,
                "unit": run.figure.unit,
            }
            for run in runs
        ],
    }
    path.write_text(json.dumps(report, indent=2) + "\n")


def ratio_text(ratio: float) -> str:
    return f"{ratio:.2f}" if ratio >= 0.1 else f"{ratio:.3f}"


def _as_row(each: Comparison) -> dict[str, Any]:
    fields = ("name", "policy", "unit", "conveyor", "beside", "other", "ratio", "target", "met", "own_target")
    return {name: getattr(each, name) for name in fields} | {"more_is_better": each.kind.more_is_better}


def _table(title: str, columns: Sequence[str]) -> Table:
    table = Table(title=title)
    for column in columns:
        table.add_column(column, justify="left" if column in _LEFT else "right")
    return table


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def _target(value: float) -> str:
    return f"{value:,.0f}" if value >= 1 else f"{value:g}"


def _yes_or_no(met: bool | None) -> str:
    return "" if met is None else "yes" if met else "NO"
