"""Messages name their publisher, whichever way they take, and nobody else can: no door lets a client set the name."""

from collections.abc import Sequence
from threading import get_ident
from typing import Any

import pytest

from conveyor.broker.broker_node import BrokerNode
from conveyor.broker.produce import record_stages
from conveyor.broker.produce.outgoing_message import OutgoingMessage, PublishedMessage
from conveyor.broker.produce.publisher import ACKS_ALL, Published
from conveyor.broker.transaction_requests.transaction_request import TransactionRequest
from conveyor.cluster.topic_creation import TopicRequest
from conveyor.kernel.access.caller import HTTP, Caller, Principal, PrincipalType
from conveyor.kernel.errors import ErrorKind
from conveyor.log.batch_reading import batches_in
from conveyor.queues.subscription.policy import StartPosition
from conveyor.records import compression
from conveyor.records.batch import NAMES_PUBLISHER, TRANSACTIONAL, batch_is_intact
from conveyor.records.message import Message
from conveyor.records.message_attributes import DEDUP_ID, DELAY_MS, PUBLISHER
from conveyor.records.publishers import name_publisher
from conveyor.records.record import Header, decode_records, encode_batch
from conveyor.schedules.definition import Schedule
from tests.callers import ALICE, BOB, CALLER, answer_of
from tests.unit.broker.markers.producers import TransactionalClient, initialized, until
from tests.unit.broker.parts import NOW_MS, Storage
from tests.unit.broker.two_brokers import two_brokers

EARLIEST = StartPosition(kind="earliest")
FORGED: Header = (PUBLISHER, b"User:root")
NAMED = {"publisher.enable": "true"}
CODECS = pytest.mark.parametrize("codec", range(5), ids=compression.NAMES)


async def create(broker: BrokerNode, name: str, **config: str) -> None:
    settings = {setting.replace("_", "."): value for setting, value in config.items()}
    await broker.topics.create(CALLER, TopicRequest(name=name, partitions=1, config=settings))


def batch_of(
    *values: bytes, codec: int = 0, headers: Sequence[Header] = (FORGED,), sequence: int | None = None
) -> bytes:
    producer = {} if sequence is None else {"producer_id": 7, "producer_epoch": 0, "base_sequence": sequence}
    return encode_batch([(NOW_MS, b"k", value, headers) for value in values], codec=codec, **producer)


async def produce(broker: BrokerNode, topic: str, batch: bytes, caller: Caller = ALICE) -> Published:
    """Produce a batch as a Kafka client."""
    publish = broker.produce.publisher.publish
    results: Sequence[Published] = await answer_of(lambda reply: publish(caller, [(topic, 0, batch)], ACKS_ALL, reply))
    return results[0]


async def browsed(broker: BrokerNode, topic: str, count: int = 1) -> list[Message]:
    """Return the messages of a topic, once there are as many."""
    partition = broker.partitions.table.find(topic, 0)
    await until(lambda: partition.term.high_watermark >= count)
    return await broker.fetch.browser.browse(CALLER, topic, 0, EARLIEST, 100)


async def publishers(broker: BrokerNode, topic: str, count: int = 1) -> list[str | None]:
    """Return whom the messages name, which have no other header of that name."""
    messages = await browsed(broker, topic, count)
    for message in messages:
        assert [name for name, _ in message.headers].count(PUBLISHER) == (message.publisher is not None)
    return [message.publisher for message in messages]


def stored(broker: BrokerNode, topic: str, offset: int = 0) -> bytes:
    """Return the batch as Kafka clients get it."""
    log = broker.partitions.table.find(topic, 0).log
    found = log.read(offset, 1, log.written_offset, at_least_one=True)
    assert found is not None
    _, _, batch = next(batches_in(found, offset))
    return batch


async def test_messages_of_rest_name_the_user(broker: BrokerNode) -> None:
    messages = [OutgoingMessage(b"1", partition=0), OutgoingMessage(b"2", headers=(("a", b"b"), FORGED), partition=0)]
    for caller in (ALICE, CALLER):
        await broker.produce.messages.publish(caller, "t", messages)
    assert await publishers(broker, "t", 4) == ["User:alice", "User:alice", None, None]
    assert (await browsed(broker, "t"))[1].headers == (("a", b"b"), (PUBLISHER, b"User:alice"))


