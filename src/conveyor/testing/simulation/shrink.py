"""Shrinking a schedule that fails: the fewest steps that still fail, by delta debugging (Zeller, Hildebrandt 2002)."""

from collections.abc import Callable

from conveyor.testing.simulation.story_schedule import Schedule


def shrink(schedule: Schedule, fails: Callable[[Schedule], bool]) -> Schedule:
    """A schedule from which no single step can be left out. `fails` plays a schedule and says whether it fails."""
    parts = 2
    while len(schedule.steps) > 1:
        size = max(1, len(schedule.steps) // parts)
        starts = range(0, len(schedule.steps), size)
        shorter = (schedule.without(schedule.steps[start : start + size]) for start in starts)
        failing = next((each for each in shorter if fails(each)), None)
        if failing is not None:
            schedule, parts = failing, max(2, parts - 1)
        elif size == 1:
            break
        else:
            parts = min(len(schedule.steps), 2 * parts)
    return schedule
