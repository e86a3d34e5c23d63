"""Topics: created, deleted, and present after a restart."""

import asyncio
import logging
from dataclasses import replace
from uuid import uuid4

import pytest

from conveyor.broker.broker_node import BrokerNode
from conveyor.broker.fetch.list_offsets import LATEST, find_epoch_end
from conveyor.broker.topics.configs import topic_configs
from conveyor.cluster.changes import topic_put
from conveyor.cluster.image import QUEUE_STATE, TopicImage
from conveyor.cluster.topic_creation import TopicRequest
from conveyor.kernel.errors import ErrorKind, RequestError, StartupError
from conveyor.kernel.ids import TopicId
from tests.callers import CALLER
from tests.unit.broker.parts import LosesAll, LosesNothing, Storage, publish, running_parts


async def test_a_new_topic_is_served(broker: BrokerNode) -> None:
    topic = await broker.topics.create(CALLER, TopicRequest(name="new", partitions=3))
    assert broker.metadata.image.topics["new"] == topic
    assert [broker.partitions.table.find("new", number).term.high_watermark for number in range(3)] == [0, 0, 0]


async def test_a_check_makes_nothing(broker: BrokerNode) -> None:
    assert broker.topics.check(TopicRequest(name="new")).partition_count == 1
    assert list(broker.metadata.image.topics) == ["t"]


async def test_topics_come_back_after_a_restart(storage: Storage) -> None:
    async with running_parts(storage=storage) as first:
        made = await first.topics.create(
            CALLER, TopicRequest(name="kept", partitions=2, config={"segment.bytes": "4096"})
        )
        await publish(first, ("kept", 1))
    async with running_parts(storage=storage) as second:
        assert second.metadata.image.topics["kept"] == made
        assert second.metadata.image.cluster_id == first.metadata.image.cluster_id
        assert second.partitions.table.find("kept", 1).term.high_watermark == 1


async def test_partition_that_was_not_stopped_cleanly_begins_a_new_epoch(storage: Storage) -> None:
    """A consumer detects by its epoch that records which it has read were lost in a power failure."""
    async with running_parts(storage=storage) as broker:
        await broker.topics.create(CALLER, TopicRequest(name="t", config={"flush.policy": "os"}))
        await publish(broker, ("t", 0))
    async with running_parts(storage=storage) as broker:
        assert broker.partitions.table.find("t", 0).term.epoch == 1, "no flush proves that it was stopped cleanly"
        await broker.partitions.flusher.drain()
        for _ in range(3):
            await publish(broker, ("t", 0))
        cut = storage.disk.power_cut(LosesAll())
    storage.disk = cut
    for epoch in (2, 3):
        async with running_parts(storage=storage) as broker:
            partition = broker.partitions.table.find("t", 0)
            assert partition.term.epoch == epoch
            assert broker.metadata.image.topics["t"].partitions[0].leader_epoch == epoch
            assert find_epoch_end(broker.partitions.table, "t", 0, 0, -1) == (0, 1)
            await publish(broker, ("t", 0))
            assert find_epoch_end(broker.partitions.table, "t", 0, 0, -1) == (0, 1)


@pytest.mark.parametrize("count", [0, 2])
async def test_epochs_in_which_nothing_was_written_are_no_truncation(storage: Storage, count: int) -> None:
    """A consumer at the end of a quiet partition has the epoch from ListOffsets, and validates it after each start."""
    handed_out: list[int] = []
    for number in range(4):
        async with running_parts(storage=storage) as broker:
            if number == 0:
                await broker.topics.create(CALLER, TopicRequest(name="t"))
                for _ in range(count):
                    await publish(broker, ("t", 0))
            offset, _, epoch = broker.fetch.offsets.find_at_once("t", 0, LATEST, -1)
            handed_out.append(epoch)
            for earlier in handed_out:
                known, end_offset = find_epoch_end(broker.partitions.table, "t", 0, earlier, -1)
                assert 0 <= known <= earlier
                assert end_offset == offset == count
            killed = storage.disk.power_cut(LosesNothing())
        storage.disk = killed
    assert handed_out == [0, 1, 2, 3]


async def test_topics_whose_names_collide_are_loaded(storage: Storage) -> None:
    async with running_parts(storage=storage) as first:
        made = await first.topics.create(CALLER, TopicRequest(name="col.a"))
        with pytest.raises(RequestError, match="'col_a' collides with an existing topic"):
            await first.topics.create(CALLER, TopicRequest(name="col_a"))
        again = replace(made, name="col_a", topic_id=TopicId(uuid4()))
        await first.metadata.propose(lambda _: [topic_put(again)])
    async with running_parts(storage=storage) as second:
        assert sorted(second.metadata.image.topics) == ["col.a", "col_a"]
        for name in ("col.a", "col_a"):
            await second.topics.ensure_companion(QUEUE_STATE, name)


