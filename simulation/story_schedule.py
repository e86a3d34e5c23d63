"""A schedule: the steps of a simulation, computed in advance from a seed.

A step has a time, an actor, an action, and a number that parameterises the action: how many records, which partition,
how long. A schedule without some of its steps can be played as well, which shrinking needs.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from random import Random

STORY_MS = 60_000
ONE_BROKER = "broker"

HOUSEKEEPING = ("retain", "compact", "delete_records", "restart")
FAULTS = (
    "crash",
    "cut_power",
    "cut_power_within",
    "fail_syncs",
    "fail_appends",
    "fail_renames",
    "fill_disk",
    "step_clock",
    "fail_store_reads",
    "fail_store_commits",
    "lose_store_replies",
    "fill_store",
)

_STEPS = 120
_TOPIC_STEPS = 40
_FAULTS = 8
_ACTIONS: dict[str, tuple[tuple[str, str], ...]] = {
    "client": (
        ("producer-all", "produce"),
        ("producer-all", "produce"),
        ("producer-one", "produce"),
        ("producer-plain", "produce"),
        ("producer-table", "produce"),
        ("producer-queue", "produce"),
        ("producer-queue", "produce_delayed"),
        ("producer-stream-delay", "produce_delayed"),
        ("reader", "read"),
        ("reader", "read"),
        ("committer", "commit"),
        ("committer", "fetch_offset"),
        ("worker-1", "lease"),
        ("worker-1", "settle"),
        ("worker-2", "lease"),
        ("worker-2", "settle"),
    ),
    "topics": (
        ("topic-admin", "create"),
        ("topic-admin", "create"),
        ("topic-admin", "recreate"),
        ("topic-admin", "recreate"),
        ("topic-admin", "grow"),
        ("topic-admin", "configure"),
        ("topic-admin", "delete"),
        ("topic-admin", "subscribe"),
        ("topic-admin", "add_schedule"),
        ("topic-user", "produce"),
        ("topic-user", "produce"),
        ("topic-user", "produce"),
        ("topic-user", "produce"),
        ("topic-user", "read"),
        ("topic-user", "work"),
    ),
    "operator": tuple(("operator", action) for action in HOUSEKEEPING),
    "fault": tuple(("operator", action) for action in FAULTS),
}


@dataclass(frozen=True, slots=True, order=True)
class Step:
    """One action of one actor. at_ms: virtual time since the start of the story. number: 0 to 2**16 - 1."""

    at_ms: int
    actor: str
    action: str
    number: int


@dataclass(frozen=True, slots=True)
class StorySchedule:
    """The steps, and the seed for everything else that is random: delays, torn writes, ids.

    story: ONE_BROKER or the name of another story, whose actors the steps name.
    """

    seed: int
    steps: tuple[Step, ...]
    story: str = ONE_BROKER

    def without(self, dropped: Sequence[Step]) -> "StorySchedule":
        """Return the schedule without some of its steps."""
        removed = set(dropped)
        return replace(self, steps=tuple(step for step in self.steps if step not in removed))

    def encode(self) -> str:
        """Return the schedule as JSON, to be stored beside a test."""
        content = {"seed": self.seed, "story": self.story, "steps": [asdict(step) for step in self.steps]}
        return json.dumps(content, indent=1)


def make_schedule(seed: int) -> StorySchedule:
    """Return the schedule of a seed; the same on every machine."""
    chance = Random(f"{seed} schedule")
    steps = [_step(chance, "client") for _ in range(_STEPS)]
    steps += [_step(chance, "topics") for _ in range(_TOPIC_STEPS)]
    steps += [_step(chance, "operator") for _ in range(chance.randint(0, 4))]
    steps += [_step(chance, "fault") for _ in range(chance.randint(0, _FAULTS))]
    return StorySchedule(seed, tuple(sorted(steps)))


def decode_schedule(content: str) -> StorySchedule:
    """Decode the result of `StorySchedule.encode`."""
    document = json.loads(content)
    return StorySchedule(document["seed"], tuple(Step(**step) for step in document["steps"]), document["story"])


def _step(chance: Random, kind: str) -> Step:
    actor, action = chance.choice(_ACTIONS[kind])
    return Step(chance.randrange(STORY_MS), actor, action, chance.getrandbits(16))