async def test_without_a_login_the_bytes_are_as_ever(broker: BrokerNode) -> None:
    await broker.produce.messages.publish(CALLER, "t", [OutgoingMessage(b"1", b"k", partition=0)])
    assert stored(broker, "t")[21:23] == b"\0\0"


async def test_transaction_over_rest_names_the_user(broker: BrokerNode) -> None:
    request = TransactionRequest(None, [("t", OutgoingMessage(b"1", headers=(FORGED,), partition=0))], [])
    await broker.transaction_requests.execute(ALICE, request)
    assert await publishers(broker, "t", 2) == ["User:alice"]


@CODECS
async def test_name_that_a_kafka_client_sends_is_not_believed(broker: BrokerNode, codec: int) -> None:
    """A plain topic stores it, for Kafka clients alone."""
    await broker.queues.lifecycle.create(CALLER, "t", "s", EARLIEST, {})
    sent = batch_of(b"1", codec=codec)
    assert (await produce(broker, "t", sent)).error is None
    assert next(decode_records(stored(broker, "t"))).headers == (FORGED,)
    assert await publishers(broker, "t") == [None]
    [leased] = await broker.queues.leases.lease(CALLER, "s", 10, 0, None)
    [peeked] = await broker.queues.inspection.peek(CALLER, "s", 10)
    assert leased.message.headers == peeked.message.headers == ()
    assert (await broker.fetch.browser.get(CALLER, "t", "0-0")).headers == ()


async def test_filter_does_not_believe_it_either(broker: BrokerNode) -> None:
    policy = {"filter": f'"{PUBLISHER}" in headers && headers["{PUBLISHER}"] == "User:root"'}
    await broker.queues.lifecycle.create(CALLER, "t", "s", EARLIEST, policy)
    await produce(broker, "t", batch_of(b"forged"))
    root = Caller(Principal(PrincipalType.USER, "root"), "192.0.2.9", HTTP, 7)
    await broker.produce.messages.publish(root, "t", [OutgoingMessage(b"true", partition=0)])
    assert [lease.message.value for lease in await broker.queues.leases.lease(CALLER, "s", 10, 0, None)] == [b"true"]


async def test_bit_that_only_brokers_set_is_refused_in_every_topic(broker: BrokerNode) -> None:
    await create(broker, "named", **NAMED)
    await create(broker, "packed", compression_type="zstd")
    forged = encode_batch([(NOW_MS, b"k", b"v", (FORGED,))], attributes=NAMES_PUBLISHER)
    for topic in ("t", "named", "packed"):
        error = (await produce(broker, topic, forged)).error
        assert error is not None
        assert error.kind is ErrorKind.INVALID_RECORD
    client = await initialized(broker)
    await client.add(broker.partitions.table.find("t", 0).identity)
    in_transaction = encode_batch(
        [(NOW_MS, b"k", b"v", (FORGED,))], attributes=NAMES_PUBLISHER | TRANSACTIONAL, **client.producer._asdict(),
        base_sequence=0,
    )  # fmt: skip
    publish = broker.produce.publisher.publish
    [result] = await answer_of(
        lambda reply: publish(
            CALLER, [("t", 0, in_transaction)], ACKS_ALL, reply, transactional_id=client.transactional_id
        )
    )
    assert result.error.kind is ErrorKind.INVALID_RECORD


@pytest.mark.parametrize("bit", [0x80, 0x100, 0x2000, 0x8000])
async def test_bit_that_nobody_uses_is_refused(broker: BrokerNode, bit: int) -> None:
    """A later version may believe that a broker has set it."""
    signed = bit - (1 << 16) if bit == 0x8000 else bit
    error = (await produce(broker, "t", encode_batch([(NOW_MS, b"k", b"v", ())], attributes=signed))).error
    assert error is not None
    assert error.kind is ErrorKind.INVALID_RECORD


@pytest.mark.parametrize("is_large", [False, True])
async def test_large_batch_is_named_off_the_loop(
    broker: BrokerNode, monkeypatch: pytest.MonkeyPatch, is_large: bool
) -> None:
    threads: list[int] = []

    def name(*arguments: Any) -> Any:
        threads.append(get_ident())
        return name_publisher(*arguments)

    monkeypatch.setattr(record_stages, "name_publisher", name)
    await create(broker, "named", **NAMED)
    headers = (("", b""),) * (10_000 if is_large else 100)
    await produce(broker, "named", encode_batch([(NOW_MS, b"k", b"v", headers)]), ALICE)
    assert (threads == [get_ident()]) is not is_large
    assert len(threads) == 1


