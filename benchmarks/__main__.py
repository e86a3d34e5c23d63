"""`python -m benchmarks`: measure this machine, beside Apache Kafka and RabbitMQ where they are to be had.

The load generators run on the same cores as the server; figures of different runs or machines do not compare. What to
compare is in one run: a system with the other, a policy with the other, a figure with its target.
"""

import argparse
import signal
import sys
from collections.abc import Mapping
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
from benchmarks.queues.rows import QUEUE_GROUPS
from benchmarks.rabbitmq.system import NotInstalledError, RabbitMQ, find
from benchmarks.rounds import Run, compare, take_turns
from benchmarks.rows import GROUPS, Group, Load
from benchmarks.server import System
from benchmarks.stalls import stalls

_POLICIES = ("ack", "os")
_TABLE_WIDTH = 120
_ROUNDS_BESIDE_OTHERS = 3
_GROUPS = GROUPS | {"stalls": Group(measure=stalls)} | QUEUE_GROUPS


def main() -> None:
    """See the module's docstring."""
    arguments = _parser().parse_args()
    signal.signal(signal.SIGTERM, _end)  # So that servers and directories are cleaned up then, too.
    console = Console()
    console.width = max(console.width, _TABLE_WIDTH)
    groups = _chosen(arguments.only)
    wanted = {each.beside for each in groups}
    release = _release(console) if "Kafka" in wanted and not arguments.without_kafka else None
    rabbitmq = _rabbitmq(console) if "RabbitMQ" in wanted and not arguments.without_rabbitmq else None
    runs: list[Run] = []
    try:
        with console.status("installing Conveyor (its dependencies are fetched once)"):
            installed_command()
        with console.status("starting") as status:
            _measure(arguments, groups, release, rabbitmq, runs, status)
    finally:
        _tell(console, arguments, {"Kafka": release, "RabbitMQ": rabbitmq}, runs)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="Measure Conveyor beside others.")
    parser.add_argument("--scale", type=float, default=1.0, help="how much load; less is shorter, Java colder (1.0)")
    parser.add_argument("--rounds", type=int, help="how often each row is measured (3 beside others, else 1)")
    only = "which rows; `queues` means those of `queues-delays` and so on, too"
    parser.add_argument("--only", nargs="+", choices=sorted(_GROUPS), default=list(_GROUPS), help=only)
    parser.add_argument("--without-kafka", action="store_true", help="do not measure Kafka")
    parser.add_argument("--without-rabbitmq", action="store_true", help="do not measure RabbitMQ")
    parser.add_argument("--json", type=Path, default=Path("bench.json"), help="where the figures go (bench.json)")
    parser.add_argument("--plot", type=Path, default=Path("bench.png"), help="where the picture goes (bench.png)")
    return parser


def _chosen(names: list[str]) -> list[Group]:
    return [
        group for name, group in _GROUPS.items() if any(name == each or name.startswith(f"{each}-") for each in names)
    ]


def _rabbitmq(console: Console) -> RabbitMQ | None:
    """None, and a line that says what is missing, where it is not installed."""
    try:
        return find()
    except NotInstalledError as reason:
        console.print(f"RabbitMQ is not installed, so queues are measured alone: {reason}", markup=False)
        return None


def _release(console: Console) -> Release | None:
    """Kafka's jars; None, and a line that says why, where they are not to be had."""
    try:
        with console.status("fetching Kafka (about 45 MB, once)"):
            return fetch()
    except NotFetchedError as reason:
        console.print(f"Kafka cannot be fetched, so Conveyor is measured alone: {reason}", markup=False)
        return None


def _measure(
    arguments: argparse.Namespace,
    groups: list[Group],
    release: Release | None,
    rabbitmq: RabbitMQ | None,
    runs: list[Run],
    status: Status,
) -> None:
    known: list[System] = [Conveyor(policy=each) for each in _POLICIES]
    known += [Kafka(release=release)] if release else []
    known += [rabbitmq] if rabbitmq else []
    load = Load(scale=arguments.scale, release=release)
    for group in groups:
        if group.needs_release and release is None:
            continue
        systems = [each for each in known if each.name in ("Conveyor", group.beside)]
        rounds = arguments.rounds or (_ROUNDS_BESIDE_OTHERS if systems[-1].name == group.beside else 1)
        for run in take_turns(group, systems, rounds, load):
            runs.append(run)
            status.update(f"round {run.round + 1}, {run.system} {run.policy}: {run.figure.name}")


def _tell(
    console: Console, arguments: argparse.Namespace, others: Mapping[str, Release | RabbitMQ | None], runs: list[Run]
) -> None:
    """Print and write what was measured, if only in part."""
    if not runs:
        return
    compared = compare(runs)
    versions = {name: None if each is None else each.version for name, each in others.items()}
    settings: dict[str, Any] = {"scale": arguments.scale} | {name.lower(): each for name, each in versions.items()}
    report.write_json(arguments.json, settings, runs, compared)
    for name, version in versions.items():
        if version is not None and any(each.beside == name for each in compared):
            console.print(report.ratios(compared, name, version))
    console.print(report.own_targets(compared))
    plot.draw(compared, arguments.plot)
    console.print(f"The figures are in {arguments.json}, a picture in {arguments.plot}.")


def _end(number: int, frame: FrameType | None) -> None:
    sys.exit(128 + number)


if __name__ == "__main__":
    main()