async def test_a_deleted_topic_leaves_nothing(broker: BrokerNode, storage: Storage) -> None:
    await publish(broker, ("t", 0))
    await broker.topics.delete(CALLER, "t")
    assert storage.disk.list("logs") == []
    assert dict(broker.metadata.image.topics) == {}
    assert len(broker.partitions.table) == 0


async def test_a_topic_can_be_made_again_after_its_deletion(broker: BrokerNode) -> None:
    await publish(broker, ("t", 0))
    await broker.topics.delete(CALLER, "t")
    await broker.topics.create(CALLER, TopicRequest(name="t"))
    assert broker.partitions.table.find("t", 0).term.high_watermark == 0


async def test_kafkas_settings_without_effect_are_stored_and_described(broker: BrokerNode) -> None:
    given = {"unclean.leader.election.enable": "true", "flush.messages": "1", "compression.zstd.level": "7"}
    topic = await broker.topics.create(CALLER, TopicRequest(name="from-kafka", config=given))
    described = {
        entry.name: entry.value for entry in topic_configs(topic.config, broker.cluster.dynamic_settings.layers)
    }
    assert {name: described[name] for name in given} == given
    assert described["file.delete.delay.ms"] == "60000"
    assert described["preallocate"] == "false"


async def test_what_is_not_there_cannot_be_deleted(broker: BrokerNode) -> None:
    with pytest.raises(RequestError) as refused:
        await broker.topics.delete(CALLER, "nothing")
    assert refused.value.kind is ErrorKind.UNKNOWN_TOPIC


async def test_the_brokers_own_topic_cannot_be_deleted(broker: BrokerNode) -> None:
    await broker.coordinators.groups.ensured()
    with pytest.raises(RequestError) as refused:
        await broker.topics.delete(CALLER, "__consumer_offsets")
    assert refused.value.kind is ErrorKind.INVALID_TOPIC


async def test_many_who_need_a_topic_at_once_get_the_same(broker: BrokerNode) -> None:
    topics = await asyncio.gather(*(broker.topics.ensure(CALLER, TopicRequest(name="wanted")) for _ in range(5)))
    assert len({topic.topic_id for topic in topics}) == 1


@pytest.mark.parametrize("first", ["create", "ensure"])
async def test_who_needs_a_topic_that_is_being_made_waits_for_it(broker: BrokerNode, first: str) -> None:
    topics, request = broker.topics, TopicRequest(name="wanted")
    if first == "create":
        made, ensured = await asyncio.gather(topics.create(CALLER, request), topics.ensure(CALLER, request))
        assert ensured == made
    else:
        outcomes = await asyncio.gather(
            topics.ensure(CALLER, request), topics.create(CALLER, request), return_exceptions=True
        )
        assert isinstance(outcomes[0], TopicImage)
        assert isinstance(outcomes[1], RequestError)
        assert outcomes[1].kind is ErrorKind.TOPIC_ALREADY_EXISTS


async def test_a_directory_of_no_topic_is_set_aside(storage: Storage, caplog: pytest.LogCaptureFixture) -> None:
    storage.disk.open("logs/lost-0/00000000000000000000.log", create=True).append([b"kept"])
    with caplog.at_level(logging.WARNING):
        async with running_parts(storage=storage):
            assert storage.disk.list("logs") == ["lost-0.stray"]
    assert "stray directory name=lost-0" in caplog.text


async def test_a_deletion_that_was_cut_off_is_finished_at_the_start(storage: Storage) -> None:
    storage.disk.open("logs/t-0.0123.deleted/00000000000000000000.log", create=True).append([b"gone"])
    async with running_parts(storage=storage):
        assert storage.disk.list("logs") == []


async def test_a_partition_that_cannot_be_opened_is_offline_and_the_others_served(storage: Storage) -> None:
    async with running_parts(storage=storage) as first:
        await first.topics.create(CALLER, TopicRequest(name="t"))
        await publish(first, ("t", 0))
    storage.disk.faults.fail("read")
    async with running_parts(storage=storage) as second:
        assert second.metadata.image.topics["t"].name == "t"
        assert "read failed" in str(second.partitions.table.offline_reason("t", 0))
        with pytest.raises(RequestError, match="offline"):
            second.partitions.table.find("t", 0)


async def test_broker_whose_number_was_changed_does_not_start(storage: Storage) -> None:
    async with running_parts(storage=storage) as broker:
        await broker.topics.create(CALLER, TopicRequest(name="t"))
    with pytest.raises(StartupError, match=r"belongs to broker 1: start with --node-id 1, or choose another"):
        async with running_parts({"broker.node_id": 2}, storage):
            pass
    async with running_parts(storage=storage) as broker:
        assert list(broker.metadata.image.brokers) == [1]
        assert broker.partitions.table.offline() == {}
