"""Recompressed batches: all are stored in order, and every request is answered."""

import asyncio

from crc32c import crc32c

from conveyor.broker.broker_node import BrokerNode
from conveyor.broker.produce.publisher import ACKS_ALL, ACKS_LEADER, ACKS_NONE, Published
from conveyor.cluster.topic_creation import TopicRequest
from conveyor.kernel.errors import ErrorKind
from conveyor.records import compression
from conveyor.records.batch import HEADER_BYTES, iterate_batches
from conveyor.records.record import decode_records, encode_batch
from tests.callers import CALLER


def numbered(number: int, codec: int) -> bytes:
    return encode_batch([(1000, None, b"%d" % number, ())], codec=codec)


async def published(broker: BrokerNode, batch: bytes, acks: int = ACKS_ALL) -> Published:
    done: asyncio.Future[Published] = asyncio.get_running_loop().create_future()
    broker.produce.publisher.publish(CALLER, [("z", 0, batch)], acks, lambda results: done.set_result(results[0]))
    return await done


async def stored(broker: BrokerNode) -> list[tuple[int, bytes | None]]:
    """Return (codec, value) of every record."""
    log = broker.partitions.table.find("z", 0).log
    chunk = log.read(0, 1 << 20, log.written_offset, at_least_one=True)
    assert chunk is not None
    content = chunk.file.read(chunk.position, chunk.length)
    return [
        (header.attributes & 7, record.value)
        for position, header in iterate_batches(content)
        for record in decode_records(content[position : position + header.size])
    ]


async def test_batches_keep_their_order_while_some_are_packed(broker: BrokerNode) -> None:
    await broker.topics.create(CALLER, TopicRequest(name="z", config={"compression.type": "zstd"}))
    codecs = [compression.NONE, compression.ZSTD, compression.GZIP, compression.ZSTD, compression.LZ4] * 10
    answers = await asyncio.gather(
        *[
            published(broker, numbered(number, codec), [ACKS_ALL, ACKS_LEADER, ACKS_NONE][number % 3])
            for number, codec in enumerate(codecs)
        ]
    )
    assert [answer.error for answer in answers] == [None] * len(codecs)
    assert [answer.base_offset for answer in answers] == list(range(len(codecs)))
    await broker.partitions.tick.end()
    assert await stored(broker) == [(compression.ZSTD, b"%d" % number) for number in range(len(codecs))]


async def test_batch_that_does_not_unpack_is_refused_and_the_next_goes_on(broker: BrokerNode) -> None:
    await broker.topics.create(CALLER, TopicRequest(name="z", config={"compression.type": "gzip"}))
    whole = bytearray(encode_batch([(1000, None, b"nonsense that is no zstd", ())]))
    whole[22] = compression.ZSTD
    whole[17:21] = checksum(bytes(whole))
    answers = await asyncio.gather(published(broker, bytes(whole)), published(broker, numbered(1, compression.NONE)))
    assert answers[0].error is not None
    assert answers[0].error.kind is ErrorKind.INVALID_RECORD
    assert answers[1].base_offset == 0


async def test_damaged_batch_is_refused_before_it_is_packed(broker: BrokerNode) -> None:
    await broker.topics.create(CALLER, TopicRequest(name="z", config={"compression.type": "gzip"}))
    batch = bytearray(numbered(1, compression.NONE))
    batch[HEADER_BYTES] ^= 1
    answer = await published(broker, bytes(batch))
    assert answer.error is not None
    assert answer.error.kind is ErrorKind.CORRUPT_BATCH


def checksum(batch: bytes) -> bytes:
    return crc32c(batch[21:]).to_bytes(4, "big")
