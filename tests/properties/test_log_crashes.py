"""A log that crashes at any moment opens again and has all that it must not lose. `crashing_log` says what may happen.

Opening never raises, the log does not end below the checkpoint, nothing flushed is lost, and no record is missing
between two others. In as many other stories, one file is damaged: opening may then raise, and a loss must be said; see
`damaged_log`. `CRASH_STORIES` in the environment is the number of stories, of 60 operations each, by default 450;
`CRASH_SEED` is the seed of the first one. A failure names its seed: `CRASH_SEED=<seed> CRASH_STORIES=1` plays that
story alone.

The planted bugs prove that the stories find such bugs, some in one of 500 stories: each has a range of seeds that
contains a failing story. When the machine changes, so do the stories of the seeds.
"""

import os
from collections.abc import Callable
from random import Random

import msgspec
import pytest

from conveyor.kernel.errors import StorageFailure
from conveyor.log.flush import Flushes, FlushJob
from conveyor.log.following.leader_batches import RefusedBatch
from conveyor.log.following.truncation_job import Truncated, TruncationJob
from conveyor.log.leader_epochs import MAX_EPOCH
from conveyor.log.log_start import TrimJob
from conveyor.log.partition_directory import PartitionDirectory
from conveyor.log.recovery import recovery, segment_scan
from conveyor.log.segments.seal import FoundSeal
from conveyor.log.segments.segment import Segment
from conveyor.records.batch import BatchHeader
from conveyor.settings.tree import ProducerSettings
from conveyor.testing.memory_disk import MemoryFile
from tests.properties.crashing_log import CrashingLog
from tests.properties.damaged_log import DamagedLog

STORIES = int(os.environ.get("CRASH_STORIES", "450"))
FIRST_SEED = int(os.environ.get("CRASH_SEED", "0"))
STEPS = 60
FAILURES = (AssertionError, OverflowError, RefusedBatch, StorageFailure)
FOUND = r"lost \[|has a hole|are missing|is damaged|cannot follow|greater than maximum"
pytestmark = pytest.mark.timeout(max(600, STORIES))


def play(seeds: range, story: type[CrashingLog] = CrashingLog) -> None:
    for seed in seeds:
        play_story(story(Random(seed)), seed)


def play_story(log: CrashingLog, seed: int) -> None:
    try:
        for _ in range(STEPS):
            log.step()
    except FAILURES as failure:
        failure.add_note(f"CRASH_SEED={seed} CRASH_STORIES=1; the last operations: {', '.join(log.history[-12:])}")
        raise


def test_log_opens_after_any_crash_with_all_that_it_may_not_have_lost() -> None:
    play(range(FIRST_SEED, FIRST_SEED + STORIES))


def test_no_damaged_file_takes_a_flushed_record_without_a_word() -> None:
    play(range(FIRST_SEED, FIRST_SEED + STORIES), DamagedLog)


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
            if not any(self.exists(segment.files.path("log")) for segment in trimmed):
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
            segment.write_seal(ends_log=segment is self.active)
        plain_run(self)

    plain_run = FlushJob.run
    monkeypatch.setattr(FlushJob, "run", run)


def trust_the_page_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    """A start believes what it can read after a failed sync."""
    monkeypatch.setattr(MemoryFile, "reload", MemoryFile.sync)


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


def believe_any_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """A start does not compare a segment's size with its seal, but checks the segment instead."""
    monkeypatch.setattr(FoundSeal, "is_of_other_file", NEVER)


def believe_a_shorter_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """A start ignores that the log was longer at a clean stop."""
    monkeypatch.setattr(FoundSeal, "was_longer", NEVER)


def open_gaps_anywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """A log that may have gaps may have them everywhere."""

    def follows(next_offset: int, header: BatchHeader, dense_from: int) -> bool:
        return header.base_offset == next_offset or (dense_from > 0 and header.base_offset > next_offset)

    monkeypatch.setattr(segment_scan, "_follows", follows)


def cut_an_intact_batch_silently(monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch counts as torn although it is intact, if it does not continue the log and is the last one."""

    def was_complete(segment: Segment, position: int) -> bool:
        header = segment_scan._intact_batch(segment, position)
        return plain_was_complete(segment, position if header is None else position + header.size)

    plain_was_complete = segment_scan.was_complete
    monkeypatch.setattr(recovery, "was_complete", was_complete)


def cut_segments_silently(monkeypatch: pytest.MonkeyPatch) -> None:
    """Recovery cuts segments off without a word, although no power failure can have taken the end of the one below."""

    def cut_off(opening: recovery._Opening, segments: list[Segment], end_offset: int) -> None:
        plain_cut_off(msgspec.structs.replace(opening, has_cache=False), segments, end_offset)

    plain_cut_off = recovery._cut_off
    monkeypatch.setattr(recovery, "_cut_off", cut_off)


def forget_the_leader_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    """A start does not compare the log's leader epochs with that of the partition."""
    plain_expected = CrashingLog.expected
    monkeypatch.setattr(CrashingLog, "expected", lambda log: plain_expected(log)._replace(leader_epoch=MAX_EPOCH))


def count_what_follows_a_gap(monkeypatch: pytest.MonkeyPatch) -> None:
    """A log counts the records behind skipped offsets before the segment below them is flushed."""
    monkeypatch.setattr(Flushes, "recoverable_offset", property(lambda flushes: flushes._tail.written_offset))


NEVER = property(lambda _: False, lambda _, __: None)
PLANTED: dict[Callable[[pytest.MonkeyPatch], None], tuple[type[CrashingLog], range]] = {
    truncate_without_a_sync_below: (CrashingLog, range(240, 250)),
    remove_trimmed_segments_at_once: (CrashingLog, range(930, 940)),
    seal_before_the_sync: (CrashingLog, range(10)),
    trust_the_page_cache: (CrashingLog, range(30, 40)),
    leave_names_unsynced: (CrashingLog, range(10)),
    remove_before_the_log_start_is_stored: (CrashingLog, range(140, 150)),
    believe_any_size: (DamagedLog, range(100, 110)),
    believe_a_shorter_end: (DamagedLog, range(20, 30)),
    open_gaps_anywhere: (DamagedLog, range(220, 230)),
    cut_an_intact_batch_silently: (DamagedLog, range(100, 110)),
    cut_segments_silently: (DamagedLog, range(30, 40)),
    forget_the_leader_epoch: (DamagedLog, range(90, 100)),
    count_what_follows_a_gap: (CrashingLog, range(10, 20)),
}


@pytest.mark.parametrize("plant", PLANTED, ids=lambda plant: plant.__name__)
def test_a_planted_bug_is_found(plant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)
    story, seeds = PLANTED[plant]
    with pytest.raises(FAILURES, match=FOUND):
        play(seeds, story)
