"""Message ids in transactions: whatever is published, committed, aborted or crashed, each id is committed once.

PROPERTY_EXAMPLES in the environment says how many such stories are told; 12 by default, because each runs brokers.
"""

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
from tests.callers import CALLER
from tests.unit.broker.markers.producers import TransactionalClient, initialized, until
from tests.unit.broker.parts import Storage, running_parts

EXAMPLES = int(os.environ.get("PROPERTY_EXAMPLES", "12"))
STEPS = 40
PLACE = TopicPartition("once", 0)
NAMES = ("first", "second", "third")
IDS = [b"%d" % number for number in range(8)]
pytestmark = pytest.mark.timeout(max(600, EXAMPLES))


class EachIdIsCommittedOnce:
    """The broker under test, and what must come out of it."""

    def __init__(self, seed: int) -> None:
        self.chance = Random(seed)
        self.storage = Storage()
        self.clients: dict[str, TransactionalClient] = {}
        self.open: dict[str, set[bytes]] = {}
        """By client: the ids that it has sent in its open transaction."""
        self.published: set[bytes] = set()
        """Ids of which a publisher was told that they are stored."""

    async def run(self) -> None:
        async with AsyncExitStack() as stack:
            self.broker = await stack.enter_async_context(running_parts(storage=self.storage))
            config = {"dedup.enable": "true", "segment.bytes": "1024"}
            await self.broker.topics.create(CALLER, TopicRequest(name="once", partitions=1, config=config))
            for name in NAMES:
                self.clients[name] = await initialized(self.broker, transactional_id=name)
            for _ in range(STEPS):
                step = self.chance.choice([self.send, self.send, self.send, self.publish, self.end, self.end])
                await step()
                self.check()
                if self.chance.random() < 0.05:
                    await stack.aclose()
                    self.broker = await stack.enter_async_context(running_parts(storage=self.storage))
                    for client in self.clients.values():
                        client.asks = self.broker
            while self.open:
                await self.end()
            self.check()
            assert set(committed_ids(self.broker)) >= self.published, "a message was lost"

    def is_held(self, dedup_id: bytes, name: str = "") -> bool:
        """Return whether only another client's open transaction has an id."""
        if dedup_id in committed_ids(self.broker) or dedup_id in self.open.get(name, ()):
            return False
        return any(dedup_id in ids for other, ids in self.open.items() if other != name)

    async def send(self) -> None:
        """Send an id in a transaction."""
        name, dedup_id = self.chance.choice(NAMES), self.chance.choice(IDS)
        client = self.clients[name]
        if name not in self.open:
            self.open[name] = set()
            await client.add(PLACE)
        result = await client.send(self.broker, PLACE, (DEDUP_ID, dedup_id), value=dedup_id)
        if self.is_held(dedup_id, name):
            assert_refused(result.error)
            client.sequences[PLACE] -= 1
        else:
            assert result.error is None, result.error
            self.open[name].add(dedup_id)

    async def publish(self) -> None:
        dedup_id = self.chance.choice(IDS)
        is_held = self.is_held(dedup_id)
        message = OutgoingMessage(value=dedup_id, headers=((DEDUP_ID, dedup_id),), partition=0)
        [result] = await self.broker.produce.messages.publish(CALLER, "once", [message])
        if is_held:
            assert_refused(result)
        else:
            assert isinstance(result, PublishedMessage), result
            self.published.add(dedup_id)

    async def end(self) -> None:
        """End a transaction, and wait for its marker."""
        if not self.open:
            return
        name = self.chance.choice(list(self.open))
        ids, client, commit = self.open.pop(name), self.clients[name], self.chance.random() < 0.5
        await client.end(commit=commit)
        producers = self.broker.partitions.table.find(*PLACE).log.producers
        await until(lambda: client.producer.producer_id not in producers.transactions.opened)
        if commit:
            self.published |= ids

    def check(self) -> None:
        found = committed_ids(self.broker)
        assert len(found) == len(set(found)), "an id was committed twice"


def assert_refused(answer: object) -> None:
    assert isinstance(answer, RequestError), answer
    assert answer.kind is ErrorKind.NOT_ENOUGH_REPLICAS, answer


def committed_ids(broker: BrokerNode) -> list[bytes]:
    """Return the ids of all records that are committed or in no transaction, in any order."""
    log = broker.partitions.table.find(*PLACE).log
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
