"""What a broker's data directory knows of its logs, and what a start makes of it; here with an embedded store."""

import logging
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from random import Random

import pytest

from conveyor.broker.broker_node import BrokerNode
from conveyor.broker.partitions.replica_checkpoint import MOST_INCARNATIONS, ReplicaCheckpoint, key_of
from conveyor.broker.tasks import Tasks
from conveyor.cluster.controller.elections import ElectionRequest
from conveyor.cluster.controller.partition_transition import Election
from conveyor.cluster.image import NO_LEADER
from conveyor.cluster.topic_creation import TopicRequest
from conveyor.kernel.errors import ErrorKind, LogDiverged, RequestError, StorageFailure, TransientFailure
from conveyor.log.checked_file import read_checked
from conveyor.replication.replica_facts import NAME, DirectoryFacts, decode_facts
from conveyor.settings.tree import TopicSettings
from conveyor.testing import MemoryDisk
from tests.callers import CALLER
from tests.unit.broker.parts import NOW_MS, LosesAll, Storage, publish, running_parts
from tests.unit.broker.room_services import room_services
from tests.unit.log import logs
from tests.unit.log.following.test_leader_copy import stored as leader_batch
from tests.unit.log.forgetful_disk import ForgetfulDisk
from tests.unit.log.logs import allow_gaps
from tests.unit.replication.parts import EPOCH, Owner, batch, followed, led

DIRECTORY = "logs/t-0"
SEGMENT = f"{DIRECTORY}/{0:020}.log"


def stored(storage: Storage) -> DirectoryFacts:
    facts = decode_facts(read_checked(storage.disk, NAME))
    assert facts is not None
    return facts


def expected_end(storage: Storage) -> tuple[int, int]:
    """Return what the directory knows of its last replica: high watermark and flushed offset."""
    replica = stored(storage).replicas[-1]
    return replica.high_watermark, replica.flushed_offset


async def fill(storage: Storage, count: int = 3) -> None:
    async with running_parts(storage=storage) as broker:
        await broker.topics.create(CALLER, TopicRequest(name="t", partitions=1))
        for _ in range(count):
            await publish(broker, ("t", 0))


def end_of(broker: BrokerNode) -> int:
    return broker.partitions.table.find("t", 0).log.log_end_offset


async def elect_uncleanly(broker: BrokerNode) -> None:
    request = ElectionRequest(topic="t", partition=0, election=Election.UNCLEAN)
    assert await broker.topics.operations.elect(CALLER, [request]) == [None]
    await broker.metadata.applied.settled(broker.metadata.image.seq)


def listing(owner: Owner, storage: Storage, broker: BrokerNode) -> ReplicaCheckpoint:
    """Return the checkpoint of a new directory that has the owner's log."""
    made = checkpoint(storage.disk, broker)
    made.load((), is_new=True)
    broker.partitions.table.put(owner.partition)
    made.add(key_of(owner.partition), owner.partition.log)
    return made


async def test_log_is_listed_before_it_is_used(storage: Storage) -> None:
    async with running_parts(storage=storage) as broker:
        topic = await broker.topics.create(CALLER, TopicRequest(name="t", partitions=2))
        assert [replica.key for replica in stored(storage).replicas] == [(topic.topic_id, 0), (topic.topic_id, 1)]
    assert [replica.high_watermark for replica in stored(storage).replicas] == [0, 0]


async def test_clean_stop_stores_the_high_watermarks(storage: Storage) -> None:
    await fill(storage)
    [replica] = stored(storage).replicas
    assert (replica.high_watermark, replica.flushed_offset, replica.is_unflushed) == (3, 3, False)


async def test_deleted_topic_is_forgotten(storage: Storage) -> None:
    await fill(storage)
    async with running_parts(storage=storage) as broker:
        await broker.topics.delete(CALLER, "t")
        again = await broker.topics.create(CALLER, TopicRequest(name="t", partitions=1))
        assert broker.partitions.table.offline() == {}
    assert [replica.key for replica in stored(storage).replicas] == [(again.topic_id, 0)]


async def test_start_without_changes_writes_nothing(storage: Storage) -> None:
    await fill(storage)
    storage.disk.faults.fail("write_atomic")
    async with running_parts(storage=storage) as broker:
        assert end_of(broker) == 3


