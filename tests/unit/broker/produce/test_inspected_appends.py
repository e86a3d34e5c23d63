"""Inspected batches: invalid ones are refused, and the others keep their order, whatever their size."""

import asyncio
from collections.abc import Mapping, Sequence
from threading import Event

import pytest

from conveyor.broker.broker_node import BrokerNode
from conveyor.broker.produce import inspected_appends
from conveyor.broker.produce.outgoing_message import OutgoingMessage
from conveyor.broker.produce.publisher import ACKS_ALL, ACKS_LEADER, Published
from conveyor.broker.produce.record_stages import ProducedRecords, StagedBatch, inspect_records
from conveyor.cluster.topic_creation import TopicRequest
from conveyor.kernel.errors import ErrorKind, RequestError
from conveyor.kernel.ids import LeaderEpoch, NodeId
from conveyor.records import compression
from conveyor.records.batch import MAGIC_END, placed_prefix, read_header
from conveyor.records.checked_batch import MAX_RECORDS
from conveyor.records.message_attributes import DEDUP_ID
from conveyor.records.record import Header, encode_batch
from conveyor.records.record_checks import MAX_RECORD_ERRORS, RefusedRecords
from conveyor.replication.roles import Follower, Leader
from tests.callers import CALLER
from tests.lying_batches import DEDUP, LIES, bomb, many_records, raw_record, sealed
from tests.unit.broker.parts import NOW_MS, Storage, running_parts

LOOKING: dict[str, Mapping[str, str]] = {
    "compacted": {"cleanup.policy": "compact"},
    "limited": {"message.timestamp.before.max.ms": "1000"},
    "once": {"dedup.enable": "true"},
    "packed": {"compression.type": "zstd", "cleanup.policy": "compact"},
}
CODECS = pytest.mark.parametrize("codec", range(1, 5), ids=compression.NAMES[1:])
KNOWN: tuple[Header, ...] = ((DEDUP_ID, b"known"),)


async def create(broker: BrokerNode, name: str, config: Mapping[str, str] | None = None) -> None:
    await broker.topics.create(
        CALLER, TopicRequest(name=name, partitions=1, config=LOOKING[name] if config is None else config)
    )


def begin(broker: BrokerNode, topic: str, batch: bytes, acks: int = ACKS_ALL) -> "asyncio.Future[Published]":
    done: asyncio.Future[Published] = asyncio.get_running_loop().create_future()
    broker.produce.publisher.publish(CALLER, [(topic, 0, batch)], acks, lambda results: done.set_result(results[0]))
    return done


async def refusal(broker: BrokerNode, topic: str, batch: bytes) -> RequestError:
    error = (await begin(broker, topic, batch)).error
    assert error is not None
    return error


def sound(*values: bytes, codec: int = compression.NONE, headers: Sequence[Header] = ()) -> bytes:
    return encode_batch([(NOW_MS, b"k", value, headers) for value in values], codec=codec)


@pytest.mark.parametrize("topic", LOOKING)
async def test_batches_that_lie_are_refused_and_the_next_goes_on(broker: BrokerNode, topic: str) -> None:
    await create(broker, topic)
    await begin(broker, topic, sound(b"first", headers=KNOWN))
    looks_for_names = topic in ("once", "delayed", "both")
    for name, lie in LIES.items():
        error = (await begin(broker, topic, lie)).error
        if error is None:
            assert looks_for_names, name
            assert b"conveyor-" not in lie, name
        else:
            assert error.kind is ErrorKind.INVALID_RECORD, name
    assert (await begin(broker, topic, sound(b"last"))).error is None
    assert not broker.partitions.table.offline()


async def test_known_ids_in_a_batch_whose_offset_deltas_repeat_stop_nothing(broker: BrokerNode) -> None:
    await create(broker, "once")
    await begin(broker, "once", sound(b"v", headers=KNOWN))
    assert (await refusal(broker, "once", LIES["deltas 1 and 1"])).kind is ErrorKind.INVALID_RECORD
    assert (await begin(broker, "once", sound(b"v", b"w", headers=KNOWN))).duplicates == {0: 0, 1: 0}


async def test_ids_are_read_back_over_batches_that_lie(storage: Storage) -> None:
    async with running_parts(storage=storage) as broker:
        await create(broker, "plain", {})
        for lie in LIES.values():
            await begin(broker, "plain", lie)
        place = (await begin(broker, "plain", sound(b"v", headers=((DEDUP_ID, b"mine"),)))).base_offset
    async with running_parts(storage=storage) as broker:
        message = OutgoingMessage(b"again", headers=((DEDUP_ID, b"mine"),))
        (published,) = await broker.produce.messages.publish(CALLER, "plain", [message])
        assert not isinstance(published, RequestError)
        assert (published.offset, published.duplicate) == (place, True)


