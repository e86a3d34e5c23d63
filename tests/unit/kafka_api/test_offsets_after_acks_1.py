"""ListOffsets, DeleteRecords and Fetch after acks=1 was acknowledged, while the records are not durable yet."""

import asyncio
from typing import Any

import pytest

from conveyor.broker.partitions.own_writes import COMMIT_TIMEOUT_MS
from conveyor.broker.produce.publisher import ACKS_LEADER
from conveyor.cluster.acls import AclFilter
from conveyor.cluster.topic_creation import TopicRequest
from conveyor.kernel.access.acl import ANY, Acl, AclOperation, PatternType, Permission, ResourceType
from tests.callers import CALLER
from tests.unit.broker.held_disk import HeldDisk
from tests.unit.broker.parts import NOW_MS, Storage, publish, running_parts
from tests.unit.kafka_api.client import MemoryClient
from tests.unit.kafka_api.requests import FETCH, LIST_OFFSETS, fetch, request, response

DELETE_RECORDS = 21
LATEST, EARLIEST, NEWEST = -1, -2, -3
TIMED_OUT, NO_RIGHT = 7, 29


@pytest.fixture
def disk() -> HeldDisk:
    return HeldDisk()


@pytest.fixture
def storage(disk: HeldDisk) -> Storage:
    storage = Storage()
    storage.disk = disk
    return storage


@pytest.fixture
async def behind(client: MemoryClient, disk: HeldDisk) -> Any:
    """Yield a client of a broker that has acknowledged three records of `t` and committed none."""
    disk.hold_syncs()
    await publish(client.broker, ("t", 0), ("t", 0), ("t", 0), acks=ACKS_LEADER)
    yield client
    disk.release()


def list_offsets(version: int, timestamp: int, timeout_ms: int = 1000) -> bytes:
    partition = {"partition_index": 0, "timestamp": timestamp, "current_leader_epoch": -1}
    topics = [{"name": "t", "partitions": [partition]}]
    return request(LIST_OFFSETS, version, replica_id=-1, isolation_level=0, topics=topics, timeout=timeout_ms)


async def found(client: MemoryClient, version: int) -> tuple[int, int]:
    [topic] = response(LIST_OFFSETS, version, await client.answers.get()).topics
    return int(topic.partitions[0].error_code), topic.partitions[0].offset


async def turns(client: MemoryClient) -> None:
    for _ in range(20):
        await client.broker.partitions.tick.end()


@pytest.mark.parametrize(
    ("version", "timestamp", "offset"),
    [(1, LATEST, 3), (1, NOW_MS, 0), (7, NEWEST, 0), (11, LATEST, 3), (11, NEWEST, 0), (11, NOW_MS, 0)],
)
async def test_newest_offsets_wait_for_the_commit(
    behind: MemoryClient, disk: HeldDisk, version: int, timestamp: int, offset: int
) -> None:
    behind.send(list_offsets(version, timestamp))
    await turns(behind)
    assert behind.answers.empty()
    disk.release()
    assert await found(behind, version) == (0, offset)


async def test_right_that_goes_while_offsets_wait_ends_it(storage: Storage, disk: HeldDisk) -> None:
    async with running_parts({"access.enabled": True}, storage) as broker:
        await broker.topics.create(CALLER, TopicRequest(name="t"))
        right = Acl(
            ResourceType.TOPIC, "t", PatternType.LITERAL, "User:ANONYMOUS", ANY, AclOperation.DESCRIBE, Permission.ALLOW
        )
        await broker.clients.access.add(CALLER, [right])
        client = MemoryClient(broker)
        disk.hold_syncs()
        await publish(broker, ("t", 0), acks=ACKS_LEADER)
        client.send(list_offsets(11, LATEST))
        await turns(client)
        assert client.answers.empty()
        await broker.clients.access.remove(CALLER, [AclFilter()])
        disk.release()
        [topic] = response(LIST_OFFSETS, 11, await client.answers.get()).topics
        assert (topic.name, [partition.error_code for partition in topic.partitions]) == ("t", [NO_RIGHT])


async def test_first_offset_waits_for_nothing(behind: MemoryClient) -> None:
    behind.send(list_offsets(11, EARLIEST))
    assert await found(behind, 11) == (0, 0)


@pytest.mark.parametrize(("version", "timeout_ms"), [(9, COMMIT_TIMEOUT_MS), (10, 1500), (10, 0)])
async def test_newest_offset_that_is_not_committed_in_time_times_out(
    behind: MemoryClient, storage: Storage, version: int, timeout_ms: int
) -> None:
    behind.send(list_offsets(version, LATEST, timeout_ms))
    await turns(behind)
    assert behind.answers.empty() == (timeout_ms > 0)
    storage.clock.advance(seconds=timeout_ms / 1000)
    assert await found(behind, version) == (TIMED_OUT, -1)


@pytest.mark.parametrize("offset", [2, 3, -1])
async def test_acknowledged_records_can_be_deleted(behind: MemoryClient, disk: HeldDisk, offset: int) -> None:
    topics = [{"name": "t", "partitions": [{"partition_index": 0, "offset": offset}]}]
    deleting = asyncio.ensure_future(behind.ask(DELETE_RECORDS, 2, topics=topics, timeout=1000))
    await turns(behind)
    assert not deleting.done()
    disk.release()
    [partition] = (await deleting).topics[0].partitions
    assert (int(partition.error_code), partition.low_watermark) == (0, 3 if offset < 0 else offset)


async def test_delete_records_times_out_before_the_commit(behind: MemoryClient, storage: Storage) -> None:
    topics = [{"name": "t", "partitions": [{"partition_index": 0, "offset": 3}]}]
    deleting = asyncio.ensure_future(behind.ask(DELETE_RECORDS, 2, topics=topics, timeout=1000))
    await turns(behind)
    storage.clock.advance(seconds=1)
    assert int((await deleting).topics[0].partitions[0].error_code) == TIMED_OUT


async def test_fetch_from_the_end_of_acknowledged_records_waits(behind: MemoryClient, storage: Storage) -> None:
    behind.send(fetch(1, offset=3, wait_ms=500))
    await turns(behind)
    storage.clock.advance(seconds=0.5)
    answer = response(FETCH, 4, await behind.answers.get())
    assert int(answer.responses[0].partitions[0].error_code) == 0
