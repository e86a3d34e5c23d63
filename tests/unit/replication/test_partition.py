"""A partition: where its high watermark is, who is told of it and when, and what happens when its disk fails."""

import pytest

from conveyor.kernel.errors import ERRORS, ErrorKind, OutOfFiles, RequestError, StorageFailure
from conveyor.replication.reads import check_leader_epoch, read_available
from conveyor.settings.tree import TopicSettings
from conveyor.testing import MemoryDisk
from tests.unit.log.logs import NOW_MS, open_topic_log, values
from tests.unit.replication.parts import Calls, Owner, batch

OS = TopicSettings(flush_policy="os")
OFFLINE = ErrorKind.PARTITION_OFFLINE


def refusal(owner: Owner) -> RequestError:
    with pytest.raises(RequestError) as refused:
        owner.partition.append(batch(b"a"), NOW_MS)
    return refused.value


def test_high_watermark_follows_the_flush_by_default() -> None:
    owner = Owner()
    partition = owner.partition
    partition.append(batch(b"a", b"b"), NOW_MS)
    assert (partition.term.high_watermark, owner.wanted) == (0, ["write"])
    partition.write()
    assert (partition.term.high_watermark, owner.wanted) == (0, ["write", "flush"])
    owner.flush()
    assert partition.term.high_watermark == 2


def test_high_watermark_follows_the_write_under_policy_os() -> None:
    owner = Owner(OS)
    owner.partition.append(batch(b"a", b"b"), NOW_MS)
    owner.partition.write()
    assert (owner.partition.term.high_watermark, owner.wanted) == (2, ["write"])


def test_closed_segment_is_flushed_under_policy_os_by_one_request() -> None:
    """Otherwise it could never be removed or compacted, and its file and indexes would stay open."""
    owner = Owner(TopicSettings(flush_policy="os", segment_bytes=2 * len(batch(b"a").content)))
    partition = owner.partition

    def wanted() -> list[str]:
        owner.wanted.clear()
        partition.append(batch(b"a"), NOW_MS)
        partition.write()
        return owner.wanted

    assert [wanted(), wanted()] == [["write"], ["write"]]
    assert wanted() == ["write", "flush"]
    job = partition.begin_flush()
    assert job is not None
    assert wanted() == ["write"], "the flush in progress seals it"
    assert wanted() == ["write", "flush"]
    assert partition.term.high_watermark == 5, "no reply waits for a flush"
    job.run()
    partition.complete_flush(job, None)
    owner.flush()
    assert [segment.sealed for segment in partition.log.segments.all] == [True, True, False]
    assert wanted() == ["write"]


def test_high_watermark_rises_to_what_the_flush_began_with() -> None:
    owner = Owner()
    owner.partition.append(batch(b"a"), NOW_MS)
    owner.partition.write()
    job = owner.partition.begin_flush()
    assert job is not None
    owner.partition.append(batch(b"b"), NOW_MS)
    owner.partition.write()
    job.run()
    owner.partition.complete_flush(job, None)
    assert owner.partition.term.high_watermark == 1
    owner.flush()
    assert owner.partition.term.high_watermark == 2


def test_partition_starts_at_what_was_recovered() -> None:
    owner = Owner()
    owner.partition.append(batch(b"a"), NOW_MS)
    owner.partition.write()
    again = Owner(disk=owner.disk).partition
    assert again.term.high_watermark == again.log.log_end_offset == 1


def test_partition_wants_one_write_a_tick() -> None:
    owner = Owner()
    for _ in range(3):
        owner.partition.append(batch(b"a"), NOW_MS)
    assert owner.wanted == ["write"]
    owner.partition.write()
    owner.wanted.clear()
    owner.partition.append(batch(b"a"), NOW_MS)
    assert owner.wanted == ["write"]


def test_begin_flush_without_anything_to_flush_is_nothing() -> None:
    owner = Owner()
    owner.partition.append(batch(b"a"), NOW_MS)
    owner.settle()
    assert owner.partition.begin_flush() is None