@CODECS
async def test_named_topic_replaces_what_kafka_clients_send(broker: BrokerNode, codec: int) -> None:
    await create(broker, "named", **NAMED)
    for caller, sequence in ((ALICE, 0), (BOB, 2), (ALICE, 0)):  # The last one repeats the first.
        result = await produce(broker, "named", batch_of(b"1", b"2", codec=codec, sequence=sequence), caller)
        assert (result.error, result.base_offset) == (None, sequence)
    assert await publishers(broker, "named", 4) == ["User:alice"] * 2 + ["User:bob"] * 2
    batch = stored(broker, "named", 2)
    assert batch_is_intact(batch)
    assert [(record.offset, record.headers) for record in decode_records(batch)] == [
        (offset, ((PUBLISHER, b"User:bob"),)) for offset in (2, 3)
    ]
    assert batch[22] == codec


@pytest.mark.parametrize("codec", [compression.NONE, compression.ZSTD])
async def test_named_topic_removes_the_name_that_nobody_sends(broker: BrokerNode, codec: int) -> None:
    await create(broker, "named", **NAMED)
    for headers in ((FORGED, ("a", b"b")), ()):
        await produce(broker, "named", batch_of(b"1", codec=codec, headers=headers), CALLER)
    assert await publishers(broker, "named", 2) == [None, None]
    assert next(decode_records(stored(broker, "named"))).headers == (("a", b"b"),)


async def test_named_topic_keeps_the_name_of_rest(broker: BrokerNode) -> None:
    await create(broker, "named", **NAMED)
    await broker.produce.messages.publish(ALICE, "named", [OutgoingMessage(b"1")])
    await broker.produce.messages.publish(CALLER, "named", [OutgoingMessage(b"2", headers=(FORGED,))])
    assert await publishers(broker, "named", 2) == ["User:alice", None]


@pytest.mark.parametrize("value", [b"", b"v" * 100_000], ids=["small", "large"])
async def test_name_is_set_besides_the_other_stages(broker: BrokerNode, value: bytes) -> None:
    """Small batches on the event loop, and large ones on a thread."""
    await create(broker, "named", **NAMED, compression_type="lz4", dedup_enable="true", cleanup_policy="compact")
    ids: tuple[Header, ...] = ((DEDUP_ID, b"once"),)
    for _ in range(2):
        await produce(broker, "named", batch_of(value + b"1", headers=(FORGED, *ids)))
    await produce(broker, "named", batch_of(value + b"2", headers=()), BOB)
    assert await publishers(broker, "named", 2) == ["User:alice", "User:bob"]


async def test_batch_that_is_too_large_with_the_names_is_refused(broker: BrokerNode) -> None:
    await create(broker, "named", **NAMED, max_message_bytes="1000")
    batch = batch_of(*[b"v"] * 50, headers=())
    assert len(batch) < 1000
    error = (await produce(broker, "named", batch)).error
    assert error is not None
    assert error.kind is ErrorKind.MESSAGE_TOO_LARGE
    assert (await produce(broker, "named", batch_of(b"v", headers=()))).error is None


async def test_transaction_of_a_kafka_client_is_named(broker: BrokerNode) -> None:
    await create(broker, "named", **NAMED)
    client: TransactionalClient = await initialized(broker)
    place = broker.partitions.table.find("named", 0).identity
    await client.add(place)
    publish, batch = broker.produce.publisher.publish, client.batch(place, FORGED)
    [result] = await answer_of(
        lambda reply: publish(ALICE, [("named", 0, batch)], ACKS_ALL, reply, transactional_id=client.transactional_id)
    )
    assert result.error is None
    await client.end(commit=True)
    assert await publishers(broker, "named", 2) == ["User:alice"]


