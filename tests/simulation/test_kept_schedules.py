"""Schedules that once failed, shrunk to the steps that matter. Each is named after what happens in it.

A schedule stays the same story when the generator of schedules changes; a seed does not.
"""

from pathlib import Path

import pytest

from simulation.cluster_story import play
from simulation.ledger import InvariantBroken
from simulation.story_schedule import decode_schedule
from tests.simulation.test_planted_cluster_bugs import decide_at_once_on_early_batches

KEPT = sorted(Path(__file__).parent.joinpath("schedules").glob("*.json"))


@pytest.mark.parametrize("path", KEPT, ids=lambda path: path.stem)
def test_a_schedule_that_failed_once_holds_every_invariant(path: Path) -> None:
    failure = play(decode_schedule(path.read_text())).failure
    assert failure is None, f"python -m simulation --schedule {path}: {failure!r}"


def test_batch_sent_again_in_a_new_epoch_is_there_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    decide_at_once_on_early_batches(monkeypatch)
    (path,) = (path for path in KEPT if path.stem == "sent_again_in_a_new_epoch")
    failure = play(decode_schedule(path.read_text())).failure
    assert isinstance(failure, InvariantBroken)
    assert failure.invariant == "OrderedOnce"