def test_waiters_are_called_once_when_their_offset_is_reached() -> None:
    owner, calls = Owner(), Calls()
    for value in (b"a", b"b"):
        end = owner.partition.append(batch(value), NOW_MS).last_offset + 1
        owner.partition.term.when_written(end, calls.named(f"written {end}"))
        owner.partition.term.when_committed(end, calls.named(f"committed {end}"))
    assert calls.seen == []
    owner.partition.write()
    assert calls.seen == [("written 1", None), ("written 2", None)]
    owner.flush()
    assert calls.seen[2:] == [("committed 1", None), ("committed 2", None)]
    owner.partition.append(batch(b"c"), NOW_MS)
    owner.settle()
    assert len(calls.seen) == 4


def test_waiter_for_what_is_reached_is_called_at_once() -> None:
    owner, calls = Owner(), Calls()
    owner.partition.term.when_written(0, calls)
    owner.partition.term.when_committed(0, calls)
    assert calls.seen == [("", None), ("", None)]


def test_waiter_for_a_part_waits_for_its_own_offset_only() -> None:
    owner, calls = Owner(), Calls()
    owner.partition.append(batch(b"a"), NOW_MS)
    owner.partition.term.when_committed(1, calls.named("first"))
    owner.partition.write()
    job = owner.partition.begin_flush()
    assert job is not None
    owner.partition.append(batch(b"b"), NOW_MS)
    owner.partition.term.when_committed(2, calls.named("second"))
    job.run()
    owner.partition.complete_flush(job, None)
    assert calls.seen == [("first", None)]


def test_listeners_are_called_at_each_rise() -> None:
    owner, rises = Owner(OS), list[int]()
    owner.partition.changed.listen(lambda _: rises.append(owner.partition.term.high_watermark))
    owner.partition.write()
    for _ in range(2):
        owner.partition.append(batch(b"a"), NOW_MS)
        owner.partition.write()
    assert rises == [1, 2]


def test_read_shows_only_what_is_below_the_high_watermark() -> None:
    owner = Owner()
    owner.partition.append(batch(b"a"), NOW_MS)
    owner.partition.write()
    assert [read_available(owner.partition, offset, 1000, at_least_one=True) for offset in (0, 1)] == [None, None]
    with pytest.raises(RequestError) as refused:
        read_available(owner.partition, 2, 1000, at_least_one=True)
    assert refused.value.kind is ErrorKind.OFFSET_OUT_OF_RANGE
    owner.flush()
    found = read_available(owner.partition, 0, 1000, at_least_one=True)
    assert found is not None
    assert found.length == owner.partition.log.segments.size_bytes


@pytest.mark.parametrize(
    ("epoch", "kind"), [(2, ErrorKind.FENCED_LEADER_EPOCH), (4, ErrorKind.UNKNOWN_LEADER_EPOCH), (3, None), (-1, None)]
)
def test_leader_epoch_of_a_client_is_checked(epoch: int, kind: ErrorKind | None) -> None:
    partition = Owner().partition
    if kind is None:
        return check_leader_epoch(partition, epoch)
    with pytest.raises(RequestError) as refused:
        check_leader_epoch(partition, epoch)
    assert refused.value.kind is kind


def test_replicas_that_are_not_there_are_not_promised() -> None:
    Owner().partition.term.check_replicas()
    with pytest.raises(RequestError) as refused:
        Owner(TopicSettings(min_insync_replicas=2)).partition.term.check_replicas()
    assert refused.value.kind is ErrorKind.NOT_ENOUGH_REPLICAS


@pytest.mark.parametrize("operation", ["append", "sync", "sync_directory"])
def test_failing_disk_takes_the_partition_offline_and_tells_everybody(operation: str) -> None:
    owner, calls = Owner(), Calls()
    owner.partition.append(batch(b"a"), NOW_MS)
    owner.partition.term.when_written(1, calls.named("written"))
    owner.partition.term.when_committed(1, calls.named("committed"))
    owner.partition.changed.listen(lambda _: calls.named("listener")(None))
    owner.disk.faults.fail(operation)
    owner.settle()
    written = None if operation != "append" else OFFLINE
    assert calls.seen == [("written", written), ("committed", OFFLINE), ("listener", None)]
    assert f"{operation} failed" in (owner.partition.offline.reason or "")
    assert owner.partition.term.high_watermark == 0


