"""The stories that the simulation knows, by name."""

from collections.abc import Callable
from dataclasses import dataclass

from simulation.cluster.cluster_schedule import CLUSTER, CLUSTER_FAULTS, make_cluster_schedule
from simulation.cluster.cluster_story import play_cluster
from simulation.cluster.fault_counts import CLUSTER_EVENTS, TROUBLE_EVENTS
from simulation.cluster.transactions.cluster_transactions import TRANSACTION_EVENTS
from simulation.story import StoryOutcome, play
from simulation.story_schedule import FAULTS, HOUSEKEEPING, ONE_BROKER, StorySchedule, make_schedule


@dataclass(frozen=True, slots=True)
class Story:
    """make: returns the schedule of a seed. play: plays a schedule. must_happen: what a long sweep must have met."""

    make: Callable[[int], StorySchedule]
    play: Callable[[StorySchedule], StoryOutcome]
    must_happen: frozenset[str]


STORIES = {
    ONE_BROKER: Story(make_schedule, play, frozenset(HOUSEKEEPING + FAULTS)),
    CLUSTER: Story(
        make_cluster_schedule,
        play_cluster,
        CLUSTER_FAULTS | CLUSTER_EVENTS | TROUBLE_EVENTS | TRANSACTION_EVENTS,
    ),
}


def play_any(schedule: StorySchedule) -> StoryOutcome:
    """Play a schedule of any story."""
    return STORIES[schedule.story].play(schedule)