async def test_batches_keep_their_order_behind_one_that_takes_long(broker: BrokerNode) -> None:
    await create(broker, "compacted")
    await create(broker, "other", LOOKING["compacted"])
    large = many_records(20_000, compression.ZSTD)
    answers = [begin(broker, "compacted", content) for content in (large, sound(b"a"), large, sound(b"b"))]
    beside = begin(broker, "other", sound(b"c"), ACKS_LEADER)
    await broker.partitions.tick.end()
    assert beside.done(), "a small batch of another partition does not wait"
    assert [(await answer).base_offset for answer in answers] == [0, 20_000, 20_001, 40_001]


@CODECS
async def test_large_batch_is_deduplicated(broker: BrokerNode, codec: int) -> None:
    await create(broker, "once")
    await begin(broker, "once", sound(b"v", headers=KNOWN))
    content = raw_record(0, value=bytes(3 << 20)) + raw_record(1, headers=[(b"conveyor-dedup-id", b"known")])
    answer = await begin(broker, "once", sealed(content, 2, codec=codec))
    assert (answer.base_offset, answer.duplicates) == (1, {1: 0})
    messages = await broker.fetch.browser.browse(CALLER, "once", 0, 0, 9)
    assert [(message.offset, len(message.value or b"")) for message in messages] == [(0, 1), (1, 3 << 20)]


