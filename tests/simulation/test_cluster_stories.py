"""Stories of a cluster from seeds: every invariant holds, the same seed tells the same story, every fault happens.

SIMULATION_SEEDS in the environment says how many seeds are played; 100 by default.
"""

import os

import pytest

from conveyor.testing.simulation.cluster.cluster_schedule import make_cluster_schedule
from conveyor.testing.simulation.cluster.cluster_story import play_cluster
from conveyor.testing.simulation.story_schedule import decode_schedule
from tests.simulation.seeds import check_hash_seed_is_irrelevant

SEEDS = int(os.environ.get("SIMULATION_SEEDS", "100"))
CHUNK = 25
FAULTS = {
    "crash", "cut_power", "cut_power_within", "restart", "pause", "cut_store", "expire_session", "lose_store_replies",
    "fail_syncs", "fail_appends", "fill_disk", "cut_one_way", "cut_both_ways", "isolate", "reset", "cut_all_power",
}  # fmt: skip
DIGESTS = (
    "from conveyor.testing.simulation.cluster.cluster_schedule import make_cluster_schedule as m\n"
    "from conveyor.testing.simulation.cluster.cluster_story import play_cluster\n"
    "print([play_cluster(m(seed)).digest for seed in (3, 7, 20)])"
)


@pytest.mark.parametrize("first", range(0, SEEDS, CHUNK))
def test_every_invariant_of_a_cluster_holds(first: int) -> None:
    for seed in range(first, min(first + CHUNK, SEEDS)):
        failure = play_cluster(make_cluster_schedule(seed)).failure
        assert failure is None, f"make sim STORY=cluster SEED={seed}: {failure!r}"


def test_a_refused_follower_that_has_to_truncate_follows_again() -> None:
    failure = play_cluster(make_cluster_schedule(225)).failure
    assert failure is None, repr(failure)


def test_every_kind_of_fault_happens_to_a_cluster() -> None:
    happened = {name for seed in range(60) for name in play_cluster(make_cluster_schedule(seed)).happened}
    assert happened == FAULTS


def test_a_seed_tells_the_same_story_of_a_cluster_whatever_the_hash_seed() -> None:
    check_hash_seed_is_irrelevant(DIGESTS)


def test_the_schedule_of_a_cluster_survives_being_kept() -> None:
    schedule = make_cluster_schedule(5)
    assert decode_schedule(schedule.encode()) == schedule