async def test_lost_directory_is_not_made_again_in_silence(storage: Storage, caplog: pytest.LogCaptureFixture) -> None:
    await fill(storage)
    kept = storage.disk.process_crash()
    storage.disk.remove_tree(DIRECTORY)
    for _ in range(2):
        async with running_parts(storage=storage) as broker:
            with pytest.raises(RequestError, match="logs/t-0 is missing, and was used before") as refusal:
                broker.partitions.table.find("t", 0)
            assert refusal.value.kind is ErrorKind.PARTITION_OFFLINE
            assert "conveyor cluster elect t --unclean --yes" in refusal.value.message
            partition = broker.metadata.image.topics["t"].partitions[0]
            assert (partition.leader, partition.isr) == (NO_LEADER, ())
    assert "partition offline partition=t-0" in caplog.text
    assert not storage.disk.exists(DIRECTORY)
    storage.disk = kept
    async with running_parts(storage=storage) as broker:
        await elect_uncleanly(broker)
        assert end_of(broker) == 3, "the directory was restored"
        assert (await publish(broker, ("t", 0)))[0].error is None


async def test_lost_records_are_given_up_by_an_unclean_election(storage: Storage) -> None:
    await fill(storage)
    storage.disk.remove_tree(DIRECTORY)
    async with running_parts(storage=storage) as broker:
        await elect_uncleanly(broker)
        assert end_of(broker) == 0
        assert (await publish(broker, ("t", 0)))[0].error is None
    async with running_parts(storage=storage) as broker:
        assert (broker.partitions.table.offline(), end_of(broker)) == ({}, 1)
    storage.disk.remove_tree(DIRECTORY)
    async with running_parts(storage=storage) as broker:
        assert "t-0" in broker.partitions.table.offline(), "the election has given up what was lost before it"


async def test_only_replica_whose_end_is_lost_leads_and_says_so(
    storage: Storage, caplog: pytest.LogCaptureFixture
) -> None:
    await fill(storage)
    storage.disk.remove(f"{DIRECTORY}/{0:020}.seal")
    file = storage.disk.open(SEGMENT)
    file.truncate(file.size - 1)
    async with running_parts(storage=storage) as broker:
        assert end_of(broker) == 2
    assert "records lost: logs/t-0 ends at offset 2, and was on the disk up to 3" in caplog.text


@pytest.mark.parametrize("flips", [True, False])
async def test_damaged_checkpoint_makes_every_missing_log_a_lost_one(storage: Storage, flips: bool) -> None:
    """Nothing else proves that a directory is complete."""
    await fill(storage)
    storage.disk.remove_tree(DIRECTORY)
    if flips:
        storage.disk.open(NAME).written[20] ^= 4
    else:
        storage.disk.remove(NAME)
    async with running_parts(storage=storage) as broker:
        assert ("t-0" in broker.partitions.table.offline()) == flips


async def test_broker_with_a_damaged_checkpoint_has_new_logs_once_it_has_opened_the_old_ones(storage: Storage) -> None:
    await fill(storage)
    storage.disk.remove_tree(DIRECTORY)
    storage.disk.open(NAME).written[20] ^= 4
    for name in ("new", "newer"):
        async with running_parts(storage=storage) as broker:
            await broker.topics.create(CALLER, TopicRequest(name=name, partitions=1))
            await publish(broker, (name, 0))
            assert list(broker.partitions.table.offline()) == ["t-0"]


@pytest.mark.slow
async def test_directory_that_a_power_cut_removes_was_not_listed(storage: Storage) -> None:
    """Whenever the power is cut: a log that is listed is there, and no record of one that is not was acknowledged."""
    for operations in range(60):
        fresh = Storage()
        fresh.disk.faults.call_after(operations, lambda: None)
        with suppress(StorageFailure, RequestError):
            async with running_parts(storage=fresh) as broker:
                with suppress(RequestError):
                    await broker.topics.create(CALLER, TopicRequest(name="t", partitions=1))
                    await publish(broker, ("t", 0))
        after = Storage()
        after.store, after.disk = fresh.store, fresh.disk.power_cut(LosesAll())
        async with running_parts(storage=after) as broker:
            assert broker.partitions.table.offline() == {}


