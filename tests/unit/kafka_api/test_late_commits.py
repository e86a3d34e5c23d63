"""A commit that its client has given up, and that arrives over its older connection after newer ones."""

import asyncio
from typing import Any

from tests.unit.kafka_api.client import MemoryClient

OFFSET_COMMIT, OFFSET_FETCH, FIND_COORDINATOR, JOIN_GROUP, SYNC_GROUP = 8, 9, 10, 11, 14
INIT_PRODUCER_ID, ADD_OFFSETS, END_TXN, TXN_OFFSET_COMMIT = 22, 25, 26, 28
COORDINATOR_LOADING, CONCURRENT_TRANSACTIONS = 14, 51


def topics(offset: int) -> list[dict[str, object]]:
    partition = {"partition_index": 0, "committed_offset": offset, "committed_metadata": None}
    return [{"name": "t", "partitions": [partition | {"committed_leader_epoch": -1}]}]


async def committed(client: MemoryClient) -> int:
    """Return the committed offset, once no transaction may replace it."""
    places = [{"name": "t", "partition_indexes": (0,)}]
    while True:
        answer = await client.ask(OFFSET_FETCH, 7, group_id="g", require_stable=True, topics=places)
        [partition] = answer.topics[0].partitions
        if partition.error_code == 0:
            return int(partition.committed_offset)
        await asyncio.sleep(0)


async def code(client: MemoryClient, api_key: int, version: int, **values: Any) -> int:
    answer = await client.ask(api_key, version, group_id="g", group_instance_id=None, **values)
    return int(answer.topics[0].partitions[0].error_code)


async def member_of(client: MemoryClient) -> dict[str, Any]:
    """Join the group as its only member. Returns the member's identity."""
    await client.ask(FIND_COORDINATOR, 3, key="g", key_type=0)
    fields = {"group_id": "g", "session_timeout": 30_000, "rebalance_timeout": 30_000, "group_instance_id": None}
    fields |= {"protocol_type": "consumer", "protocols": [{"name": "range", "metadata": b""}]}
    joined = await client.ask(JOIN_GROUP, 5, member_id="", **fields)
    joined = await client.ask(JOIN_GROUP, 5, member_id=joined.member_id, **fields)
    member = {"generation_id": joined.generation_id, "member_id": joined.member_id}
    assigned = [{"member_id": joined.member_id, "assignment": b""}]
    await client.ask(SYNC_GROUP, 3, group_id="g", group_instance_id=None, assignments=assigned, **member)
    return {"generation_id_or_member_epoch": joined.generation_id, "member_id": joined.member_id}


async def producer_of(client: MemoryClient) -> dict[str, Any]:
    """Initialize the transactional producer. Returns its identity."""
    await client.ask(FIND_COORDINATOR, 3, key="tx", key_type=1)
    begun = {"transactional_id": "tx", "transaction_timeout": 30_000, "producer_id": -1, "producer_epoch": -1}
    answer = await client.ask(INIT_PRODUCER_ID, 3, **begun)
    return {"transactional_id": "tx", "producer_id": answer.producer_id, "producer_epoch": answer.producer_epoch}


async def send_offset(client: MemoryClient, producer: dict[str, Any], offset: int) -> int:
    member = {"generation_id": -1, "member_id": ""}
    return await code(client, TXN_OFFSET_COMMIT, 3, topics=topics(offset), **member, **producer)


async def commit(client: MemoryClient, producer: dict[str, Any], offset: int) -> int:
    """Commit an offset in a new transaction, which begins once the last one has ended."""
    added = CONCURRENT_TRANSACTIONS
    while added == CONCURRENT_TRANSACTIONS:
        added = (await client.ask(ADD_OFFSETS, 3, group_id="g", **producer)).error_code
    assert added == 0
    return await send_offset(client, producer, offset)


async def test_late_commit_of_a_member_undoes_nothing(client: MemoryClient) -> None:
    member = await member_of(client)
    newer = MemoryClient(client.broker)
    for offset in (10, 20):
        assert await code(newer, OFFSET_COMMIT, 7, topics=topics(offset), **member) == 0
    assert await code(client, OFFSET_COMMIT, 7, topics=topics(10), **member) == COORDINATOR_LOADING
    assert await committed(newer) == 20


async def test_late_commit_of_a_transaction_is_no_part_of_the_next_one(client: MemoryClient) -> None:
    """With transaction version 1, both have the same producer epoch."""
    await client.ask(FIND_COORDINATOR, 3, key="g", key_type=0)
    await client.ask(FIND_COORDINATOR, 3, key="tx", key_type=1)
    producer, newer = await producer_of(client), MemoryClient(client.broker)
    for offset in (10, 20):
        assert await commit(newer, producer, offset) == 0
        if offset == 20:
            assert await send_offset(client, producer, 10) == COORDINATOR_LOADING
        assert (await newer.ask(END_TXN, 3, committed=True, **producer)).error_code == 0
        assert await committed(newer) == offset


async def test_standby_that_takes_over_may_have_been_connected_for_longer(client: MemoryClient) -> None:
    await client.ask(FIND_COORDINATOR, 3, key="g", key_type=0)
    newer = MemoryClient(client.broker)
    for process, offset in ((newer, 10), (client, 20)):
        producer = await producer_of(process)
        assert await commit(process, producer, offset) == 0
        assert (await process.ask(END_TXN, 3, committed=True, **producer)).error_code == 0
        assert await committed(process) == offset


async def test_a_transaction_may_end_over_an_older_connection_than_its_producer_was_initialized_by(
    client: MemoryClient,
) -> None:
    """As aiokafka does, if it is connected to the coordinator before it is to the same broker as a leader."""
    await client.ask(FIND_COORDINATOR, 3, key="g", key_type=0)
    producer = await producer_of(MemoryClient(client.broker))
    for offset in (10, 20):
        assert await commit(client, producer, offset) == 0
        assert (await client.ask(END_TXN, 3, committed=True, **producer)).error_code == 0
        assert await committed(client) == offset
