"""What the tests of the simulation do with seeds, and the table of a test that plants bugs."""

import os
import subprocess
import sys
from collections.abc import Callable
from random import Random
from typing import NamedTuple

import pytest

from simulation.cluster_schedule import make_schedule
from simulation.cluster_story import play
from simulation.story_rules import NODE_IDS
from simulation.story_schedule import Step, StorySchedule

Plant = Callable[[pytest.MonkeyPatch], None]
"""Plants a bug."""


def troubled(*troubles: str, brokers: int | None = None) -> Callable[[int], StorySchedule]:
    """Return a function that makes the schedule of a seed with these troubles; by default those that the seed draws."""
    return lambda seed: make_schedule(seed, troubles or None, brokers)


def with_more(
    actor: str, action: str, count: int, number: Callable[[Random], int], *troubles: str
) -> Callable[[int], StorySchedule]:
    """Return a function that makes the schedule of a seed with so many more steps of an action, of any broker's actor.

    number: draws the number of a step.
    """

    def make(seed: int) -> StorySchedule:
        chance, drawn = Random(seed), make_schedule(seed, troubles or None)
        steps = [
            Step(chance.randrange(16_000), f"{actor}-{chance.choice(NODE_IDS)}", action, number(chance))
            for _ in range(count)
        ]
        return StorySchedule(seed, tuple(sorted((*drawn.steps, *steps))))

    return make


class Found(NamedTuple):
    """What finds a planted bug. first_seed: known to find it, or no earlier one does. invariants: one of them breaks.
    make: returns the schedule of a seed; None if the seed has no story of the kind.
    """

    first_seed: int
    invariants: set[str]
    make: Callable[[int], StorySchedule | None] = troubled()

    def check(self, seeds_count: int) -> None:
        """One of the seeds fails, and the first one that does breaks one of these invariants."""
        seeds = range(self.first_seed, self.first_seed + seeds_count)
        for seed in seeds:
            schedule = self.make(seed)
            failure = None if schedule is None else play(schedule).failure
            if failure is not None:
                broken = getattr(failure, "invariant", type(failure).__name__)
                assert broken in self.invariants, f"seed {seed}: {failure!r}"
                return
        pytest.fail(f"no seed of {seeds} has found it")


def check_hash_seed_is_irrelevant(program: str) -> None:
    """A program prints the same under two hash seeds."""
    told = {
        subprocess.run(
            [sys.executable, "-c", program], env=os.environ | {"PYTHONHASHSEED": seed}, capture_output=True, check=True
        ).stdout
        for seed in ("1", "2")
    }
    assert len(told) == 1
