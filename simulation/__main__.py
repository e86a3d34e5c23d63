"""`python -m simulation`: plays one seed, many seeds or a stored schedule, and shrinks failures."""

import argparse
import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from rich.console import Console
from rich.progress import Progress

from simulation.cluster_schedule import make_schedule
from simulation.cluster_story import play
from simulation.shrink import shrink
from simulation.story import StoryOutcome
from simulation.story_schedule import StorySchedule, decode_schedule
from simulation.sweep import silence_brokers, sweep


def main() -> None:
    """Play the chosen schedules. Exit code 0: every invariant held; 1: one failed, and its schedule is printed."""
    parser = argparse.ArgumentParser(prog="simulation", description=__doc__)
    chosen = parser.add_mutually_exclusive_group(required=True)
    chosen.add_argument("--seed", type=int, help="play this seed and print the outcome")
    chosen.add_argument("--seeds", type=int, help="play this many seeds, from --first on")
    chosen.add_argument("--schedule", type=Path, help="play a schedule stored as JSON")
    parser.add_argument(
        "--brokers", type=int, choices=(1, 3), help="with so many brokers (default: what each seed draws)"
    )
    parser.add_argument("--first", type=int, default=0, help="first seed of --seeds (default: 0)")
    parser.add_argument(
        "--processes", type=int, default=os.cpu_count() or 1, help="processes of --seeds, two or more (default: CPUs)"
    )
    parser.add_argument("--keep", type=Path, help="write the shrunk schedule of a failure to this file")
    options = parser.parse_args()
    silence_brokers()
    if options.schedule is not None:
        failing = _play_one(decode_schedule(options.schedule.read_text()))
    elif options.seeds is None:
        failing = _play_one(make_schedule(options.seed, brokers=options.brokers))
    else:
        seeds = range(options.first, options.first + options.seeds)
        failing = _play_all(seeds, options.brokers, options.processes)
    if failing is not None:
        _explain(failing, options.keep)
        sys.exit(1)


def _play_all(seeds: range, brokers: int | None, processes: int) -> StorySchedule | None:
    began_s = time.monotonic()
    with Progress(console=Console(stderr=True), disable=not sys.stderr.isatty()) as progress:
        task = progress.add_task("stories", total=len(seeds))
        result = sweep(seeds, lambda count: progress.advance(task, count), processes, brokers)
    for played in result.failed:
        print(f"seed {played.seed}: {played.failure}", file=sys.stderr)
    if result.failed:
        return make_schedule(result.failed[0].seed, brokers=brokers)
    took_s = time.monotonic() - began_s
    print(f"{len(seeds)} seeds, every invariant held; faults and events: {_counts(result.happened)}")
    print(f"{took_s:.0f} s, {len(seeds) / took_s:.1f} stories/s; {result.cpu_s / len(seeds):.2f} s of CPU for each")
    if result.missing:
        sys.exit(f"these faults and events have not happened: {', '.join(result.missing)}")
    return None


def _play_one(schedule: StorySchedule) -> StorySchedule | None:
    outcome = play(schedule)
    if outcome.failure is None:
        print(f"seed {schedule.seed}: every invariant held; {_counts(outcome.happened)}; digest {outcome.digest[:16]}")
        return None
    print(f"seed {schedule.seed}: {outcome.failure!r}", file=sys.stderr)
    return schedule


def _explain(schedule: StorySchedule, keep: Path | None) -> None:
    expected = _kind(play(schedule))
    print("shrinking the schedule", file=sys.stderr)
    shortest = shrink(schedule, lambda shorter: _kind(play(shorter)) == expected)
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
