"""The schedule of a cluster's story: what clients do, and the faults of three brokers and of the network."""

from random import Random

from conveyor.testing.simulation.story_schedule import STORY_MS, Step, StorySchedule

CLUSTER = "cluster"
NODE_IDS = (1, 2, 3)

_CLIENT_STEPS = 150
_FAULTS = 10
_CLIENTS = (
    ("producer-all", "produce"),
    ("producer-all", "produce"),
    ("producer-all", "produce"),
    ("producer-one", "produce"),
    ("producer-plain", "produce"),
    ("reader", "read"),
    ("reader", "read"),
    ("reader", "read"),
    ("publisher", "produce"),
    ("publisher", "produce_delayed"),
    ("worker-1", "lease"),
    ("worker-1", "settle"),
    ("worker-2", "lease"),
    ("worker-2", "settle"),
    ("committer", "commit"),
    ("committer", "fetch_offset"),
)
_BROKER_FAULTS = (
    "crash",
    "crash",
    "cut_power",
    "cut_power_within",
    "restart",
    "pause",
    "pause",
    "cut_store",
    "expire_session",
    "lose_store_replies",
    "fail_syncs",
    "fail_appends",
    "fill_disk",
)
_NETWORK_FAULTS = ("cut_one_way", "cut_both_ways", "isolate", "reset")
_CLUSTER_FAULTS = ("cut_all_power",)


def make_cluster_schedule(seed: int) -> StorySchedule:
    """Return the schedule of a seed; the same on every machine."""
    chance = Random(f"{seed} cluster schedule")
    steps = [_step(chance, *chance.choice(_CLIENTS)) for _ in range(_CLIENT_STEPS)]
    steps += [_fault(chance) for _ in range(chance.randint(0, _FAULTS))]
    return StorySchedule(seed, tuple(sorted(steps)), CLUSTER)


def _fault(chance: Random) -> Step:
    kind = chance.random()
    if kind < 0.65:
        return _step(chance, f"broker-{chance.choice(NODE_IDS)}", chance.choice(_BROKER_FAULTS))
    if kind < 0.95:
        return _step(chance, "network", chance.choice(_NETWORK_FAULTS))
    return _step(chance, "machines", chance.choice(_CLUSTER_FAULTS))


def _step(chance: Random, actor: str, action: str) -> Step:
    return Step(chance.randrange(STORY_MS), actor, action, chance.getrandbits(16))
