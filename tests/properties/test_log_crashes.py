"""A log that crashes at any moment opens again and has all that it must not lose. `crashing_log` says what may happen.

Opening never raises, the log does not end below the checkpoint, nothing flushed is lost, and no record is missing
between two others. `CRASH_STORIES` in the environment is the number of stories, of 60 operations each, by default 900;
`CRASH_SEED` is the seed of the first one. A failure names its seed: `CRASH_SEED=<seed> CRASH_STORIES=1` plays that
story alone.

The planted bugs prove that the stories find such bugs, some in one of 500 stories: each has a range of seeds that
contains a failing story. When the machine changes, so do the stories of the seeds.
"""

import os
from collections.abc import Callable
from random import Random

import pytest

from conveyor.kernel.errors import StorageFailure
from conveyor.log.flush import FlushJob
from conveyor.log.partition_directory import PartitionDirectory
from conveyor.log.recovery import recovery
from conveyor.log.segments.segment import Segment
from conveyor.log.segments.trim import TrimJob
from conveyor.log.truncation_job import Truncated, TruncationJob
from conveyor.settings.tree import ProducerSettings
from conveyor.testing.memory_disk import MemoryFile
from tests.properties.crashing_log import CrashingLog

STORIES = int(os.environ.get("CRASH_STORIES", "900"))
FIRST_SEED = int(os.environ.get("CRASH_SEED", "0"))
STEPS = 60
pytestmark = pytest.mark.timeout(max(300, STORIES))


def play(seeds: range) -> None:
    for seed in seeds:
        play_story(seed)


def play_story(seed: int) -> None:
    log = CrashingLog(Random(seed))
    try:
        for _ in range(STEPS):
            log.step()
    except (AssertionError, StorageFailure) as failure:
        failure.add_note(f"CRASH_SEED={seed} CRASH_STORIES=1; the last operations: {', '.join(log.history[-12:])}")
        raise


def test_log_opens_after_any_crash_with_all_that_it_may_not_have_lost() -> None:
    play(range(FIRST_SEED, FIRST_SEED + STORIES))


def truncate_without_a_sync_below(monkeypatch: pytest.MonkeyPatch) -> None:
    """A truncation seals a segment while those below it are not on the disk."""

    def run(self: TruncationJob) -> Truncated:
        below = [segment.file for segment in self.below]
        with monkeypatch.context() as lying:
            lying.setattr(MemoryFile, "sync", lambda file: None if file in below else plain_sync(file))
            return plain_run(self)

    plain_sync, plain_run = MemoryFile.sync, TruncationJob.run
    monkeypatch.setattr(TruncationJob, "run", run)


def remove_trimmed_segments_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A start removes the segments below the log start while the names of later ones are not on the disk."""

    def remove_trimmed(
        opening: recovery._Opening, trimmed: list[Segment], first: int, sealed: set[int], settings: ProducerSettings
    ) -> None:
        def sync_directory(self: PartitionDirectory, path: str) -> None:
            if not any(self.exists(segment.path("log")) for segment in trimmed):
                plain_sync(self, path)

        with monkeypatch.context() as lying:
            lying.setattr(PartitionDirectory, "sync_directory", sync_directory)
            plain_remove(opening, trimmed, first, sealed, settings)

    plain_sync, plain_remove = PartitionDirectory.sync_directory, recovery._remove_trimmed
    monkeypatch.setattr(recovery, "_remove_trimmed", remove_trimmed)


def seal_before_the_sync(monkeypatch: pytest.MonkeyPatch) -> None:
    """A flush seals segments before their content is on the disk."""

    def run(self: FlushJob) -> None:
        for segment in self.closed:
            segment.write_indexes(segment.encoded_indexes(ends_log=segment is self.active))
        plain_run(self)

    plain_run = FlushJob.run
    monkeypatch.setattr(FlushJob, "run", run)


def leave_names_unsynced(monkeypatch: pytest.MonkeyPatch) -> None:
    """A flush does not sync the directory."""
    monkeypatch.setattr(FlushJob, "directory_changed", False)


def remove_before_the_log_start_is_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    """A trim removes the segments first."""

    def run(self: TrimJob) -> None:
        for path in self.removed_paths:
            self.disk.remove(path)
        plain_run(self)

    plain_run = TrimJob.run
    monkeypatch.setattr(TrimJob, "run", run)


PLANTED: dict[Callable[[pytest.MonkeyPatch], None], range] = {
    truncate_without_a_sync_below: range(390, 400),
    remove_trimmed_segments_at_once: range(720, 730),
    seal_before_the_sync: range(10),
    leave_names_unsynced: range(10),
    remove_before_the_log_start_is_stored: range(100, 110),
}


@pytest.mark.parametrize("plant", PLANTED, ids=lambda plant: plant.__name__)
def test_a_planted_bug_is_found(plant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)
    with pytest.raises((AssertionError, StorageFailure), match=r"^lost \[|has a hole|are missing|is damaged"):
        play(PLANTED[plant])
