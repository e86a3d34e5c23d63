"""Batches with a right CRC and wrong insides, on topics of every kind: no bug, no offline partition, no stalled loop.

`FUZZ_EXAMPLES` in the environment says how many requests are tried, by default 2,500, `FUZZ_SEED` which ones; a failure
names its seed and the last batches. Bombs have tests of their own.
"""

import asyncio
import contextlib
import gc
import os
from asyncio import events
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from random import Random
from time import thread_time
from types import SimpleNamespace
from uuid import UUID

import pytest

from conveyor.broker.broker_node import BrokerNode
from conveyor.broker.fetch.list_offsets import NEWEST_TIMESTAMP
from conveyor.broker.produce.outgoing_message import OutgoingMessage
from conveyor.broker.produce.publisher import ACKS_ALL, ACKS_LEADER, ACKS_NONE, Published
from conveyor.cluster.topic_change import ConfigChange, Operation
from conveyor.cluster.topic_creation import TopicRequest
from conveyor.http_api.requests.payloads import show_headers
from conveyor.kafka_api.apis.records import k00_produce
from conveyor.kernel.access.caller import Caller
from conveyor.kernel.errors import ErrorKind, RequestError
from conveyor.queues.subscription.policy import StartPosition
from conveyor.records import compression
from conveyor.records.batch import iterate_batches
from conveyor.records.checked_batch import check_batch
from conveyor.records.message_attributes import DEDUP_ID
from conveyor.records.record import decode_records, encode_batch
from tests.callers import ALICE, CALLER, answer_of
from tests.lying_batches import BOMB_BYTES, DEDUP, DELAY, LIES, any_batch, bomb, many_records, raw_record, sealed
from tests.unit.broker.parts import NOW_MS, Storage, running_parts

EXAMPLES = int(os.environ.get("FUZZ_EXAMPLES", "2500"))
SEED = int(os.environ.get("FUZZ_SEED", "20260101"))
EXAMPLES_BETWEEN_LOOKS = 100
EXAMPLES_OF_ONE_START = 500

TOPICS: dict[str, Mapping[str, str]] = {
    "plain": {},
    "compacted": {"cleanup.policy": "compact"},
    "once": {"dedup.enable": "true"},
    "once-compacted": {"dedup.enable": "true", "cleanup.policy": "compact", "compression.type": "lz4"},
    "zstd": {"compression.type": "zstd"},
    "gzip": {"compression.type": "gzip"},
    "unpacked": {"compression.type": "uncompressed"},
    "stamped": {"message.timestamp.type": "LogAppendTime"},
    "limited": {"message.timestamp.before.max.ms": "600000"},
    "unlimited": {"message.timestamp.after.max.ms": str((1 << 63) - 1)},
    "queue": {},
    "due": {},
    "delayed": {"delay.target": "due"},
    "delayed-once": {"delay.target": "due", "dedup.enable": "true"},
    "named": {"publisher.enable": "true"},
    "named-packed": {"publisher.enable": "true", "dedup.enable": "true", "compression.type": "snappy"},
    "delayed-named": {"delay.target": "named"},
    "delayed-stamped": {"delay.target": "stamped", "message.timestamp.type": "LogAppendTime"},
}
"""Subscribed to: `queue`, `due` and `zstd`. Later made to look at what they have stored already: `plain`."""

SUBSCRIBED = ("queue", "due", "zstd")
STORING = ("plain", "once", "queue", "zstd", *(name for name in TOPICS if name.startswith("delayed")))
POLICIES: dict[str, Mapping[str, object]] = {
    "unordered": {},
    "fair": {"fair_by": "group"},
    "ordered": {"ordering": "key", "max_deliveries": 2, "dead_letter_topic": "dead"},
}
EXPECTED = {
    ErrorKind.INVALID_RECORD, ErrorKind.CORRUPT_BATCH, ErrorKind.UNSUPPORTED_COMPRESSION, ErrorKind.MESSAGE_TOO_LARGE,
    ErrorKind.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, ErrorKind.INVALID_TIMESTAMP, ErrorKind.OUT_OF_ORDER_SEQUENCE,
    ErrorKind.INVALID_PRODUCER_EPOCH, ErrorKind.NOT_ENOUGH_REPLICAS,
}  # fmt: skip
"""NOT_ENOUGH_REPLICAS: of a batch that may have overtaken one that was refused; see `EarlyBatches`."""


