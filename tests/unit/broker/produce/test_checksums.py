"""The broker checks a batch's CRC-32C when it is produced and when it is read back, and computes a new one only where
bytes change.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence

import crc32c
import pytest

from conveyor.broker.broker_node import BrokerNode
from conveyor.broker.produce.outgoing_message import OutgoingMessage, PublishedMessage
from conveyor.broker.produce.publisher import ACKS_ALL, Published
from conveyor.cluster.topic_creation import TopicRequest
from conveyor.kernel.errors import ErrorKind
from conveyor.kernel.ports import Bytes
from conveyor.records import batch, checked_batch, record
from conveyor.records.message_attributes import DEDUP_ID
from conveyor.records.record import encode_batch
from tests.callers import CALLER
from tests.unit.broker.parts import NOW_MS, Storage, running_parts
from tests.unit.replication.parts import set_at_change

TOPICS: Mapping[str, Mapping[str, str]] = {
    "plain": {},
    "stamped": {"message.timestamp.type": "LogAppendTime"},
    "compacted": {"cleanup.policy": "compact"},
    "packed": {"compression.type": "zstd"},
    "once": {"dedup.enable": "true"},
    "delayed": {"delay.target": "plain"},
}
PLACES = {checked_batch: "checked", record: "sealed", batch: "stored"}
"""The modules that compute CRCs, by purpose: check a producer's bytes, seal records, change or read back sealed ones.
"""


@pytest.fixture
async def broker(storage: Storage) -> AsyncIterator[BrokerNode]:
    async with running_parts(storage=storage) as running:
        for name, config in TOPICS.items():
            await running.topics.create(CALLER, TopicRequest(name=name, config=config))
        yield running


@pytest.fixture
def weighed(broker: BrokerNode, monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Count the CRC computations from now on, by purpose."""
    counts: Counter[str] = Counter()
    for module, place in PLACES.items():

        def counting(content: Bytes, place: str = place) -> int:
            counts[place] += 1
            return crc32c.crc32c(content)

        monkeypatch.setattr(module, "crc32c", counting)
    return counts


def made(*ids: bytes, codec: int = 0, at_ms: int = NOW_MS) -> bytes:
    return encode_batch([(at_ms, b"k", b"v", ((DEDUP_ID, dedup_id),)) for dedup_id in ids], codec=codec)


async def produce(broker: BrokerNode, topic: str, content: bytes) -> Published:
    done: asyncio.Future[Sequence[Published]] = asyncio.get_running_loop().create_future()
    broker.produce.publisher.publish(CALLER, [(topic, 0, content)], ACKS_ALL, done.set_result)
    return (await done)[0]


async def committed(broker: BrokerNode, topic: str, offset: int) -> None:
    """Wait until the high watermark of a topic's partition has reached an offset."""
    partition = broker.partitions.table.find(topic, 0)
    while partition.term.high_watermark < offset:
        risen = asyncio.Event()
        set_at_change(partition, risen)
        await asyncio.wait_for(risen.wait(), 20)


@pytest.mark.parametrize(
    ("topic", "codec", "expected"),
    [
        ("plain", 0, {"checked": 1}),
        ("stamped", 0, {"checked": 1, "stored": 1}),
        ("compacted", 0, {"checked": 1}),
        ("packed", 0, {"checked": 1, "sealed": 1}),
        ("packed", 4, {"checked": 1}),
        ("once", 0, {"checked": 1}),
        ("once", 4, {"checked": 1}),
    ],
)
async def test_batch_is_checked_once(
    broker: BrokerNode, weighed: Counter[str], topic: str, codec: int, expected: Mapping[str, int]
) -> None:
    content = made(b"a", b"b", codec=codec)
    weighed.clear()
    assert (await produce(broker, topic, content)).error is None
    assert weighed == expected


async def test_batch_without_its_duplicates_is_checked_once_and_sealed_once(
    broker: BrokerNode, weighed: Counter[str]
) -> None:
    await produce(broker, "once", made(b"a"))
    content = made(b"a", b"b")
    weighed.clear()
    assert (await produce(broker, "once", content)).duplicates == {0: 0}
    assert weighed == {"checked": 1, "sealed": 1}


async def test_batch_of_a_delayed_topic_is_checked_once_and_whenever_it_is_read(
    broker: BrokerNode, weighed: Counter[str]
) -> None:
    content = made(b"a", b"b")
    await produce(broker, "delayed", content)
    await committed(broker, "plain", 2)  # The forwarder has loaded: its replay checks what it reads.
    weighed.clear()
    assert (await produce(broker, "delayed", content)).base_offset == 2
    await committed(broker, "plain", 4)
    weighed_again = {"checked": 1, "sealed": 1, "stored": 3}
    assert weighed == weighed_again, "the intent is sealed, the batch is read twice, and its producer replaced"


async def test_batch_that_is_refused_is_checked_once(broker: BrokerNode, weighed: Counter[str]) -> None:
    content = made(b"a", at_ms=NOW_MS + 3_600_001)
    weighed.clear()
    error = (await produce(broker, "plain", content)).error
    assert error is not None
    assert error.kind is ErrorKind.INVALID_TIMESTAMP
    assert weighed == {"checked": 1}


@pytest.mark.parametrize(("topic", "sealed"), [("plain", 1), ("compacted", 1), ("packed", 2), ("once", 1)])
async def test_messages_are_sealed_by_the_broker_and_not_checked(
    broker: BrokerNode, weighed: Counter[str], topic: str, sealed: int
) -> None:
    (published,) = await broker.produce.messages.publish(CALLER, topic, [OutgoingMessage(b"v", key=b"k")])
    assert isinstance(published, PublishedMessage)
    assert weighed == {"sealed": sealed}


async def test_message_that_is_a_duplicate_is_sealed_once(broker: BrokerNode, weighed: Counter[str]) -> None:
    message = OutgoingMessage(b"v", key=b"k", headers=((DEDUP_ID, b"a"),))
    await broker.produce.messages.publish(CALLER, "plain", [message])
    (again,) = await broker.produce.messages.publish(CALLER, "plain", [message])
    assert isinstance(again, PublishedMessage)
    assert again.duplicate
    assert weighed == {"sealed": 2}