async def test_log_that_cannot_be_listed_is_not_used_until_it_can(storage: Storage) -> None:
    async with running_parts(storage=storage) as broker:
        storage.disk.faults.fail("write_atomic")
        await broker.topics.create(CALLER, TopicRequest(name="t", partitions=1))
        assert "replica-checkpoint cannot be written" in str(broker.partitions.table.offline_reason("t", 0))
        storage.disk.faults.heal()
        while broker.partitions.table.offline():
            storage.clock.advance(seconds=1)
            await broker.partitions.reconciler.reopen(next(iter(broker.partitions.table.failed())))
        assert (await publish(broker, ("t", 0)))[0].error is None


def checkpoint(disk: MemoryDisk, broker: BrokerNode, cache_id: str = "cache") -> ReplicaCheckpoint:
    """That of a broker of a cluster. Its threads end with the process."""
    services = room_services(broker.clock, Tasks(lambda _: None))
    services.threads = ThreadPoolExecutor(1)
    return ReplicaCheckpoint(services, broker.partitions.table, disk, cache_id=cache_id, is_alone=False)


async def test_directory_knows_its_incarnations_from_the_one_that_the_image_shows(storage: Storage) -> None:
    async with running_parts(storage=Storage()) as broker:
        made = checkpoint(storage.disk, broker)
        made.load((), is_new=True)
        assert await made.claim("a", "") == ("a",)
        assert await made.claim("b", "a") == ("a", "b")
        assert await made.claim("b", "a") == ("a", "b")
        assert await made.claim("c", "b") == ("b", "c")
        assert stored(storage).incarnations == ("b", "c")
        for number in range(100):
            known = await made.claim(str(number), "b")
        assert (known[0], known[-1], len(known)) == ("b", "99", MOST_INCARNATIONS)
        again = checkpoint(storage.disk, broker)
        again.load((), is_new=False)
        assert (await again.claim("next", "97"))[:3] == ("97", "98", "99")


async def test_incarnation_that_cannot_be_stored_is_not_claimed(storage: Storage) -> None:
    async with running_parts(storage=Storage()) as broker:
        made = checkpoint(storage.disk, broker)
        made.load((), is_new=True)
        storage.disk.faults.fail("write_atomic")
        with pytest.raises(TransientFailure, match="replica-checkpoint cannot be written"):
            await made.claim("a", "")
        storage.disk.faults.heal()
        assert await made.claim("a", "") == ("a",)
        assert stored(storage).incarnations == ("a",)


SOFT, HARD = (TopicSettings(flush_policy=policy) for policy in ("os", "ack"))


def appended(owner: Owner) -> None:
    owner.partition.append(batch(b"record"), NOW_MS)
    owner.partition.write()


async def test_replica_may_be_unflushed_until_all_is_flushed_that_counted_before(storage: Storage) -> None:
    async with running_parts(storage=Storage()) as broker:
        owner = Owner(SOFT)
        made = checkpoint(storage.disk, broker)
        made.load((), is_new=True)
        broker.partitions.table.put(owner.partition)
        made.add(key_of(owner.partition), owner.partition.log)
        made.settle()

        async def is_unflushed() -> bool:
            await made.write()
            return stored(storage).replicas[-1].is_unflushed

        appended(owner)
        assert owner.partition.term.high_watermark == 1
        assert await is_unflushed()
        assert stored(storage).replicas[-1].flushed_offset == 0
        owner.partition.use(HARD)
        assert await is_unflushed()
        appended(owner)
        assert await is_unflushed()
        owner.flush()
        assert not await is_unflushed()
        broker.partitions.table.remove(owner.partition.identity)


async def test_doubt_survives_another_crash_until_it_is_settled(storage: Storage) -> None:
    async with running_parts(storage=Storage()) as broker:
        owner = Owner(SOFT)
        key = key_of(owner.partition)
        made = checkpoint(storage.disk, broker)
        made.load((), is_new=True)
        made.add(key, owner.partition.log)
        made.settle()
        await made.write()
        owner.partition.use(HARD)
        broker.partitions.table.put(owner.partition)
        for _ in range(2):
            again = checkpoint(storage.disk, broker, cache_id="another")
            again.load({key}, is_new=False)
            assert again.is_unproven(key, owner.partition.log)
            again.add(key, owner.partition.log)
            await again.write()
        again.settle()
        await again.write()
        last = checkpoint(storage.disk, broker, cache_id="another")
        last.load({key}, is_new=False)
        assert not last.is_unproven(key, owner.partition.log)
        broker.partitions.table.remove(owner.partition.identity)