@contextlib.asynccontextmanager
async def watched_broker(storage: Storage) -> AsyncIterator[BrokerNode]:
    """A broker of which nobody hides a bug."""
    bugs: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: bugs.append(context))
    async with running_parts({"topics.max_message_bytes": 8 << 20}, storage) as broker:
        yield broker
        assert not broker.partitions.table.offline()
    assert not bugs


async def create_topics(broker: BrokerNode) -> None:
    for name, config in TOPICS.items():
        await broker.topics.create(CALLER, TopicRequest(name=name, partitions=1, config=config))
    for topic in SUBSCRIBED:
        for name, policy in POLICIES.items():
            await broker.queues.lifecycle.create(
                CALLER, topic, f"{topic}-{name}", StartPosition(kind="earliest"), policy
            )


async def publish(
    broker: BrokerNode,
    batches: Sequence[tuple[str, bytes]],
    acks: int = ACKS_ALL,
    *,
    deduplicates: bool = False,
    caller: Caller = CALLER,
) -> Sequence[Published]:
    done: asyncio.Future[Sequence[Published]] = asyncio.get_running_loop().create_future()
    wanted = [(topic, 0, batch) for topic, batch in batches]
    broker.produce.publisher.publish(caller, wanted, acks, done.set_result, deduplicates=deduplicates)
    return await asyncio.wait_for(done, 60)


async def one_request(broker: BrokerNode, random: Random, last: list[str]) -> None:
    """One to three batches in a request; its results are packed for every version."""
    batches = []
    for _ in range(random.randint(1, 3)):
        made_by, batch = any_batch(random)
        batches.append((random.choice(list(TOPICS)), batch))
        last.append(f"{made_by} on {batches[-1][0]}: {batch.hex()}")
    acks = random.choice((ACKS_ALL, ACKS_LEADER, ACKS_NONE))
    caller = random.choice((CALLER, ALICE))
    results = await publish(broker, batches, acks, deduplicates=random.random() < 0.1, caller=caller)
    assert {each.error.kind for each in results if each.error is not None} <= EXPECTED, results
    asked = [SimpleNamespace(name=topic, topic_id=UUID(int=1), partition_data=[SimpleNamespace(index=0)])
             for topic, _ in batches]  # fmt: skip
    for version in range(3, 14):
        k00_produce.encode(version, 1, asked, results)


def store_unseen(broker: BrokerNode, random: Random, last: list[str]) -> None:
    """A batch that lies in the log already: from before its topic looked at records, or from an older broker."""
    topic = random.choice(STORING)
    made_by, batch = any_batch(random)
    last.append(f"{made_by} stored in {topic}: {batch.hex()}")
    with contextlib.suppress(RequestError):
        broker.partitions.table.find(topic, 0).append(check_batch(batch, 8 << 20), broker.clock.now_ms())


async def look_at_everything(broker: BrokerNode, random: Random) -> None:
    """Sound messages still go in and come out, by every door that reads records."""
    sound = encode_batch([(broker.clock.now_ms(), b"key", b"sound", ())])
    results = await publish(broker, [(topic, sound) for topic in TOPICS])
    assert [each.error for each in results] == [None] * len(TOPICS)
    with contextlib.suppress(RequestError):  # It lies far beyond the time of a clock that goes on.
        await broker.produce.messages.publish(
            CALLER, "plain", [OutgoingMessage(b"v", headers=((DEDUP_ID, random.randbytes(1)),))]
        )
    for topic in TOPICS:
        await broker.fetch.offsets.find(CALLER, topic, 0, random.choice((0, NOW_MS, NEWEST_TIMESTAMP)), -1)
        start = int(broker.partitions.table.find(topic, 0).log.log_start_offset)
        for message in await broker.fetch.browser.browse(CALLER, topic, 0, start, 1000):
            show_headers(message.headers)
    for topic in SUBSCRIBED:
        for name in POLICIES:
            await settle_some(broker, f"{topic}-{name}", random)


async def settle_some(broker: BrokerNode, name: str, random: Random) -> None:
    await broker.queues.inspection.peek(CALLER, name, 50)
    leased = await broker.queues.leases.lease(CALLER, name, 500, 0, None)
    ack_ids = [each.ack_id for each in leased]
    half = random.randint(0, len(ack_ids))
    await answer_of(broker.queues.settlements.ack, CALLER, name, ack_ids[:half])
    await answer_of(broker.queues.settlements.nack, CALLER, name, ack_ids[half:], 0)
    await broker.queues.statistics.stats(CALLER, name)


