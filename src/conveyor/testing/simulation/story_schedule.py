"""A schedule: what happens in a simulation, as a list of steps made up front from a seed.

A step names its time, the actor that carries it out, an action, and a number that the action may use: how many records,
which partition, for how long. Leaving steps out leaves a schedule that can be played, which is what shrinking needs.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from random import Random

STORY_MS = 60_000

_STEPS = 120
_FAULTS = 6
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
    "operator": (
        ("operator", "retain"),
        ("operator", "compact"),
        ("operator", "delete_records"),
        ("operator", "restart"),
    ),
    "fault": (
        ("operator", "crash"),
        ("operator", "cut_power"),
        ("operator", "cut_power_within"),
        ("operator", "fail_syncs"),
        ("operator", "fail_appends"),
        ("operator", "fill_disk"),
        ("operator", "step_clock"),
    ),
}


@dataclass(frozen=True, slots=True, order=True)
class Step:
    """One action of one actor. at_ms: virtual time since the start of the story. number: 0 to 2**16 - 1."""

    at_ms: int
    actor: str
    action: str
    number: int


@dataclass(frozen=True, slots=True)
class Schedule:
    """The seed decides what the steps leave open: delays, torn writes, ids."""

    seed: int
    steps: tuple[Step, ...]

    def without(self, dropped: Sequence[Step]) -> "Schedule":
        """The same story without some of its steps."""
        gone = set(dropped)
        return Schedule(self.seed, tuple(step for step in self.steps if step not in gone))

    def encode(self) -> str:
        """As JSON, to be kept beside a test."""
        return json.dumps({"seed": self.seed, "steps": [asdict(step) for step in self.steps]}, indent=1)


def make_schedule(seed: int) -> Schedule:
    """The schedule of a seed; the same on every machine."""
    chance = Random(f"{seed} schedule")
    steps = [_step(chance, "client") for _ in range(_STEPS)]
    steps += [_step(chance, "operator") for _ in range(chance.randint(0, 4))]
    steps += [_step(chance, "fault") for _ in range(chance.randint(0, _FAULTS))]
    return Schedule(seed, tuple(sorted(steps)))


def decode_schedule(content: str) -> Schedule:
    """What `Schedule.encode` wrote."""
    document = json.loads(content)
    return Schedule(document["seed"], tuple(Step(**step) for step in document["steps"]))


def _step(chance: Random, kind: str) -> Step:
    actor, action = chance.choice(_ACTIONS[kind])
    return Step(chance.randrange(STORY_MS), actor, action, chance.getrandbits(16))
