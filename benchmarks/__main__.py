"""`python -m benchmarks`: measure this machine, beside Apache Kafka where it is to be had.

The load generators run on the same cores as the server; figures of different runs or machines do not compare. What to
compare is in one run: a system with the other, a policy with the other, a figure with its target.
"""

import argparse
import signal
import sys
from pathlib import Path
from types import FrameType
from typing import Any

from rich.console import Console
from rich.status import Status

from benchmarks import plot, report
from benchmarks.conveyor_system import Conveyor
from benchmarks.installation import installed_command
from benchmarks.kafka.release import NotFetchedError, Release, fetch
from benchmarks.kafka.system import Kafka
from benchmarks.rounds import Run, compare, take_turns
from benchmarks.rows import GROUPS, Load
from benchmarks.server import System

_POLICIES = ("ack", "os")
_TABLE_WIDTH = 120
_ROUNDS_BESIDE_KAFKA = 3


def main() -> None:
    """See the module's docstring."""
    arguments = _parser().parse_args()
    signal.signal(signal.SIGTERM, _end)  # So that servers and directories are cleaned up then, too.
    console = Console()
    console.width = max(console.width, _TABLE_WIDTH)
    release = None if arguments.without_kafka else _release(console)
    runs: list[Run] = []
    try:
        with console.status("installing Conveyor (its dependencies are fetched once)"):
            installed_command()
        with console.status("starting") as status:
            _measure(arguments, release, runs, status)
    finally:
        _tell(console, arguments, release, runs)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="Measure Conveyor beside Apache Kafka.")
    parser.add_argument("--scale", type=float, default=1.0, help="how much load; less is shorter, Java colder (1.0)")
    parser.add_argument("--rounds", type=int, help="how often each row is measured (3 beside Kafka, else 1)")
    parser.add_argument("--only", nargs="+", choices=sorted(GROUPS), default=list(GROUPS), help="which rows")
    parser.add_argument("--without-kafka", action="store_true", help="measure Conveyor alone")
    parser.add_argument("--json", type=Path, default=Path("bench.json"), help="where the figures go (bench.json)")
    parser.add_argument("--plot", type=Path, default=Path("bench.png"), help="where the picture goes (bench.png)")
    return parser


def _release(console: Console) -> Release | None:
    """Kafka's jars; None, and a line that says why, where they are not to be had."""
    try:
        with console.status("fetching Kafka (about 45 MB, once)"):
            return fetch()
    except NotFetchedError as reason:
        console.print(f"Kafka cannot be fetched, so Conveyor is measured alone: {reason}", markup=False)
        return None


def _measure(arguments: argparse.Namespace, release: Release | None, runs: list[Run], status: Status) -> None:
    systems: list[System] = [Conveyor(policy=each) for each in _POLICIES]
    systems += [Kafka(release=release)] if release else []
    rounds = arguments.rounds or (_ROUNDS_BESIDE_KAFKA if release else 1)
    load = Load(scale=arguments.scale, release=release)
    for name in arguments.only:
        if GROUPS[name].needs_release and release is None:
            continue
        for run in take_turns(GROUPS[name], systems, rounds, load):
            runs.append(run)
            status.update(f"round {run.round + 1}, {run.system} {run.policy}: {run.figure.name}")


def _tell(console: Console, arguments: argparse.Namespace, release: Release | None, runs: list[Run]) -> None:
    """Print and write what was measured, if only in part."""
    if not runs:
        return
    compared = compare(runs)
    settings: dict[str, Any] = {"scale": arguments.scale, "kafka": release.version if release else None}
    report.write_json(arguments.json, settings, runs, compared)
    if release:
        console.print(report.ratios(compared, release.version))
        plot.draw(compared, f"Conveyor's figure divided by Kafka {release.version}'s, medians", arguments.plot)
    console.print(report.own_targets(compared, all_rows=release is None))
    console.print(f"The figures are in {arguments.json}{f', a picture in {arguments.plot}' if release else ''}.")


def _end(number: int, frame: FrameType | None) -> None:
    sys.exit(128 + number)


if __name__ == "__main__":
    main()