def check_stored(broker: BrokerNode) -> None:
    """Topics that look at every record hold sound ones only."""
    for topic in ("compacted", "once-compacted", "limited"):
        log = broker.partitions.table.find(topic, 0).log
        offset = int(log.log_start_offset)
        while (found := log.read(offset, 1 << 20, log.written_offset, at_least_one=True)) is not None:
            content = found.file.read(found.position, found.length)
            for position, header in iterate_batches(content):
                list(decode_records(content[position : position + header.size]))
                offset = header.next_offset


async def test_lying_batches_stop_nothing() -> None:
    storage, last = Storage(), [""]
    number = 0
    try:
        while number < EXAMPLES:
            async with watched_broker(storage) as broker:
                if not number:
                    await create_topics(broker)
                for number in range(number, min(number + EXAMPLES_OF_ONE_START, EXAMPLES)):  # noqa: B020
                    random = Random(f"{SEED}.{number}")
                    del last[:-3]
                    if random.random() < 0.2:
                        store_unseen(broker, random, last)
                    await one_request(broker, random, last)
                    if number % EXAMPLES_BETWEEN_LOOKS == EXAMPLES_BETWEEN_LOOKS - 1:
                        storage.clock.advance(ms=random.choice((0, 5, 1_000, 60_000)))
                        await look_at_everything(broker, random)
                await look_at_everything(broker, Random(number))
                check_stored(broker)
                await dedup_what_is_stored(broker, number)
            number += 1
    except BaseException:
        print(f"FUZZ_SEED={SEED}, example {number}; the last batches:", *last, sep="\n")
        raise


async def dedup_what_is_stored(broker: BrokerNode, number: int) -> None:
    """Ids are read back from what a plain topic has stored, after the next start."""
    value = "false" if number % (2 * EXAMPLES_OF_ONE_START) < EXAMPLES_OF_ONE_START else "true"
    change = ConfigChange(name="dedup.enable", operation=Operation.SET, value=value)
    await broker.topics.change_config(CALLER, "plain", [change])


class LongestCallback:
    """The most processor time that one callback of the loop has taken on the loop's own thread.

    Another process that has the processor meanwhile does not count.
    """

    def __init__(self) -> None:
        self.seconds = 0.0

    @contextlib.contextmanager
    def measured(self) -> Iterator[None]:
        run = events.Handle._run

        def timed(handle: events.Handle) -> None:
            began = thread_time()
            run(handle)
            self.seconds = max(self.seconds, thread_time() - began)

        gc.collect()
        gc.freeze()  # What other tests have left in this process would be searched in some callback.
        try:
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(events.Handle, "_run", timed)
                yield
        finally:
            gc.unfreeze()


BOMBS = {
    **{compression.NAMES[codec]: bomb(codec) for codec in range(1, 5)},
    "a large value": sealed(raw_record(value=bytes(BOMB_BYTES - 100), headers=[DEDUP]), 1, codec=compression.ZSTD),
    "a large key": sealed(raw_record(key=bytes(BOMB_BYTES - 100), headers=[DELAY]), 1, codec=compression.ZSTD),
    "a large header": sealed(raw_record(headers=[DEDUP, (b"h", bytes(BOMB_BYTES - 100))]), 1, codec=compression.ZSTD),
    "many ids": many_records(30_000, compression.ZSTD, [DEDUP]),
}


@pytest.mark.parametrize("name", BOMBS)
async def test_bombs_do_not_stall_the_loop(name: str) -> None:
    """Unpacking any of them on the loop takes four times as long as making room for it: half of that is allowed."""
    began = thread_time()
    bytes(bytearray(BOMB_BYTES))
    too_long = 2 * (thread_time() - began)
    longest = LongestCallback()
    storage = Storage()
    async with watched_broker(storage) as broker:
        await create_topics(broker)
        with longest.measured():
            results = await publish(broker, [(topic, BOMBS[name]) for topic in TOPICS])
            assert {each.error.kind for each in results if each.error is not None} <= EXPECTED
            await publish(broker, [(topic, LIES["deltas 1 and 1"]) for topic in TOPICS])
            sound = encode_batch([(NOW_MS, b"key", b"sound", ())])
            assert not any(each.error for each in await publish(broker, [(topic, sound) for topic in TOPICS]))
            last = broker.partitions.table.find("queue", 0).log.log_end_offset - 1
            while last not in await leased_offsets(broker, "queue-unordered"):
                pass
    assert longest.seconds < too_long


async def leased_offsets(broker: BrokerNode, name: str) -> list[int]:
    leased = await broker.queues.leases.lease(CALLER, name, 300, 0, None)
    await answer_of(broker.queues.settlements.ack, CALLER, name, [each.ack_id for each in leased])
    return [each.message.offset for each in leased]