async def test_log_that_is_opened_again_must_have_all_that_its_process_knew_to_be_committed(storage: Storage) -> None:
    """Also one that is offline because its leader lacks that: the file may be five seconds old."""
    async with running_parts(storage=Storage()) as broker:
        owner = Owner()
        made = listing(owner, storage, broker)
        await made.write()
        for _ in range(3):
            appended(owner)
            owner.flush()
        owner.partition.go_offline(LogDiverged("its leader lacks records"))
        key = key_of(owner.partition)
        assert made.expected(key, None).high_watermark == 0
        expected = made.expected(key, owner.partition)
        assert (expected.end_offset, expected.high_watermark) == (3, 3)
        await made.write()
        assert expected_end(storage) == (3, 3)
        broker.partitions.table.remove(owner.partition.identity)


@pytest.mark.parametrize(("topic", "end_offset"), [(HARD, 0), (SOFT, 1)])
async def test_log_must_have_after_a_kill_what_its_replica_has_reported(
    storage: Storage, topic: TopicSettings, end_offset: int
) -> None:
    """A follower out of sync writes what others have committed. Its disk may refuse that: nobody has counted it."""
    async with running_parts(storage=Storage()) as broker:
        owner = Owner(topic)
        made = listing(owner, storage, broker)
        key, partition = key_of(owner.partition), owner.partition
        partition.assume(led(partition).role.resigned())
        partition.append_as_follower(leader_batch(logs.batch(b"a"), 0, EPOCH), NOW_MS)
        partition.write()
        followed(partition).follow(1, 0)
        await made.write()
        assert expected_end(storage) == (1, 0)
        again = checkpoint(storage.disk, broker)
        again.load({key}, is_new=False)
        expected = again.expected(key, None)
        assert (expected.end_offset, expected.high_watermark) == (end_offset, 1)
        broker.partitions.table.remove(partition.identity)


async def test_files_are_cut_once_the_directory_expects_no_more(storage: Storage) -> None:
    async with running_parts(storage=Storage()) as broker:
        owner = Owner()
        made = listing(owner, storage, broker)
        for _ in range(3):
            appended(owner)
            owner.flush()
        await made.write()
        assert stored(storage).replicas[-1].high_watermark == 3
        storage.disk.faults.fail("write_atomic")
        await made.lower(owner.partition)
        owner.partition.assume(led(owner.partition).role.resigned())
        owner.partition.log.truncation.truncate_to(1)
        followed(owner.partition).cut()
        with pytest.raises(TransientFailure):
            await made.lower(owner.partition)
        storage.disk.faults.heal()
        await made.lower(owner.partition)
        assert stored(storage).replicas[-1].high_watermark == 1
        broker.partitions.table.remove(owner.partition.identity)


async def test_log_that_begins_again_higher_is_not_expected_there_before_its_files_are(storage: Storage) -> None:
    async with running_parts(storage=Storage()) as broker:
        owner = Owner()
        made = listing(owner, storage, broker)
        appended(owner)
        owner.flush()
        await made.write()
        owner.partition.assume(led(owner.partition).role.resigned())
        log = owner.partition.log
        log.truncation.restart_at(32)
        followed(owner.partition).cut()
        await made.write()
        assert expected_end(storage) == (1, 1)
        job = log.truncation.begin(NOW_MS)
        assert job is not None
        log.truncation.complete(job, job.run())
        await made.write()
        assert expected_end(storage) == (32, 32)
        broker.partitions.table.remove(owner.partition.identity)


async def test_offsets_that_a_follower_skips_are_expected_once_they_are_flushed(storage: Storage) -> None:
    """Recovery finds no end there before: a log that a full disk has failed must be opened again."""
    async with running_parts(storage=Storage()) as broker:
        owner = Owner()
        made = listing(owner, storage, broker)
        key, log = key_of(owner.partition), owner.partition.log
        owner.partition.assume(led(owner.partition).role.resigned())
        allow_gaps(log, 100)
        log.copying.skip_to(40, NOW_MS)
        followed(owner.partition).follow(90, 0)
        assert owner.partition.term.high_watermark == 40
        assert made.expected(key, owner.partition).end_offset == 0
        owner.flush()
        assert made.expected(key, owner.partition).end_offset == 40
        broker.partitions.table.remove(owner.partition.identity)


