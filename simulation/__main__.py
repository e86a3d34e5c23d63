"""`python -m simulation`: plays one seed, many seeds or a stored schedule, and shrinks failures."""

import argparse
import logging
import os
import sys
import time
from collections.abc import Iterable, Mapping
from pathlib import Path

from rich.console import Console
from rich.progress import Progress

from simulation.shrink import shrink
from simulation.stories import STORIES, play_any
from simulation.story import StoryOutcome
from simulation.story_schedule import ONE_BROKER, StorySchedule, decode_schedule
from simulation.sweep import sweep

_CLUSTERS_PER_BROKER = 10


def main() -> None:
    """Play the chosen schedules. Exit code 0: every invariant held; 1: one failed, and its schedule is printed."""
    parser = argparse.ArgumentParser(prog="simulation", description=__doc__)
    chosen = parser.add_mutually_exclusive_group(required=True)
    chosen.add_argument("--seed", type=int, help="play this seed and print the outcome")
    chosen.add_argument("--seeds", type=int, help="play this many seeds, from --first on")
    chosen.add_argument("--schedule", type=Path, help="play a schedule stored as JSON")
    parser.add_argument(
        "--story",
        choices=STORIES,
        help="play only this story (default: both; of --seeds, a tenth as many of one broker as of a cluster)",
    )
    parser.add_argument("--first", type=int, default=0, help="first seed of --seeds (default: 0)")
    parser.add_argument(
        "--processes", type=int, default=os.cpu_count() or 1, help="processes of --seeds, two or more (default: CPUs)"
    )
    parser.add_argument("--keep", type=Path, help="write the shrunk schedule of a failure to this file")
    options = parser.parse_args()
    logging.getLogger("conveyor").setLevel(logging.CRITICAL)  # Crashes are expected here, so their log lines are noise.
    stories = [options.story] if options.story else list(STORIES)
    if options.schedule is not None:
        failing = _play_one(decode_schedule(options.schedule.read_text()))
    elif options.seeds is None:
        failing = _first(_play_one(STORIES[name].make(options.seed)) for name in stories)
    else:
        counts = dict.fromkeys(stories, options.seeds)
        if options.story is None:
            counts[ONE_BROKER] = max(1, options.seeds // _CLUSTERS_PER_BROKER)
        failing = _first(
            _play_all(name, range(options.first, options.first + count), options.processes)
            for name, count in counts.items()
        )
    if failing is not None:
        _explain(failing, options.keep)
        sys.exit(1)


def _first(failing: Iterable[StorySchedule | None]) -> StorySchedule | None:
    """Return the first failing schedule. The stories after it are not played."""
    return next((schedule for schedule in failing if schedule is not None), None)


def _play_all(name: str, seeds: range, processes: int) -> StorySchedule | None:
    began_s = time.monotonic()
    with Progress(console=Console(stderr=True), disable=not sys.stderr.isatty()) as progress:
        task = progress.add_task(name, total=len(seeds))
        result = sweep(name, seeds, lambda count: progress.advance(task, count), processes)
    for played in result.failed:
        print(f"{name}, seed {played.seed}: {played.failure}", file=sys.stderr)
    if result.failed:
        return STORIES[name].make(result.failed[0].seed)
    took_s = time.monotonic() - began_s
    print(f"{name}: {len(seeds)} seeds, every invariant held; faults and events: {_counts(result.happened)}")
    print(f"{took_s:.0f} s, {len(seeds) / took_s:.1f} stories/s; {result.cpu_s / len(seeds):.2f} s of CPU for each")
    if result.missing:
        sys.exit(f"{name}: these faults and events have not happened: {', '.join(result.missing)}")
    return None


def _play_one(schedule: StorySchedule) -> StorySchedule | None:
    outcome = play_any(schedule)
    name = f"{schedule.story}, seed {schedule.seed}"
    if outcome.failure is None:
        print(f"{name}: every invariant held; {_counts(outcome.happened)}; digest {outcome.digest[:16]}")
        return None
    print(f"{name}: {outcome.failure!r}", file=sys.stderr)
    return schedule


def _explain(schedule: StorySchedule, keep: Path | None) -> None:
    expected = _kind(play_any(schedule))
    print("shrinking the schedule", file=sys.stderr)
    shortest = shrink(schedule, lambda shorter: _kind(play_any(shorter)) == expected)
    print(f"{len(shortest.steps)} of {len(schedule.steps)} steps reproduce it:", file=sys.stderr)
    for step in shortest.steps:
        print(f"  {step.at_ms:>6} ms  {step.actor:<22} {step.action} {step.number}", file=sys.stderr)
    if keep is not None:
        keep.write_text(shortest.encode() + "\n")
        print(f"written to {keep}: play it with --schedule {keep}", file=sys.stderr)


def _kind(outcome: StoryOutcome) -> str:
    """Return the kind of failure. A shorter schedule has to fail in the same way."""
    return "" if outcome.failure is None else str(getattr(outcome.failure, "invariant", type(outcome.failure).__name__))


def _counts(happened: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {count}" for name, count in sorted(happened.items())) or "none"


if __name__ == "__main__":
    main()
