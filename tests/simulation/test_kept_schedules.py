"""Schedules that once failed, shrunk to the steps that matter. Each is named after what happens in it.

A schedule stays the same story when the generator of schedules changes; a seed does not.
"""

from pathlib import Path

import pytest

from simulation.cluster_story import play
from simulation.story_schedule import decode_schedule

KEPT = sorted(Path(__file__).parent.joinpath("schedules").glob("*.json"))


@pytest.mark.parametrize("path", KEPT, ids=lambda path: path.stem)
def test_a_schedule_that_failed_once_holds_every_invariant(path: Path) -> None:
    failure = play(decode_schedule(path.read_text())).failure
    assert failure is None, f"python -m simulation --schedule {path}: {failure!r}"
