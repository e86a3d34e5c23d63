"""Stories of a cluster from seeds: every invariant holds, the same seed tells the same story, every fault happens.

SIMULATION_SEEDS in the environment says how many seeds are played; 200 by default.
"""

import os
from collections import Counter

import pytest

from simulation.cluster.cluster_schedule import CLUSTER_FAULTS, make_cluster_schedule
from simulation.cluster.cluster_story import play_cluster
from simulation.cluster.fault_counts import CLUSTER_EVENTS
from simulation.cluster.terms import TERMS, Terms, terms_of
from simulation.story_schedule import StorySchedule, decode_schedule
from tests.simulation.seeds import check_hash_seed_is_irrelevant

SEEDS = int(os.environ.get("SIMULATION_SEEDS", "200"))
CHUNK = 50
"""The seeds of one test. The first of these are enough for every event."""
SEEDS_OF_SCHEDULES = 200
DIGESTS = (
    "from simulation.cluster.cluster_schedule import make_cluster_schedule as m\n"
    "from simulation.cluster.cluster_story import play_cluster\n"
    "print([play_cluster(m(seed)).digest for seed in (3, 7, 20)])"
)


@pytest.mark.parametrize("first", range(0, SEEDS, CHUNK))
def test_every_invariant_of_a_cluster_holds_and_every_event_happens(first: int) -> None:
    happened = Counter[str]()
    for seed in range(first, min(first + CHUNK, SEEDS)):
        outcome = play_cluster(make_cluster_schedule(seed))
        assert outcome.failure is None, f"make sim STORY=cluster SEED={seed}: {outcome.failure!r}"
        happened.update(outcome.happened)
    assert first > 0 or happened.keys() >= CLUSTER_EVENTS


def test_every_kind_of_fault_is_in_a_schedule_of_a_cluster() -> None:
    actions = {step.action for seed in range(SEEDS_OF_SCHEDULES) for step in make_cluster_schedule(seed).steps}
    assert actions >= CLUSTER_FAULTS


def test_a_seed_tells_the_same_story_of_a_cluster_whatever_the_hash_seed() -> None:
    check_hash_seed_is_irrelevant(DIGESTS)


def test_the_schedule_of_a_cluster_survives_being_kept() -> None:
    schedule = make_cluster_schedule(5)
    assert decode_schedule(schedule.encode()) == schedule


def test_a_schedule_without_terms_has_the_usual_ones() -> None:
    schedule = make_cluster_schedule(5)
    without = schedule.without([step for step in schedule.steps if step.actor == TERMS])
    assert terms_of(without) == Terms() == terms_of(StorySchedule(0, ()))
    assert terms_of(schedule) != Terms()