def test_full_disk_at_a_roll_refuses_the_append_and_goes_offline() -> None:
    owner = Owner(TopicSettings(segment_bytes=1))
    owner.partition.append(batch(b"a"), NOW_MS)
    owner.disk.faults.free_bytes = 0
    error = refusal(owner)
    assert error.kind is OFFLINE
    assert "t-0 is offline: " in error.message
    assert "No space left on device" in error.message


def test_offline_partition_serves_nothing_and_keeps_its_first_reason() -> None:
    owner = Owner()
    owner.partition.append(batch(b"a"), NOW_MS)
    owner.partition.go_offline(StorageFailure("the first reason"))
    owner.partition.go_offline(StorageFailure("another reason"))
    owner.partition.write()
    assert refusal(owner).kind is OFFLINE
    assert owner.partition.begin_flush() is None
    assert owner.partition.offline.reason == "the first reason"
    with pytest.raises(RequestError) as refused:
        owner.partition.leading()
    assert refused.value.kind is OFFLINE
    assert values(open_topic_log(owner.disk)) == []


def test_waiter_of_an_offline_partition_is_told_at_once() -> None:
    owner, calls = Owner(), Calls()
    owner.partition.append(batch(b"a"), NOW_MS)
    owner.partition.go_offline(StorageFailure("the reason"))
    owner.partition.term.when_written(1, calls.named("written"))
    owner.partition.term.when_committed(1, calls.named("committed"))
    assert calls.seen == [("written", OFFLINE), ("committed", OFFLINE)]


def test_waiter_may_wait_again_when_the_partition_goes_offline() -> None:
    owner, calls = Owner(), Calls()

    def again(error: RequestError | None) -> None:
        calls.named("first")(error)
        owner.partition.term.when_committed(1, calls.named("again"))

    owner.partition.append(batch(b"a"), NOW_MS)
    owner.partition.term.when_committed(1, again)
    owner.partition.go_offline(StorageFailure("the reason"))
    assert calls.seen == [("first", OFFLINE), ("again", OFFLINE)]


def test_partition_that_ends_during_a_flush_acknowledges_nothing_more() -> None:
    owner, calls = Owner(), Calls()
    owner.partition.append(batch(b"a"), NOW_MS)
    owner.partition.term.when_committed(1, calls)
    owner.partition.write()
    job = owner.partition.begin_flush()
    assert job is not None
    owner.partition.end("its topic was deleted")
    job.run()
    owner.partition.complete_flush(job, None)
    assert calls.seen == [("", OFFLINE)]
    assert owner.partition.term.high_watermark == 0


def test_read_of_a_damaged_log_takes_the_partition_offline() -> None:
    disk = MemoryDisk()
    owner = Owner(TopicSettings(index_interval_bytes=1 << 20), disk)
    for _ in range(3):
        owner.partition.append(batch(b"a"), NOW_MS)
    owner.settle()
    disk.faults.fail("read")
    with pytest.raises(RequestError) as refused:
        read_available(owner.partition, 1, 1, at_least_one=True)
    assert refused.value.kind is OFFLINE
    assert owner.partition.offline.reason is not None


def test_read_that_finds_too_many_open_files_leaves_the_partition_online(monkeypatch: pytest.MonkeyPatch) -> None:
    owner = Owner()
    partition = owner.partition
    partition.append(batch(b"a"), NOW_MS)
    partition.write()
    owner.flush()

    def check(operation: str, path: str) -> None:
        if operation == "read":
            raise OutOfFiles(f"{path}: Too many open files")

    with monkeypatch.context() as patch:
        patch.setattr(owner.disk, "check", check)
        with pytest.raises(RequestError, match=r"cannot be read now: .*Too many open files") as refused:
            read_available(partition, 0, 10, at_least_one=True)
    assert ERRORS[refused.value.kind].retriable
    assert partition.offline.reason is None
    assert read_available(partition, 0, 10, at_least_one=True) is not None


def test_append_that_finds_too_many_open_files_takes_the_partition_offline(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was acknowledged to nobody yet is not tried again behind the producer's back."""
    owner = Owner()

    def check(operation: str, path: str) -> None:
        raise OutOfFiles(f"{path}: Too many open files")

    monkeypatch.setattr(owner.disk, "check", check)
    owner.partition.append(batch(b"a"), NOW_MS)
    owner.partition.write()
    assert refusal(owner).kind is OFFLINE