async def test_a_large_batch_is_deduplicated_again_if_other_brokers_led_meanwhile(
    broker: BrokerNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    await create(broker, "once")
    await begin(broker, "once", sound(b"v", headers=KNOWN))
    partition = broker.partitions.table.find("once", 0)
    begun, released = asyncio.Event(), Event()
    runs: list[ProducedRecords] = []
    loop, run = asyncio.get_running_loop(), inspected_appends._run_off_loop

    def held(records: ProducedRecords) -> StagedBatch | RequestError:
        loop.call_soon_threadsafe(begun.set)
        assert released.wait(20)
        runs.append(records)
        return run(records)

    monkeypatch.setattr(inspected_appends, "_run_off_loop", held)
    content = raw_record(0, value=bytes(3 << 20)) + raw_record(1, headers=[(b"conveyor-dedup-id", b"other")])
    answer = begin(broker, "once", sealed(content, 2, codec=compression.ZSTD))
    await begun.wait()
    partition.assume(Follower(leader=NodeId(2), epoch=LeaderEpoch(partition.term.epoch + 1)))
    copied = sound(b"v", headers=((DEDUP_ID, b"other"),))
    prefix = placed_prefix(1, read_header(copied), partition.term.epoch)
    partition.append_as_follower(prefix + copied[MAGIC_END:], NOW_MS)
    partition.write()
    epoch = LeaderEpoch(partition.term.epoch + 1)
    partition.assume(Leader(leader=NodeId(1), epoch=epoch, isr=(NodeId(1),)))
    released.set()
    published = await answer
    assert (published.error, published.duplicates) == (None, {1: 1})
    assert len(runs) == 2


async def test_retry_of_a_large_batch_is_answered_with_the_first_try(broker: BrokerNode) -> None:
    await create(broker, "compacted")
    batch = encode_batch(
        [(NOW_MS, b"k", b"", ())] * 5_000, codec=compression.LZ4, producer_id=7, producer_epoch=0, base_sequence=0
    )
    answers = [begin(broker, "compacted", batch) for _ in range(3)]
    assert [(await answer).base_offset for answer in answers] == [0, 0, 0]


async def test_what_is_under_way_is_appended_before_the_broker_stops(storage: Storage) -> None:
    async with running_parts(storage=storage) as broker:
        await create(broker, "compacted")
        under_way = [begin(broker, "compacted", many_records(5_000, compression.GZIP)) for _ in range(4)]
    assert [(await pending).base_offset for pending in under_way] == [0, 5_000, 10_000, 15_000]


@CODECS
@pytest.mark.parametrize("topic", LOOKING)
async def test_bomb_is_refused_or_taken_as_it_is(broker: BrokerNode, topic: str, codec: int) -> None:
    await create(broker, topic)
    batch = bomb(codec, 24 << 20)
    if len(batch) > 1 << 20:
        return
    assert (await refusal(broker, topic, batch)).kind is ErrorKind.INVALID_RECORD
    assert (await begin(broker, topic, sound(b"v"))).error is None


@pytest.mark.parametrize(
    ("config", "batch"),
    [
        ({}, sealed(b"", MAX_RECORDS + 1, codec=compression.ZSTD)),
        ({"dedup.enable": "true"}, many_records(10_001, compression.ZSTD, [DEDUP])),
    ],
    ids=["records", "ids"],
)
async def test_batch_that_is_too_large_is_refused_so_that_its_producer_divides_it(
    broker: BrokerNode, config: Mapping[str, str], batch: bytes
) -> None:
    await create(broker, "small", config)
    assert (await refusal(broker, "small", batch)).kind is ErrorKind.MESSAGE_TOO_LARGE


async def test_each_record_that_a_topic_does_not_take_is_named(broker: BrokerNode) -> None:
    await create(broker, "compacted", {"cleanup.policy": "compact", "message.timestamp.before.max.ms": "1000"})
    await begin(broker, "compacted", sound(b"first"))
    partition = broker.partitions.table.find("compacted", 0)
    partition.log.start.offset = partition.term.high_watermark
    records = [(NOW_MS, b"k", b"", ()), (NOW_MS, None, b"", ()), (NOW_MS - 2_000, None, b"", ()), (-1, b"k", b"", ())]
    answer = await begin(broker, "compacted", encode_batch(records))
    assert isinstance(answer.error, RefusedRecords)
    assert answer.error.kind is ErrorKind.INVALID_TIMESTAMP
    assert [error.batch_index for error in answer.error.record_errors] == [1, 2]
    without_key, too_old = answer.error.record_errors
    assert "without a key" in without_key.message
    assert "message.timestamp.before.max.ms" in too_old.message
    assert "2 of 4 records" in answer.error.message
    assert (answer.base_offset, answer.log_start_offset) == (-1, 1)


@pytest.mark.parametrize("count", [1, 5_000], ids=["small", "large"])
async def test_records_from_the_future_are_named_on_a_plain_topic(broker: BrokerNode, count: int) -> None:
    later_ms = NOW_MS + 3_600_001
    records = [(NOW_MS, None, b"", ())] * count + [(later_ms, None, b"", ())]
    error = await refusal(broker, "t", encode_batch(records, codec=compression.GZIP))
    assert isinstance(error, RefusedRecords)
    assert [refused.batch_index for refused in error.record_errors] == [count]
    lying = sealed(raw_record(), 1, fields={"max_timestamp": later_ms})
    assert (await refusal(broker, "t", lying)).kind is ErrorKind.INVALID_TIMESTAMP


async def test_no_more_records_are_named_than_an_answer_may_hold(broker: BrokerNode) -> None:
    await create(broker, "compacted")
    records = [(NOW_MS, None, b"", ())] * (MAX_RECORD_ERRORS + 5)
    error = await refusal(broker, "compacted", encode_batch(records, codec=compression.ZSTD))
    assert isinstance(error, RefusedRecords)
    assert len(error.record_errors) == MAX_RECORD_ERRORS
    assert f"{MAX_RECORD_ERRORS + 5} of" in error.message


async def test_message_that_is_refused_says_why_and_the_others_of_its_batch_that_they_are_sound(
    broker: BrokerNode,
) -> None:
    await create(broker, "compacted")
    results = await broker.produce.messages.publish(
        CALLER, "compacted", [OutgoingMessage(b"v", key=b"k"), OutgoingMessage(b"v")]
    )
    reasons = [result.message for result in results if isinstance(result, RequestError)]
    assert ["another message" in reasons[0], "without a key" in reasons[1]] == [True, True]


async def test_readers_pass_over_stored_batches_that_lie(broker: BrokerNode) -> None:
    for number, lie in enumerate(LIES.values()):
        await begin(broker, "t", lie)
        await begin(broker, "t", sound(b"%d" % number))
    values = [message.value for message in await broker.fetch.browser.read(CALLER, "t", 0, 0, 100, 1 << 20)]
    assert values == [b"%d" % number for number in range(len(LIES))]


@pytest.mark.slow
@pytest.mark.parametrize("number", [1, 60], ids=["one partition", "many partitions"])
async def test_many_small_batches_are_inspected_in_many_turns_of_the_event_loop(
    broker: BrokerNode, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """Each takes 200 bytes, and unpacks to 30,000 headers."""
    await broker.topics.create(CALLER, TopicRequest(name="many", partitions=number, config=LOOKING["compacted"]))
    loop = asyncio.get_running_loop()
    turns = [0]

    def counted(records: ProducedRecords, content: compression.Unpacked) -> StagedBatch:
        turns[-1] += len(content)
        return inspect_records(records, content)

    def turn() -> None:
        turns.append(0)
        loop.call_soon(turn)

    monkeypatch.setattr(inspected_appends, "inspect_records", counted)
    records = b"".join(raw_record(delta, headers=[(b"", None)] * 9_900) for delta in range(3))
    batch = sealed(records, 3, codec=compression.GZIP)
    done: asyncio.Future[Sequence[Published]] = loop.create_future()
    turn()
    broker.produce.publisher.publish(
        CALLER, [("many", item % number, batch) for item in range(60)], ACKS_ALL, done.set_result
    )
    offsets = [published.base_offset for published in await done]
    assert offsets == [3 * (item // number) for item in range(60)]
    assert max(turns) <= inspected_appends.TURN_BYTES + len(records)
