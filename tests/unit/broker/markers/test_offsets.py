"""Offsets of consumer groups in transactions, from the coordinator's decision to the group that reads them."""

import asyncio

import pytest

from conveyor.broker.broker_node import BrokerNode
from conveyor.broker.produce.verification import VerifyPartitions
from conveyor.cluster.image import OFFSETS_TOPIC
from conveyor.cluster.topic_creation import TopicRequest
from conveyor.groups.group_commands import CommitOffsets, FetchOffsets, OffsetToCommit
from conveyor.groups.replies import Committed, CommittedOffset
from conveyor.kernel.access.caller import Caller
from conveyor.kernel.errors import ErrorKind, RequestError
from conveyor.transactions.transaction_value import EPOCH_BUMPING_VERSION, TransactionState
from tests.callers import CALLER
from tests.unit.broker.markers.producers import (
    EACH_VERSION,
    ID,
    TransactionalClient,
    described,
    initialized,
    is_stable,
    until,
)
from tests.unit.broker.parts import Storage, running_parts

GROUP = "readers"


async def commit(broker: BrokerNode, client: TransactionalClient, offset: int) -> Committed:
    """Commit an offset in the transaction of a client."""
    place = OffsetToCommit(topic="t", partition=0, offset=offset, leader_epoch=-1, metadata="")
    command = CommitOffsets(group_id=GROUP, generation_id=-1, member_id="", offsets=(place,), producer=client.producer)
    adds = client.version >= EPOCH_BUMPING_VERSION
    return await broker.coordinators.transactional_offsets.commit(CALLER, ID, client.producer, command, adds=adds)


async def add_group(broker: BrokerNode, client: TransactionalClient) -> None:
    """Let the group take part. From version 2 on, the commit does that."""
    if client.version >= EPOCH_BUMPING_VERSION:
        return
    await broker.coordinators.transactional_offsets.add_group(CALLER, ID, client.producer, GROUP)


async def fetched(broker: BrokerNode) -> CommittedOffset:
    command = FetchOffsets(group_id=GROUP, partitions=(("t", 0),), requires_stable=True)
    [offset] = (await broker.coordinators.groups.ask(CALLER, command)).offsets
    return offset


async def until_ended(broker: BrokerNode) -> None:
    partition = broker.partitions.table.find(*await broker.coordinators.groups.ensured_partition(GROUP))
    await until(lambda: is_stable(partition))


@EACH_VERSION
@pytest.mark.parametrize("commits", [True, False])
async def test_offsets_count_when_the_transaction_is_committed(broker: BrokerNode, commits: bool, version: int) -> None:
    client = await initialized(broker, version=version)
    await add_group(broker, client)
    assert (await commit(broker, client, 5)).errors == (None,)
    assert (await commit(broker, client, 6)).errors == (None,), "the second one need not be verified"
    assert (await fetched(broker)).is_unstable
    await client.end(commit=commits)
    await until_ended(broker)
    assert await fetched(broker) == CommittedOffset(topic="t", partition=0, offset=6 if commits else -1)
    async with asyncio.timeout(20):  # The group's partition knows the outcome first, then the coordinator that it does.
        while not (await described(broker)).state.is_complete:  # noqa: ASYNC110 - as in `until`
            await asyncio.sleep(0.001)


async def test_a_group_that_takes_no_part_is_refused(broker: BrokerNode) -> None:
    client = await initialized(broker)
    with pytest.raises(RequestError) as refused:
        await commit(broker, client, 5)
    assert refused.value.kind is ErrorKind.TRANSACTION_ABORTABLE
    partition = broker.partitions.table.find(*await broker.coordinators.groups.ensured_partition(GROUP))
    assert partition.log.log_end_offset == 0


@EACH_VERSION
async def test_a_zombie_commits_no_offsets(broker: BrokerNode, version: int) -> None:
    zombie = await initialized(broker, version=version)
    await add_group(broker, zombie)
    await commit(broker, zombie, 5)
    successor = await initialized(broker, version=version)
    await until_ended(broker)
    with pytest.raises(RequestError) as refused:
        await commit(broker, zombie, 6)
    assert refused.value.kind is ErrorKind.INVALID_PRODUCER_EPOCH
    await add_group(broker, successor)
    await commit(broker, successor, 7)
    await successor.end(commit=True)
    await until_ended(broker)
    assert (await fetched(broker)).offset == 7
    assert broker.partitions.table.offline() == {}, "a refused commit is no failure of the log"


async def test_a_marker_that_arrives_meanwhile_refuses_the_commit(broker: BrokerNode) -> None:
    """KAFKA-14884."""
    client = await initialized(broker)
    await add_group(broker, client)
    await broker.coordinators.groups.of_group(GROUP)
    verifications = broker.produce.publisher._verifications
    verify = verifications._verify

    async def verified_late(caller: Caller, request: VerifyPartitions) -> list[RequestError | None]:
        answer = await verify(caller, request)
        await client.end(commit=False)
        await until(lambda: broker.coordinators.transactions.state_counts()[TransactionState.COMPLETE_ABORT] == 1)
        return answer

    verifications._verify = verified_late  # type: ignore[method-assign]
    with pytest.raises(RequestError) as refused:
        await commit(broker, client, 5)
    assert refused.value.kind is ErrorKind.COORDINATOR_LOADING
    await until_ended(broker)


@EACH_VERSION
@pytest.mark.parametrize("commits", [True, False])
async def test_offsets_of_an_open_transaction_survive_a_restart(commits: bool, version: int) -> None:
    storage = Storage()
    async with running_parts(storage=storage) as broker:
        await broker.topics.create(CALLER, TopicRequest(name="t"))
        client = await initialized(broker, version=version)
        await add_group(broker, client)
        await commit(broker, client, 5)
    async with running_parts(storage=storage) as broker:
        assert (await fetched(broker)).is_unstable
        client.asks = broker
        await client.end(commit=commits)
        await until_ended(broker)
        assert await fetched(broker) == CommittedOffset(topic="t", partition=0, offset=5 if commits else -1)
    async with running_parts(storage=storage) as broker:
        assert await fetched(broker) == CommittedOffset(topic="t", partition=0, offset=5 if commits else -1)
        assert OFFSETS_TOPIC in broker.metadata.image.topics
