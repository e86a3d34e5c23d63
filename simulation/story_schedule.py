"""A schedule: the steps of a simulation, computed in advance from a seed.

A step has a time, an actor, an action, and a number that parameterises the action: how many records, which partition,
how long. A schedule without some of its steps can be played as well, which shrinking needs.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace


@dataclass(frozen=True, slots=True, order=True)
class Step:
    """One action of one actor. at_ms: virtual time since the start of the story. number: 0 to 2**16 - 1."""

    at_ms: int
    actor: str
    action: str
    number: int


@dataclass(frozen=True, slots=True)
class StorySchedule:
    """The steps, and the seed for everything else that is random: delays, torn writes, ids."""

    seed: int
    steps: tuple[Step, ...]

    def without(self, dropped: Sequence[Step]) -> "StorySchedule":
        """Return the schedule without some of its steps."""
        removed = set(dropped)
        return replace(self, steps=tuple(step for step in self.steps if step not in removed))

    def encode(self) -> str:
        """Return the schedule as JSON, to be stored beside a test."""
        content = {"seed": self.seed, "steps": [asdict(step) for step in self.steps]}
        return json.dumps(content, indent=1)


def decode_schedule(content: str) -> StorySchedule:
    """Decode the result of `StorySchedule.encode`."""
    document = json.loads(content)
    return StorySchedule(document["seed"], tuple(Step(**step) for step in document["steps"]))
