"""Stories from seeds: every invariant holds, the same seed tells the same story, every fault happens.

SIMULATION_SEEDS in the environment says how many seeds are played; 200 by default.
"""

import os
from collections import Counter
from functools import cache

import pytest

from simulation.cluster.fault_counts import CLUSTER_EVENTS
from simulation.cluster_schedule import FAULTS, make_schedule
from simulation.cluster_story import play
from simulation.shrink import shrink
from simulation.story import StoryOutcome
from simulation.story_rules import RULES, StoryRules, rules_of
from simulation.story_schedule import StorySchedule, decode_schedule
from simulation.troubles import OF_A_LONE_BROKER, TROUBLES
from tests.simulation.seeds import check_hash_seed_is_irrelevant
from tests.sweep import part_of

SEEDS = int(os.environ.get("SIMULATION_SEEDS", "200"))
CHUNK = 10
"""The seeds of one test: half a minute on a busy machine."""
SEEDS_OF_TEST = 100
"""Those that `make test` plays."""
SEEDS_OF_EVENTS = 50
"""Enough for every event."""
SEEDS_OF_SCHEDULES = 200
ALONE = 25
"""The stories with one broker, beside those that the seeds draw."""
DIGESTS = (
    "from simulation.cluster_schedule import make_schedule as m\n"
    "from simulation.cluster_story import play\n"
    "print([play(m(seed)).digest for seed in (3, 7, 20)], play(m(1, brokers=1)).digest)"
)


@cache
def _outcome(seed: int) -> StoryOutcome:
    return play(make_schedule(seed))


@pytest.mark.parametrize("first", part_of(range(0, SEEDS, CHUNK), *range(0, SEEDS_OF_TEST, CHUNK)))
def test_every_invariant_holds(first: int) -> None:
    for seed in range(first, min(first + CHUNK, SEEDS)):
        failure = _outcome(seed).failure
        assert failure is None, f"make sim SEED={seed}: {failure!r}"


@pytest.mark.timeout(1200)
def test_every_event_happens() -> None:
    happened = Counter[str]()
    for seed in range(SEEDS_OF_EVENTS):
        happened.update(_outcome(seed).happened)
    assert happened.keys() >= CLUSTER_EVENTS


def test_what_clients_do_is_counted() -> None:
    done = {step.action for step in make_schedule(5).steps if step.actor in ("producer-all", "reader")}
    assert done == {"produce", "read"}
    assert _outcome(5).happened.keys() >= done


def test_every_kind_of_fault_is_in_a_schedule() -> None:
    actions = {step.action for seed in range(SEEDS_OF_SCHEDULES) for step in make_schedule(seed).steps}
    assert actions >= FAULTS


@pytest.mark.parametrize("trouble", sorted(TROUBLES))
def test_seeds_draw_a_lone_broker_unless_it_cannot_have_the_trouble(trouble: str) -> None:
    rules = [rules_of(make_schedule(seed, (trouble,))) for seed in range(SEEDS_OF_SCHEDULES)]
    assert any(drawn.is_alone for drawn in rules) == (trouble in OF_A_LONE_BROKER)


def test_a_seed_tells_the_same_story_whatever_the_hash_seed() -> None:
    check_hash_seed_is_irrelevant(DIGESTS)


def test_a_schedule_survives_being_kept() -> None:
    schedule = make_schedule(5)
    assert decode_schedule(schedule.encode()) == schedule


def test_a_schedule_without_terms_has_the_usual_ones() -> None:
    schedule = make_schedule(5)
    without = schedule.without([step for step in schedule.steps if step.actor == RULES])
    assert rules_of(without) == StoryRules() == rules_of(StorySchedule(0, ()))
    assert rules_of(schedule) != StoryRules()


def test_shrinking_leaves_the_steps_that_matter() -> None:
    schedule = make_schedule(5)
    needed = {schedule.steps[7], schedule.steps[90]}

    def fails(shorter: StorySchedule) -> bool:
        return needed <= set(shorter.steps)

    assert set(shrink(schedule, fails).steps) == needed


@pytest.mark.parametrize("seed", range(ALONE))
def test_every_invariant_of_one_broker_holds(seed: int) -> None:
    outcome = play(make_schedule(seed, brokers=1))
    assert outcome.failure is None, f"python -m simulation --brokers 1 --seed {seed}: {outcome.failure!r}"
