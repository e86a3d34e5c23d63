"""A transactional producer on the test's event loop."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

import pytest

from conveyor.broker.broker_node import BrokerNode
from conveyor.broker.produce.publisher import ACKS_ALL, Published
from conveyor.kernel.errors import ErrorKind, RequestError
from conveyor.kernel.ids import ProducerIdentity, TopicPartition
from conveyor.records.batch import TRANSACTIONAL
from conveyor.records.record import Header, encode_batch
from conveyor.replication.partition import Partition
from conveyor.replication.transactions import aborted_transactions, last_stable_offset
from conveyor.transactions.transaction_commands import (
    AddPartitions,
    DescribeTransaction,
    EndTransaction,
    InitializeProducer,
)
from conveyor.transactions.transaction_replies import TransactionDescription
from conveyor.transactions.transaction_value import EPOCH_BUMPING_VERSION
from tests.callers import CALLER
from tests.unit.broker.parts import NOW_MS

ID = "transfers"
EACH_VERSION = pytest.mark.parametrize("version", [0, EPOCH_BUMPING_VERSION])
PLACE = TopicPartition("t", 0)
_PATIENCE_SECONDS = 20
Answer = TypeVar("Answer")


class TransactionalClient:
    """One client with a transactional id. asks: the broker that it takes for the coordinator. version: of its
    transactions.
    """

    def __init__(self, asks: BrokerNode, producer: ProducerIdentity, version: int, transactional_id: str = ID) -> None:
        self.asks = asks
        self.producer = producer
        self.version = version
        self.transactional_id = transactional_id
        self.sequences: dict[TopicPartition, int] = {}

    async def add(self, *partitions: TopicPartition) -> None:
        """Add partitions, as soon as the previous transaction has ended. From version 2 on, sending does that."""
        if self.version < EPOCH_BUMPING_VERSION:
            await repeated(lambda: self.add_once(*partitions))

    async def add_once(self, *partitions: TopicPartition) -> None:
        """Add partitions. Raises RequestError."""
        command = AddPartitions(
            transactional_id=self.transactional_id, producer=self.producer, partitions=partitions, transaction_version=0
        )
        await self.asks.coordinators.transactions.ask(CALLER, command)

    async def end(self, *, commit: bool) -> None:
        command = EndTransaction(
            transactional_id=self.transactional_id,
            producer=self.producer,
            commit=commit,
            transaction_version=self.version,
        )
        producer = (await self.asks.coordinators.transactions.ask(CALLER, command)).producer
        if producer != self.producer:
            self.producer, self.sequences = producer, {}

    def batch(self, place: TopicPartition = PLACE, *headers: Header, value: bytes = b"value") -> bytes:
        """Return the next batch of one record for a partition."""
        sequence = self.sequences.get(place, 0)
        self.sequences[place] = sequence + 1
        return encode_batch(
            [(NOW_MS, b"key", value, headers)],
            attributes=TRANSACTIONAL,
            producer_id=self.producer.producer_id,
            producer_epoch=self.producer.producer_epoch,
            base_sequence=sequence,
        )

    async def send(
        self, leader: BrokerNode, place: TopicPartition = PLACE, *headers: Header, value: bytes = b"value"
    ) -> Published:
        """Send the next batch to the leader of a partition. From version 2 on, repeat it while the previous transaction
        is being ended.
        """
        batches, adds = [(place, self.batch(place, *headers, value=value))], self.version >= EPOCH_BUMPING_VERSION
        async with asyncio.timeout(_PATIENCE_SECONDS):
            while True:
                [result] = await send(leader, batches, transactional_id=self.transactional_id, adds=adds)
                if not adds or result.error is None or result.error.kind is not ErrorKind.NOT_ENOUGH_REPLICAS:
                    return result


async def send(
    leader: BrokerNode,
    batches: Sequence[tuple[TopicPartition, bytes]],
    acks: int = ACKS_ALL,
    *,
    transactional_id: str = ID,
    adds: bool = False,
) -> Sequence[Published]:
    done: asyncio.Future[Sequence[Published]] = asyncio.get_running_loop().create_future()
    contents = [(place.topic, place.partition, content) for place, content in batches]
    leader.produce.publisher.publish(
        CALLER, contents, acks, done.set_result, transactional_id=transactional_id, adds=adds
    )
    return await done


async def initialized(
    broker: BrokerNode, timeout_ms: int = 60_000, version: int = 0, transactional_id: str = ID
) -> TransactionalClient:
    """Return a client that has taken the transactional id from all earlier ones."""
    await broker.coordinators.transactions.find_coordinator(CALLER, transactional_id)
    command = InitializeProducer(transactional_id=transactional_id, timeout_ms=timeout_ms)
    reply = await repeated(lambda: broker.coordinators.transactions.ask(CALLER, command))
    return TransactionalClient(broker, reply.producer, version, transactional_id)


async def described(broker: BrokerNode) -> TransactionDescription:
    return await broker.coordinators.transactions.ask(CALLER, DescribeTransaction(transactional_id=ID))


async def repeated(ask: Callable[[], Awaitable[Answer]]) -> Answer:
    """Ask again while the previous transaction is being ended."""
    async with asyncio.timeout(_PATIENCE_SECONDS):
        while True:
            try:
                return await ask()
            except RequestError as error:
                if error.kind is not ErrorKind.CONCURRENT_TRANSACTIONS:
                    raise
            await asyncio.sleep(0.001)


async def until(condition: Callable[[], bool]) -> None:
    """Let tasks run until a condition holds."""
    async with asyncio.timeout(_PATIENCE_SECONDS):
        while not condition():  # noqa: ASYNC110 - the condition is about the log
            await asyncio.sleep(0.001)


def is_stable(partition: Partition) -> bool:
    """Whether all transactions of a partition are decided, and their markers committed."""
    return last_stable_offset(partition) == partition.log.log_end_offset


def aborted_offsets(partition: Partition) -> list[int]:
    """Return the first offset of each aborted transaction."""
    return [entry.first_offset for entry in aborted_transactions(partition, 0, partition.log.log_end_offset)]
