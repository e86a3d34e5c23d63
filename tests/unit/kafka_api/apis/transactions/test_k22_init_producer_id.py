"""InitProducerId v6: two-phase commit (KIP-939)."""

import asyncio
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from conveyor.cluster.topic_creation import TopicRequest
from tests.callers import CALLER
from tests.unit.broker.parts import Storage, running_parts
from tests.unit.kafka_api.client import MemoryClient

ID = "payments"
NO_TRANSACTION = (-1, -1)
SETTINGS = {"transactions.two_phase_commit_enable": True}
_LATER = {ErrorCode.coordinator_load_in_progress, ErrorCode.not_coordinator, ErrorCode.concurrent_transactions}
_PATIENCE_SECONDS = 20


async def repeated(client: MemoryClient, api_key: int, version: int, **values: Any) -> Any:
    """Return the answer of a coordinator that is loaded and has ended the transaction before."""
    async with asyncio.timeout(_PATIENCE_SECONDS):
        while True:
            answer = await client.ask(api_key, version, **values)
            if answer.error_code not in _LATER:
                return answer


async def init(client: MemoryClient, *, keep: bool, enable: bool = True) -> Any:
    await client.broker.coordinators.transactions.find_coordinator(CALLER, ID)
    values = {"transactional_id": ID, "transaction_timeout": 60_000, "producer_id": -1}
    two_phase = {"producer_epoch": -1, "enable2_pc": enable, "keep_prepared_txn": keep}
    return await repeated(client, 22, 6, **values, **two_phase)


async def begin(client: MemoryClient, producer: Any) -> None:
    """Add a partition to the transaction of a producer."""
    answer = await client.ask(
        24, 3, v3_and_below_transactional_id=ID, v3_and_below_producer_id=producer.producer_id,
        v3_and_below_producer_epoch=producer.producer_epoch,
        v3_and_below_topics=[{"name": "t", "partitions": (0,)}],
    )  # fmt: skip
    [topic] = answer.results_by_topic_v3_and_below
    assert [partition.partition_error_code for partition in topic.results_by_partition] == [ErrorCode.none]


async def end(client: MemoryClient, producer_id: int, epoch: int, *, commit: bool) -> ErrorCode:
    values = {"transactional_id": ID, "producer_id": producer_id, "producer_epoch": epoch, "committed": commit}
    error: ErrorCode = (await repeated(client, 26, 5, **values)).error_code
    return error


def ongoing(answer: Any) -> tuple[int, int]:
    """Return the identity of the transaction that InitProducerId has kept."""
    assert answer.error_code is ErrorCode.none
    return answer.ongoing_txn_producer_id, answer.ongoing_txn_producer_epoch


@pytest.mark.parametrize("commit", [False, True])
async def test_successor_ends_a_transaction_that_was_kept(storage: Storage, commit: bool) -> None:
    async with running_parts(SETTINGS, storage) as broker:
        await broker.topics.create(CALLER, TopicRequest(name="t"))
        client = MemoryClient(broker)
        first = await init(client, keep=True)
        assert ongoing(first) == NO_TRANSACTION
        await begin(client, first)
        successor = await init(client, keep=True)
        assert ongoing(successor) == (first.producer_id, first.producer_epoch)
        assert successor.producer_epoch == first.producer_epoch + 1
        zombie = await end(client, first.producer_id, first.producer_epoch, commit=not commit)
        assert zombie is ErrorCode.producer_fenced
        ended = await end(client, successor.producer_id, successor.producer_epoch, commit=commit)
        assert ended is ErrorCode.none
        assert ongoing(await init(client, keep=True)) == NO_TRANSACTION


async def test_client_that_does_not_keep_aborts(storage: Storage) -> None:
    async with running_parts(SETTINGS, storage) as broker:
        await broker.topics.create(CALLER, TopicRequest(name="t"))
        client = MemoryClient(broker)
        first = await init(client, keep=True)
        await begin(client, first)
        assert ongoing(await init(client, keep=False)) == NO_TRANSACTION
        assert await end(client, first.producer_id, first.producer_epoch, commit=True) is ErrorCode.producer_fenced


async def test_two_phase_commit_is_refused_unless_it_is_enabled(client: MemoryClient) -> None:
    for keep in (False, True):
        refused = await init(client, keep=keep)
        assert refused.error_code is ErrorCode.transactional_id_authorization_failed
        assert refused.producer_id == -1
    assert (await init(client, keep=True, enable=False)).error_code is ErrorCode.invalid_request