@pytest.mark.parametrize("headers", [(FORGED,), (FORGED, (DELAY_MS, b"1000"))], ids=["whole", "singly"])
@pytest.mark.parametrize("is_named", [True, False])
async def test_delayed_copy_keeps_the_first_publisher(
    broker: BrokerNode, storage: Storage, headers: tuple[Header, ...], is_named: bool
) -> None:
    """The delayed topic names the publishers if its target does, as Kafka clients believe the header there."""
    await create(broker, "target", **(NAMED if is_named else {}))
    await create(broker, "delayed", delay_target="target")
    await produce(broker, "delayed", batch_of(b"1", b"2", headers=headers))
    message = OutgoingMessage(b"3", headers=((DELAY_MS, b"1000"),))
    await broker.produce.messages.publish(BOB, "delayed", [message])
    await until(lambda: broker.partitions.table.find("delayed", 0).term.high_watermark == 3)
    storage.clock.advance(ms=1_000)
    first = "User:alice" if is_named else None
    assert await publishers(broker, "target", 3) == [first, first, "User:bob"]
    if is_named:
        records = list(decode_records(stored(broker, "target")))
        assert all(FORGED not in record.headers for record in records)


@pytest.mark.parametrize("is_named", [True, False])
async def test_dead_letter_keeps_the_first_publisher(broker: BrokerNode, is_named: bool) -> None:
    """So does what is published from its copy once the original is gone, whoever redrives it."""
    await create(broker, "jobs")
    await create(broker, "dead", **(NAMED if is_named else {}))
    await broker.queues.lifecycle.create(CALLER, "jobs", "s", EARLIEST, {"dead_letter_topic": "dead"})
    await produce(broker, "jobs", batch_of(b"forged"), BOB)
    await broker.produce.messages.publish(ALICE, "jobs", [OutgoingMessage(b"true")])
    leases = await broker.queues.leases.lease(CALLER, "s", 10, 0, None)
    await answer_of(broker.queues.settlements.reject, CALLER, "s", [lease.ack_id for lease in leases], "bad")
    assert await publishers(broker, "dead", 2) == [None, "User:alice"]
    letters = (await broker.queues.dead_letters.peek(CALLER, "s", 10)).letters
    assert [letter.message.publisher for letter in letters] == [None, "User:alice"]
    await broker.partitions.retention.trim(broker.partitions.table.find("jobs", 0), 2)
    assert await broker.queues.dead_letters.redrive.redrive(BOB, "s") == 2
    assert await publishers(broker, "jobs", 4) == [None, "User:alice"]


async def test_forged_copy_of_a_dead_letter_names_nobody(broker: BrokerNode) -> None:
    await create(broker, "dead")
    await produce(broker, "dead", batch_of(b"1"))
    assert await publishers(broker, "dead") == [None]


async def test_messages_of_a_schedule_name_its_owner(broker: BrokerNode, storage: Storage) -> None:
    schedules, minute_ms = broker.schedules, 60_000
    await schedules.add(ALICE, Schedule(name="s", topic="t", cron="* * * * *", payload=b"1", key=b"k"))

    async def named_next() -> str | None:
        count = sum(broker.partitions.table.find("t", number).term.high_watermark for number in range(2))
        storage.clock.advance(ms=minute_ms)
        number = next(iter(await owner_partitions(broker, count)))
        return (await broker.fetch.browser.browse(CALLER, "t", number, 0, 100))[-1].publisher

    assert await named_next() == "User:alice"
    await schedules.change(BOB, "s", {"cron": "*/1 * * * *"})
    assert (schedules.existing("s").owner, await named_next()) == ("User:alice", "User:alice")
    await schedules.change(BOB, "s", {"payload": b"2"})
    assert (schedules.existing("s").owner, await named_next()) == ("User:bob", "User:bob")
    await schedules.change(CALLER, "s", {"headers": ()})
    assert (schedules.existing("s").owner, await named_next()) == ("", None)


async def owner_partitions(broker: BrokerNode, count: int) -> list[int]:
    """Return the partitions with messages, once there are more than `count`."""
    partitions = [broker.partitions.table.find("t", number) for number in range(2)]
    await until(lambda: sum(partition.term.high_watermark for partition in partitions) > count)
    return [number for number, partition in enumerate(partitions) if partition.term.high_watermark]


async def test_any_broker_names_the_publisher_at_the_leader() -> None:
    async with two_brokers() as brokers:
        for broker in (brokers.one, brokers.two):
            results = await broker.produce.messages.publish(
                ALICE, "t", [OutgoingMessage(b"m", headers=(FORGED,), partition=number) for number in (0, 1)]
            )
            assert all(isinstance(result, PublishedMessage) for result in results)
        for number, broker in enumerate((brokers.one, brokers.two)):
            found = await broker.fetch.browser.browse(CALLER, "t", number, 0, 10)
            assert [message.publisher for message in found] == ["User:alice"] * 2
