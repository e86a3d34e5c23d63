"""Trimming: only a leader trims, and a failing disk leaves the log as it was."""

import pytest

from conveyor.kernel.errors import ErrorKind, OutOfFiles, RequestError
from conveyor.kernel.ids import LeaderEpoch, NodeId
from conveyor.replication.roles import Follower
from conveyor.replication.trimming import CommittedLimits, RetentionLimits, delete_records, retain
from conveyor.settings.tree import TopicSettings
from conveyor.testing.memory_disk import MemoryFile
from tests.unit.log.logs import NOW_MS, all_below
from tests.unit.replication.parts import EPOCH, Owner, batch


def test_limits_count_once_the_state_has_committed_what_they_follow_from() -> None:
    """Under a steady flow of records those of an earlier look; what is to be delivered again counts at once."""
    state = Owner()
    limits = CommittedLimits(state.partition, kept_offset=4)
    looks = []
    for kept, settled, commits in ((9, 9, False), (12, 12, True), (None, 15, False), (20, 20, False), (3, 2, True)):
        state.partition.append(batch(b"a"), NOW_MS)
        if commits:
            state.settle()
            state.partition.append(batch(b"a"), NOW_MS)
        looks.append(tuple(limits.look(RetentionLimits(kept, settled))))
    assert looks == [(4, 0), (9, 9), (9, 9), (9, 9), (3, 2)]
    state.settle()
    assert limits.look(RetentionLimits(None, 30)) == (None, 30)


def test_only_the_leader_trims() -> None:
    """Only it knows what its queue has settled; a follower takes its leader's log start."""
    owner = Owner(TopicSettings(segment_bytes=200, retention_bytes=1))
    for _ in range(5):
        owner.partition.append(batch(b"a" * 100), NOW_MS)
        owner.settle()
    owner.partition.assume(Follower(leader=NodeId(2), epoch=LeaderEpoch(EPOCH + 1)))
    assert retain(owner.partition, NOW_MS) is None
    with pytest.raises(RequestError) as refused:
        delete_records(owner.partition, 4)
    assert refused.value.kind is ErrorKind.NOT_LEADER
    assert owner.partition.log.log_start_offset == 0


def test_log_without_a_cleanup_policy_keeps_all_that_nobody_deletes() -> None:
    owner = Owner(TopicSettings(segment_bytes=200, retention_bytes=1, retention_ms=1, cleanup_policy=""))
    for _ in range(5):
        owner.partition.append(batch(b"a" * 100), NOW_MS)
        owner.settle()
    log, long_after_ms = owner.partition.log, NOW_MS * 2
    segments = len(log.segments.all)
    assert retain(owner.partition, long_after_ms) is None
    assert log.compaction.plan(all_below(log.flushes.flushed_offset), long_after_ms, 1000) is None
    assert (log.log_start_offset, len(log.segments.all)) == (0, segments), "the active segment is not closed, either"
    assert delete_records(owner.partition, 4).log_start_offset == 4
    assert len(log.segments.all) < segments


def test_trim_that_finds_too_many_open_files_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The log keeps what it would have let go; the next attempt trims it."""
    owner = Owner(TopicSettings(segment_bytes=200, retention_bytes=1))
    for _ in range(5):
        owner.partition.append(batch(b"a" * 100), NOW_MS)
        owner.settle()
    segments = owner.partition.log.segments.all

    def fails(file: MemoryFile) -> None:
        raise OutOfFiles(f"{file.path}: Too many open files")

    with monkeypatch.context() as patched:
        patched.setattr(MemoryFile, "detach", fails)
        assert retain(owner.partition, NOW_MS) is None
        with pytest.raises(RequestError) as refused:
            delete_records(owner.partition, 4)
        assert refused.value.kind is ErrorKind.PARTITION_OFFLINE
    assert (owner.partition.offline.reason, owner.partition.log.log_start_offset) == (None, 0)
    assert owner.partition.log.segments.all == segments
    job = retain(owner.partition, NOW_MS)
    assert job is not None
    assert job.log_start_offset > 0
