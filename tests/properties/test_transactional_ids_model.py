"""Message ids in transactions: whatever is published, committed, aborted or crashed, each id is committed once.

PROPERTY_EXAMPLES in the environment says how many such stories are told; 12 by default, because each runs brokers.
"""

import asyncio
import os
from contextlib import AsyncExitStack
from random import Random

import pytest

from conveyor.broker.broker_node import BrokerNode
from conveyor.broker.produce.outgoing_message import OutgoingMessage, PublishedMessage
from conveyor.cluster.topic_creation import TopicRequest
from conveyor.kernel.errors import ErrorKind, RequestError
from conveyor.kernel.ids import TopicPartition
from conveyor.log.batch_reading import batches_between
from conveyor.records.batch import CONTROL, TRANSACTIONAL
from conveyor.records.message_attributes import DEDUP_ID
from conveyor.records.record import decode_records
from conveyor.records.transaction_marker import decode_marker
from tests.unit.broker.parts import Storage, running_parts
from tests.unit.broker.transactions.producers import TransactionalClient, initialized, is_stable, until

EXAMPLES = int(os.environ.get("PROPERTY_EXAMPLES", "12"))
STEPS = 40
PLACE = TopicPartition("once", 0)
NAMES = ("first", "second", "third")
IDS = [b"%d" % number for number in range(8)]
pytestmark = pytest.mark.timeout(max(300, EXAMPLES))


class Transaction:
    """An open transaction of a client: the ids that it has sent, and the sends that may be parked."""

    def __init__(self, client: TransactionalClient) -> None:
        self.client = client
        self.sends: list[tuple[bytes, asyncio.Task[object]]] = []

    def has(self, dedup_id: bytes) -> bool:
        return any(dedup_id == sent for sent, _ in self.sends)

    @property
    def is_waiting(self) -> bool:
        return any(not task.done() for _, task in self.sends)


class EachIdIsCommittedOnce:
    """The broker under test, and what must come out of it."""

    def __init__(self, seed: int) -> None:
        self.chance = Random(seed)
        self.storage = Storage()
        self.clients: dict[str, TransactionalClient] = {}
        self.open: dict[str, Transaction] = {}
        self.plain: list[tuple[bytes, asyncio.Task[PublishedMessage | RequestError]]] = []
        self.published: set[bytes] = set()
        """Ids of which a publisher was told that they are stored."""

    async def run(self) -> None:
        async with AsyncExitStack() as stack:
            self.broker = await stack.enter_async_context(running_parts(storage=self.storage))
            config = {"dedup.enable": "true", "segment.bytes": "1024"}
            await self.broker.topics.create(TopicRequest(name="once", partitions=1, config=config))
            for name in NAMES:
                self.clients[name] = await initialized(self.broker, transactional_id=name)
            for _ in range(STEPS):
                step = self.chance.choice([self.send, self.send, self.send, self.publish, self.end, self.end])
                await step()
                self.check()
                if self.chance.random() < 0.05 and not self.is_waiting:
                    await stack.aclose()
                    self.broker = await stack.enter_async_context(running_parts(storage=self.storage))
                    for client in self.clients.values():
                        client.asks = self.broker
            await self.end_all()
            await self.settle_plain()
            self.check()
            assert set(committed_ids(self.broker)) >= self.published, "a message was lost"

    @property
    def is_waiting(self) -> bool:
        return bool(self.plain) or any(transaction.is_waiting for transaction in self.open.values())

    async def send(self) -> None:
        """Send an id in a transaction; wait for the answer unless another transaction has the id."""
        name, dedup_id = self.chance.choice(NAMES), self.chance.choice(IDS)
        transaction = self.open.get(name)
        if transaction is None:
            transaction = self.open[name] = Transaction(self.clients[name])
            await transaction.client.add(PLACE)
        if transaction.is_waiting:
            return
        held = any(other.has(dedup_id) for key, other in self.open.items() if key != name)
        task = asyncio.create_task(transaction.client.send(self.broker, PLACE, (DEDUP_ID, dedup_id), value=dedup_id))
        transaction.sends.append((dedup_id, task))
        if not held or dedup_id in committed_ids(self.broker):
            result = await task
            assert result.error is None, result.error

    async def publish(self) -> None:
        dedup_id = self.chance.choice(IDS)
        message = OutgoingMessage(value=dedup_id, headers=((DEDUP_ID, dedup_id),), partition=0)

        async def publish() -> PublishedMessage | RequestError:
            [result] = await self.broker.message_publisher.publish("once", [message])
            return result

        self.plain.append((dedup_id, asyncio.create_task(publish())))
        if not any(transaction.has(dedup_id) for transaction in self.open.values()):
            await self.settle_plain_of(dedup_id)

    async def end(self) -> None:
        """End a transaction of which nothing is parked."""
        ready = [name for name, transaction in self.open.items() if not transaction.is_waiting]
        if not ready:
            return await self.break_deadlock()
        name = self.chance.choice(ready)
        transaction = self.open.pop(name)
        commit = self.chance.random() < 0.5
        await transaction.client.end(commit=commit)
        if commit:
            self.published |= {dedup_id for dedup_id, _ in transaction.sends}

    async def break_deadlock(self) -> None:
        """Transactions that wait for each other get a timeout, and are aborted."""
        if not self.open:
            return
        while any(transaction.is_waiting for transaction in self.open.values()):
            self.storage.clock.advance(ms=1_000)
            await asyncio.sleep(0.001)
        for name, transaction in list(self.open.items()):
            results = [await task for _, task in transaction.sends]
            errors = [error for result in results if (error := getattr(result, "error", None)) is not None]
            if errors:
                assert {error.kind for error in errors} <= {ErrorKind.REQUEST_TIMED_OUT}
                del self.open[name]
                await transaction.client.end(commit=False)
                self.clients[name] = await initialized(self.broker, transactional_id=name)

    async def end_all(self) -> None:
        while self.open:
            await self.end()
        await until(lambda: is_stable(self.broker.partitions.find(*PLACE)))

    async def settle_plain(self) -> None:
        for dedup_id in IDS:
            await self.settle_plain_of(dedup_id)

    async def settle_plain_of(self, dedup_id: bytes) -> None:
        for each, task in self.plain:
            if each == dedup_id:
                result = await task
                if isinstance(result, PublishedMessage):
                    self.published.add(dedup_id)
                else:
                    assert result.kind is ErrorKind.REQUEST_TIMED_OUT, result
        self.plain = [(each, task) for each, task in self.plain if each != dedup_id]

    def check(self) -> None:
        found = committed_ids(self.broker)
        assert len(found) == len(set(found)), "an id was committed twice"


def committed_ids(broker: BrokerNode) -> list[bytes]:
    """Return the ids of all records that are committed or in no transaction, in any order."""
    log = broker.partitions.find(*PLACE).log
    found: list[bytes] = []
    undecided: dict[int, list[bytes]] = {}
    for header, _, content in batches_between(log, 0, log.written_offset):
        if header.attributes & CONTROL:
            marker = decode_marker(header, content)
            assert marker is not None
            ids = undecided.pop(header.producer_id, [])
            found += ids if marker.commits else []
            continue
        values = [record.value or b"" for record in decode_records(content)]
        if header.attributes & TRANSACTIONAL:
            undecided.setdefault(header.producer_id, []).extend(values)
        else:
            found += values
    return found


@pytest.mark.parametrize("seed", range(EXAMPLES))
async def test_each_id_is_committed_once(seed: int) -> None:
    await EachIdIsCommittedOnce(seed).run()
