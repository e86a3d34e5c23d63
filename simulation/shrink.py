"""Shrinks a failing schedule to the fewest steps that still fail, by delta debugging (Zeller, Hildebrandt 2002)."""

from collections.abc import Callable

from simulation.story_schedule import StorySchedule


def shrink(schedule: StorySchedule, fails: Callable[[StorySchedule], bool]) -> StorySchedule:
    """Return a schedule without a removable step. `fails` plays a schedule and returns whether it fails."""
    parts = 2
    while len(schedule.steps) > 1:
        size = max(1, len(schedule.steps) // parts)
        starts = range(0, len(schedule.steps), size)
        shorter = (schedule.without(schedule.steps[start : start + size]) for start in starts)
        failing = next((candidate for candidate in shorter if fails(candidate)), None)
        if failing is not None:
            schedule, parts = failing, max(2, parts - 1)
        elif size == 1:
            break
        else:
            parts = min(len(schedule.steps), 2 * parts)
    return schedule