async def test_records_among_which_offsets_are_missing_are_expected_unflushed(storage: Storage) -> None:
    """Within a segment recovery needs no flush to find them."""
    async with running_parts(storage=Storage()) as broker:
        owner = Owner(SOFT)
        made = listing(owner, storage, broker)
        key, partition = key_of(owner.partition), owner.partition
        partition.assume(led(partition).role.resigned())
        allow_gaps(partition.log, 100)
        partition.append_as_follower(leader_batch(logs.batch(b"a"), 40, EPOCH), NOW_MS)
        partition.write()
        followed(partition).follow(90, 0)
        assert (partition.log.flushes.flushed_offset, partition.term.high_watermark) == (0, 41)
        assert made.expected(key, partition).high_watermark == 41
        broker.partitions.table.remove(partition.identity)


async def test_unreadable_checkpoint_counts_as_damaged_but_not_if_that_may_pass(
    storage: Storage, caplog: pytest.LogCaptureFixture
) -> None:
    await fill(storage)
    storage.disk.faults.out_of_files = True
    with pytest.raises(TransientFailure):
        async with running_parts(storage=storage):
            raise AssertionError("it must not start")
    storage.disk.faults.heal()
    storage.disk.faults.fail("read")
    with caplog.at_level(logging.ERROR):
        async with running_parts(storage=storage) as broker:
            assert broker.partitions.table.offline()
    assert "replica-checkpoint is damaged" in caplog.text


def test_power_cut_may_remove_a_directory_whose_name_is_not_durable() -> None:
    """The disk of these tests is as unreliable as a real one."""
    disk = MemoryDisk()
    disk.make_directory("logs/t-0")
    disk.open("logs/t-0/a", create=True).sync()
    outcomes = {disk.power_cut(Random(seed)).exists("logs/t-0") for seed in range(50)}
    assert outcomes == {True, False}
    assert disk.power_cut(LosesAll()).exists("logs")
    disk.sync_directory("logs")
    assert all(disk.power_cut(Random(seed)).exists("logs/t-0") for seed in range(50))


@pytest.mark.parametrize("policy", ["os", "ack"])
async def test_power_cut_that_brings_a_clean_seal_back_begins_another_epoch(policy: str) -> None:
    """With `flush.policy=os` nothing makes the removal of the seal durable, and the same offsets get other records."""
    storage, soft = Storage(), {"topics.flush_policy": "os"}
    storage.disk = ForgetfulDisk()
    async with running_parts(soft, storage=storage) as broker:
        await broker.topics.create(CALLER, TopicRequest(name="t"))
        assert (await publish(broker, ("t", 0)))[0].error is None
    async with running_parts(soft, storage=storage) as broker:
        epoch = broker.partitions.table.find("t", 0).term.epoch
        assert (await publish(broker, ("t", 0)))[0].error is None
        cut = storage.disk.power_cut(LosesAll())
    storage.disk = cut
    async with running_parts({"topics.flush_policy": policy}, storage=storage) as broker:
        partition = broker.partitions.table.find("t", 0)
        assert partition.log.log_end_offset == 1
        assert partition.term.epoch > epoch


async def test_lone_replica_that_finds_an_older_copy_of_its_log_begins_another_epoch(storage: Storage) -> None:
    """Its consumers learn that the offsets which they have read get other records."""
    await fill(storage, 2)
    files = [path for path in storage.disk.paths() if path.startswith(f"{DIRECTORY}/")]
    copies = {path: storage.disk.read(path) for path in files}
    async with running_parts(storage=storage) as broker:
        epoch = broker.partitions.table.find("t", 0).term.epoch
        await publish(broker, ("t", 0))
    storage.disk.remove_tree(DIRECTORY)
    for path, content in copies.items():
        storage.disk.write_atomic(path, content)
    async with running_parts(storage=storage) as broker:
        assert end_of(broker) == 2
        assert broker.partitions.table.find("t", 0).term.epoch > epoch
