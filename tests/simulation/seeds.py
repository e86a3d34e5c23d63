"""What the tests of both simulations do with seeds."""

import os
import subprocess
import sys
from collections.abc import Callable, Collection

import pytest

from simulation.story import StoryOutcome

Play = Callable[[int], StoryOutcome]
"""Plays the story of a seed."""


def check_found(play: Play, seeds: range, invariants: Collection[str]) -> None:
    """One of the seeds fails, and the first one that does breaks one of these invariants."""
    for seed in seeds:
        failure = play(seed).failure
        if failure is not None:
            assert getattr(failure, "invariant", type(failure).__name__) in invariants, f"seed {seed}: {failure!r}"
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
