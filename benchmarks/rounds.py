"""Rounds in which the systems take turns, so that what else the machine does meets all; medians of the rounds."""

import math
import os
import statistics
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass

from benchmarks.figures import Figure, Kind, is_met, target_ratio
from benchmarks.rows import Group, Load, Trial
from benchmarks.server import Server, System, running

_MOST_WARM_UPS = 12
_STEADY_IN_A_ROW = 2
_CLEARLY_LESS = 0.9


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One figure of one round."""

    round: int
    system: str
    policy: str
    figure: Figure


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Medians of a row. beside: the other system that was measured, if any, and `other` its figure.

    ratio: Conveyor's figure divided by the other's.
    """

    name: str
    policy: str
    kind: Kind
    unit: str
    conveyor: float
    beside: str | None
    other: float | None
    own_target: float | None

    @property
    def ratio(self) -> float | None:
        return None if not self.other else self.conveyor / self.other

    @property
    def target(self) -> float | None:
        """What the ratio is to be."""
        return target_ratio(self.kind, self.policy)

    @property
    def met(self) -> bool | None:
        """Whether the ratio is what it is to be; None where either is missing."""
        if self.ratio is None or self.target is None:
            return None
        return is_met(self.kind, self.ratio, self.target)


def take_turns(group: Group, systems: Sequence[System], rounds: int, load: Load) -> Iterator[Run]:
    """A B C, B C A, C A B, ... The first system of a name stands for its other policies where they are all one."""
    names = [each.name for each in systems]
    chosen = [each for index, each in enumerate(systems) if group.every_policy or each.name not in names[:index]]
    with ExitStack() as kept_running:
        servers: dict[System, Server] = {}
        if group.warm_up is not None:
            for system in chosen:
                servers[system] = kept_running.enter_context(running(system))
                _warm_up(group.warm_up, system, servers[system], load)
        for number in range(rounds):
            first = number % len(chosen)
            for system in chosen[first:] + chosen[:first]:
                for figure in _turn(group, system, servers.get(system), load, f"round{number}"):
                    yield Run(round=number, system=system.name, policy=system.policy, figure=figure)


def _warm_up(work: Callable[[Trial], float], system: System, server: Server, load: Load) -> None:
    """Until it has not cost the server clearly less than ever before for some times in a row."""
    least, in_a_row = math.inf, 0
    for number in range(_MOST_WARM_UPS):
        spent = work(Trial(system=system, server=server, load=load, label=f"warm-up{number}"))
        in_a_row = 0 if spent < least * _CLEARLY_LESS else in_a_row + 1
        least = min(least, spent)
        if in_a_row == _STEADY_IN_A_ROW:
            return


def _turn(group: Group, system: System, server: Server | None, load: Load, label: str) -> Iterator[Figure]:
    """On the server that is kept running, or on a fresh one.

    The disk is synced first, so that no system pays for what another one has written.
    """
    os.sync()
    with nullcontext(server) if server is not None else running(system) as chosen:
        yield from group.measure(Trial(system=system, server=chosen, load=load, label=label))


def compare(runs: Sequence[Run]) -> list[Comparison]:
    """One for each of Conveyor's rows and policies, in the order in which they were measured first."""
    values: dict[tuple[str, str, str], list[float]] = {}
    figures: dict[str, Figure] = {}
    for run in runs:
        figures.setdefault(run.figure.name, run.figure)
        values.setdefault((run.figure.name, run.system, run.policy), []).append(run.figure.value)
    compared = []
    for name, figure in figures.items():
        others = [system for row, system, _ in values if row == name and system != "Conveyor"]
        beside = others[0] if others else None
        for (row, system, policy), conveyor in sorted(values.items()):
            if (row, system) == (name, "Conveyor"):
                compared.append(
                    Comparison(
                        name=name,
                        policy=policy,
                        kind=figure.kind,
                        unit=figure.unit,
                        conveyor=statistics.median(conveyor),
                        beside=beside,
                        other=statistics.median(values[name, beside, "-"]) if beside else None,
                        own_target=figure.own_target,
                    )
                )
    return compared
