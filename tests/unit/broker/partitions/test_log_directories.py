"""Directories of partitions: their names when no partition uses them any more, and those that cannot be looked up."""

from collections.abc import Callable
from pathlib import Path

import pytest

from conveyor.adapters.disk import RealDisk
from conveyor.broker.partitions.log_directories import LogDirectories
from conveyor.cluster.assignment_diff import Close
from conveyor.cluster.image import ClusterImage
from conveyor.cluster.topic_creation import TopicRequest
from conveyor.kernel.errors import StorageFailure
from conveyor.kernel.ids import NodeId
from conveyor.log.log_parts import ExpectedLog
from conveyor.log.partition_directory import MARKER, encode_owner
from conveyor.log.segments.offset_file import CLEANED
from conveyor.replication.replica_facts import NAME, ReplicaKey
from conveyor.settings.tree import TopicSettings
from conveyor.testing import MemoryDisk
from tests.callers import CALLER
from tests.unit.broker.partitions.test_replica_checkpoint import DIRECTORY, elect_uncleanly, end_of, fill
from tests.unit.broker.parts import Storage, publish, running_parts


@pytest.mark.parametrize("may_be_new", [True, False])
async def test_directory_that_cannot_be_looked_up_concerns_its_partition_only(
    storage: Storage, may_be_new: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running_parts(storage=storage) as broker:
        topic = await broker.topics.create(CALLER, TopicRequest(name="t", partitions=1))
        directories: LogDirectories = broker.partitions.reconciler._logs.directories

        def exists(path: str) -> bool:
            raise StorageFailure(f"{path}: Input/output error")

        with monkeypatch.context() as failing:
            failing.setattr(storage.disk, "exists", exists)
            assert directories.has(topic, 0)
            opened = directories.open(topic, 0, TopicSettings(), ExpectedLog(may_be_new=may_be_new))
            assert isinstance(opened, StorageFailure)


LONGEST = "n" * 249


async def test_topic_with_the_longest_name_is_deleted_and_made_again(
    tmp_path: Path, storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(storage, "disk", RealDisk(tmp_path, 100))
    async with running_parts(storage=storage) as broker:
        await broker.topics.create(CALLER, TopicRequest(name=LONGEST, partitions=2))
        await broker.topics.delete(CALLER, LONGEST)
        await broker.partitions.reconciler.removed()
        assert not list((tmp_path / "logs").glob("n*"))
        await broker.topics.create(CALLER, TopicRequest(name=LONGEST, partitions=2))
        assert broker.partitions.table.offline() == {}


async def test_directories_with_the_longest_name_are_set_aside(tmp_path: Path, storage: Storage) -> None:
    async with running_parts(storage=storage) as broker:
        topics = [
            await broker.topics.create(CALLER, TopicRequest(name=LONGEST[:-1] + last, partitions=1)) for last in "ab"
        ]
        of_memory: LogDirectories = broker.partitions.reconciler._logs.directories
    directories = LogDirectories(
        disk=RealDisk(tmp_path, 100), clock=of_memory.clock, producers=of_memory.producers, probe=of_memory.probe
    )
    for topic in topics:
        (tmp_path / "logs" / f"{topic.name}-0").mkdir(parents=True)
        assert directories.set_aside(topic, 0) is None
        (tmp_path / "logs" / f"{topic.name}-0").mkdir()
        with pytest.raises(StorageFailure, match="is still there"):
            directories.check_room_aside(topic, 0)
    assert len(list((tmp_path / "logs").iterdir())) == 4
    directories.set_strays_aside(ClusterImage(), NodeId(1))
    directories.set_strays_aside(ClusterImage(), NodeId(1))
    kept = sorted(path.suffix for path in (tmp_path / "logs").iterdir())
    assert kept == [".damaged", ".damaged", ".stray", ".stray"]


@pytest.mark.parametrize("marker", [None, b"", b"version: 0\ntopic"])
@pytest.mark.parametrize("was_used", [True, False])
async def test_directory_without_an_id_is_of_no_partition_that_was_not_used(
    storage: Storage, marker: bytes | None, was_used: bool
) -> None:
    """After a power cut it may be that of a deleted topic, whose records would be the first ones of its successor."""
    async with running_parts(storage=storage) as broker:
        topic = await broker.topics.create(CALLER, TopicRequest(name="t", partitions=1))
        opening = broker.partitions.reconciler._logs
        image = broker.metadata.image
        if not was_used:
            opening.checkpoint.forget(ReplicaKey(topic.topic_id, 0))
    disk = storage.disk
    disk.remove(f"logs/t-0/{MARKER}")
    if marker is not None:
        disk.write_atomic(f"logs/t-0/{MARKER}", marker)
    opening.checkpoint._trusts_unlisted = False  # The file was there at the start.
    opening.directories.set_strays_aside(image, NodeId(1), opening.checkpoint.used)
    assert disk.exists("logs/t-0") is was_used


async def test_damaged_log_is_set_aside_once_that_is_durable(storage: Storage) -> None:
    """A power failure must not bring its name back when the checkpoint has forgotten it."""
    async with running_parts(storage=storage) as broker:
        topic = await broker.topics.create(CALLER, TopicRequest(name="t", partitions=1))
        directories: LogDirectories = broker.partitions.reconciler._logs.directories
        storage.disk.faults.fail("sync_directory")
        for _ in range(2):
            assert "sync_directory" in str(directories.set_aside(topic, 0))
        storage.disk.faults.heal()
        assert directories.set_aside(topic, 0) is None
        assert (storage.disk.exists("logs/t-0"), storage.disk.exists("logs/t-0.damaged")) == (False, True)


async def test_directory_that_is_to_be_kept_and_cannot_be_renamed_is_not_removed(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running_parts(storage=storage) as broker:
        topic = await broker.topics.create(CALLER, TopicRequest(name="t", partitions=1))
        logs = broker.partitions.reconciler._logs
        step = Close(topic, 0, is_deleted=False)
        rename, failures = storage.disk.rename, [StorageFailure("Input/output error")]

        def fail_once(old: str, new: str) -> None:
            if failures:
                raise failures.pop()
            rename(old, new)

        with monkeypatch.context() as failing:
            failing.setattr(storage.disk, "rename", fail_once)
            assert await logs.close([step], [step]) == []
        assert storage.disk.exists("logs/t-0")
        assert await logs.close([step], []) == [f"logs/t-0.{topic.topic_id.hex}.deleted"]


@pytest.mark.parametrize("is_listed", [True, False])
async def test_directory_whose_topic_id_is_damaged_stays_and_has_all_its_records_once_the_file_is_removed(
    storage: Storage, is_listed: bool
) -> None:
    """A flipped bit of a topic id makes another topic id, whose directory would be set aside."""
    await fill(storage)
    async with running_parts(storage=storage) as broker:
        await broker.topics.create(CALLER, TopicRequest(name="other", partitions=1))
    if not is_listed:
        storage.disk.remove(NAME)
    mark = f"{DIRECTORY}/{MARKER}"
    storage.disk.flip(mark, storage.disk.read(mark).index(b"topic_id: ") + 12, 1)
    for _ in range(2):
        async with running_parts(storage=storage) as broker:
            reason = broker.partitions.table.offline_reason("t", 0)
            topic_id = broker.metadata.image.topics["t"].topic_id
        assert reason is not None
        assert reason.startswith(
            f"{mark} is damaged, and may be removed if the directory belongs to topic id {topic_id}"
        )
        assert "stop the broker and restore" in reason
        assert sorted(storage.disk.list("logs")) == ["other-0", "t-0"]
    storage.disk.remove(mark)
    async with running_parts(storage=storage) as broker:
        assert (broker.partitions.table.offline(), end_of(broker)) == ({}, 3)
    assert storage.disk.read(mark) == encode_owner(topic_id)


def remove_segment(disk: MemoryDisk) -> str:
    path = f"{DIRECTORY}/{sorted(name for name in disk.list(DIRECTORY) if name.endswith('.log'))[1]}"
    disk.remove(path)
    return f"the log has a hole: {path} is missing, although it was on the disk"


def damage_offset(disk: MemoryDisk) -> str:
    disk.write_atomic(f"{DIRECTORY}/{CLEANED}", b"3 00000000\n")
    return f"{DIRECTORY}/{CLEANED} is damaged: its checksum does not match"


@pytest.mark.parametrize("damage", [remove_segment, damage_offset])
async def test_reason_for_a_damaged_log_says_how_its_only_replica_comes_back(
    storage: Storage, damage: Callable[[MemoryDisk], str]
) -> None:
    async with running_parts(storage=storage) as broker:
        await broker.topics.create(CALLER, TopicRequest(name="t", partitions=1, config={"segment.bytes": "1024"}))
        for _ in range(30):
            await publish(broker, ("t", 0))
    whole = storage.disk.process_crash()
    found = damage(storage.disk)
    reason = (
        f"{found}: unless another replica leads, from which the log is copied, stop the broker and restore the missing"
        " or damaged files, or move the partition's directory elsewhere to give its records up"
    )
    async with running_parts(storage=storage) as broker:
        assert broker.partitions.table.offline() == {"t-0": reason}
    damaged, storage.disk = storage.disk, whole
    async with running_parts(storage=storage) as broker:
        assert (broker.partitions.table.offline(), end_of(broker)) == ({}, 30)
    storage.disk = damaged
    storage.disk.rename(DIRECTORY, "elsewhere")
    async with running_parts(storage=storage) as broker:
        assert "conveyor cluster elect t --unclean --yes" in broker.partitions.table.offline()["t-0"]
        await elect_uncleanly(broker)
        assert (broker.partitions.table.offline(), end_of(broker)) == ({}, 0)
