"""Plays one story on a new event loop, and keeps what comes of it."""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from simulation.story_schedule import Step, StorySchedule
from simulation.virtual_loop import VirtualLoop


@dataclass(frozen=True, slots=True)
class StoryOutcome:
    """The result of a story. failure: None if every invariant held. digest: of everything that was read at the end."""

    failure: BaseException | None
    happened: dict[str, int]
    digest: str


class Playable(Protocol):
    """One story. bugs: the exceptions that escaped from its brokers."""

    @property
    def bugs(self) -> list[BaseException]: ...

    @property
    def happened(self) -> Mapping[str, int]: ...

    @property
    def text_digest(self) -> str: ...

    async def run(self) -> None: ...


def play_story(make: Callable[[VirtualLoop], Playable], longest_s: float) -> StoryOutcome:
    """Play a story on a new event loop. longest_s: in virtual time."""
    loop = VirtualLoop()
    story = make(loop)

    def note_bug(_: asyncio.AbstractEventLoop, context: dict[str, object]) -> None:
        """Record an exception that escaped from a callback."""
        error = context.get("exception")
        if isinstance(error, BaseException):
            story.bugs.append(error)

    loop.set_exception_handler(note_bug)
    failure: BaseException | None = None
    try:
        loop.run_until_complete(asyncio.wait_for(story.run(), longest_s))
    except Exception as error:  # noqa: BLE001 - any exception that ends a story early is its failure
        failure = error
    finally:
        loop.end()
    return StoryOutcome(failure, dict(story.happened), story.text_digest)


def steps_by_actor(schedule: StorySchedule) -> dict[str, list[Step]]:
    """Return the steps of each actor, in order."""
    by_actor: dict[str, list[Step]] = {}
    for step in schedule.steps:
        by_actor.setdefault(step.actor, []).append(step)
    return by_actor
