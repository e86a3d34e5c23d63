"""Stories from seeds: every invariant holds, the same seed tells the same story, and every kind of fault happens.

SIMULATION_SEEDS in the environment says how many seeds are played; 100 by default.
"""

import os

import pytest

from simulation.shrink import shrink
from simulation.story import play
from simulation.story_schedule import (
    FAULTS,
    HOUSEKEEPING,
    StorySchedule,
    decode_schedule,
    make_schedule,
)
from tests.simulation.seeds import check_hash_seed_is_irrelevant

SEEDS = int(os.environ.get("SIMULATION_SEEDS", "100"))
CHUNK = 25
DIGESTS = (
    "from simulation.story_schedule import make_schedule as m\n"
    "from simulation.story import play\n"
    "print([play(m(seed)).digest for seed in (3, 7, 20)])"
)


@pytest.mark.parametrize("first", range(0, SEEDS, CHUNK))
def test_every_invariant_holds(first: int) -> None:
    for seed in range(first, min(first + CHUNK, SEEDS)):
        failure = play(make_schedule(seed)).failure
        assert failure is None, f"make sim SEED={seed}: {failure!r}"


def test_every_kind_of_fault_happens() -> None:
    happened = {name for seed in range(40) for name in play(make_schedule(seed)).happened}
    assert happened == {*FAULTS, *HOUSEKEEPING}


def test_a_seed_tells_the_same_story_whatever_the_hash_seed() -> None:
    check_hash_seed_is_irrelevant(DIGESTS)


def test_a_schedule_survives_being_kept() -> None:
    schedule = make_schedule(5)
    assert decode_schedule(schedule.encode()) == schedule


def test_shrinking_leaves_the_steps_that_matter() -> None:
    schedule = make_schedule(5)
    needed = {schedule.steps[7], schedule.steps[90]}

    def fails(shorter: StorySchedule) -> bool:
        return needed <= set(shorter.steps)

    assert set(shrink(schedule, fails).steps) == needed
