"""Transactions by handle on one broker: their outcome, their timeout, repeated requests, and the producers they use."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from conveyor.broker.broker_node import BrokerNode
from conveyor.broker.handles.producer_slots import REST_MS
from conveyor.broker.produce.outgoing_message import OutgoingMessage, PublishedMessage
from conveyor.cluster.topic_creation import TopicRequest
from conveyor.kernel.errors import ErrorKind, RequestError
from conveyor.queues.subscription.policy import StartPosition
from conveyor.transactions.transaction_commands import InitializeProducer, ListTransactions
from tests.unit.broker.parts import Storage, running_parts
from tests.unit.broker.publishing import message
from tests.unit.broker.transactions.producers import is_stable, until

TIMEOUT_MS = 60_000
PRODUCERS = 15
DEDUP = ("conveyor-dedup-id", b"id")


@pytest.fixture
async def broker(storage: Storage) -> AsyncIterator[BrokerNode]:
    """A broker with the topics `t` and `u`, which lends as many producers as `PRODUCERS`."""
    settings = {"producers.max_producers_per_partition": 10 * PRODUCERS, "transactions.state_replication_factor": 1}
    async with running_parts(settings, storage) as running:
        for topic in ("t", "u"):
            await running.topics.create(TopicRequest(name=topic, partitions=2))
        yield running


async def publish(broker: BrokerNode, handle: str, *messages: OutgoingMessage, topic: str = "t") -> None:
    results = await broker.handle_transactions.publish(handle, topic, messages or [message(partition=0)])
    assert all(isinstance(result, PublishedMessage) for result in results), results


async def kind_of(broker: BrokerNode, handle: str, *, commit: bool) -> ErrorKind | None:
    """Return the refusal of a commit or an abort; None if there is none."""
    try:
        await broker.handle_transactions.finish(handle, commit=commit)
    except RequestError as error:
        return error.kind
    return None


async def values(broker: BrokerNode, topic: str = "t") -> list[bytes]:
    """Return the values that readers of committed records see."""
    stored = [await broker.message_browser.browse(topic, number, 0, 100) for number in range(2)]
    return sorted(message.value or b"" for messages in stored for message in messages)


async def publish_refusal(broker: BrokerNode, handle: str) -> ErrorKind:
    with pytest.raises(RequestError) as refused:
        await broker.handle_transactions.publish(handle, "t", [message(partition=0)])
    return refused.value.kind


async def test_messages_count_once_they_are_committed(broker: BrokerNode) -> None:
    handle = await broker.handle_transactions.begin(TIMEOUT_MS)
    await publish(broker, handle, message(b"a", partition=0), message(b"b", partition=1))
    await publish(broker, handle, message(b"c", partition=0), topic="u")
    assert (await values(broker), await values(broker, "u")) == ([], [])
    await broker.handle_transactions.finish(handle, commit=True)
    assert (await values(broker), await values(broker, "u")) == ([b"a", b"b"], [b"c"])


async def test_messages_of_an_aborted_transaction_do_not_count(broker: BrokerNode) -> None:
    handle = await broker.handle_transactions.begin(TIMEOUT_MS)
    await publish(broker, handle)
    await broker.handle_transactions.finish(handle, commit=False)
    assert await values(broker) == []


@pytest.mark.parametrize("is_empty", [True, False])
@pytest.mark.parametrize("commit", [True, False])
async def test_end_can_be_repeated_and_not_changed(broker: BrokerNode, commit: bool, is_empty: bool) -> None:
    handle = await broker.handle_transactions.begin(TIMEOUT_MS)
    if not is_empty:
        await publish(broker, handle)
    assert [await kind_of(broker, handle, commit=commit) for _ in range(3)] == [None] * 3
    other = ErrorKind.TRANSACTION_ENDED if commit else ErrorKind.TRANSACTION_ABORTED
    assert await kind_of(broker, handle, commit=not commit) is other
    assert await publish_refusal(broker, handle) is ErrorKind.TRANSACTION_ENDED


async def test_end_can_be_repeated_while_others_begin_transactions(broker: BrokerNode, storage: Storage) -> None:
    handle = await broker.handle_transactions.begin(TIMEOUT_MS)
    await publish(broker, handle)
    await broker.handle_transactions.finish(handle, commit=True)
    storage.clock.advance(ms=REST_MS - 1)
    for _ in range(2):
        await publish(broker, await broker.handle_transactions.begin(10 * REST_MS))
    assert await kind_of(broker, handle, commit=True) is None


async def test_stale_handle_names_no_transaction_of_a_later_client(broker: BrokerNode, storage: Storage) -> None:
    stale = await broker.handle_transactions.begin(TIMEOUT_MS)
    await broker.handle_transactions.finish(stale, commit=True)
    storage.clock.advance(ms=REST_MS)
    handle = await broker.handle_transactions.begin(TIMEOUT_MS)
    await publish(broker, handle, message(b"later", partition=0))
    assert await publish_refusal(broker, stale) is ErrorKind.TRANSACTION_ENDED
    assert await kind_of(broker, stale, commit=True) is ErrorKind.UNKNOWN_TRANSACTION
    assert await kind_of(broker, stale, commit=False) is ErrorKind.UNKNOWN_TRANSACTION
    assert await kind_of(broker, handle, commit=True) is None
    assert await values(broker) == [b"later"]


async def test_transaction_is_aborted_after_its_timeout(broker: BrokerNode, storage: Storage) -> None:
    handle = await broker.handle_transactions.begin(5_000)
    storage.clock.advance(ms=4_999)
    await publish(broker, handle)
    storage.clock.advance(ms=1)
    await until(lambda: broker.handle_transactions.slots.used_count == 0)
    assert await kind_of(broker, handle, commit=True) is ErrorKind.TRANSACTION_ABORTED
    assert await values(broker) == []


async def test_only_so_many_transactions_are_open(broker: BrokerNode, storage: Storage) -> None:
    handles = [await broker.handle_transactions.begin(TIMEOUT_MS) for _ in range(PRODUCERS)]
    with pytest.raises(RequestError) as refused:
        await broker.handle_transactions.begin(TIMEOUT_MS)
    assert refused.value.kind is ErrorKind.THROTTLING_QUOTA_EXCEEDED
    for handle in handles:
        await broker.handle_transactions.finish(handle, commit=False)
    with pytest.raises(RequestError):
        await broker.handle_transactions.begin(TIMEOUT_MS)
    storage.clock.advance(ms=REST_MS)
    assert await broker.handle_transactions.begin(TIMEOUT_MS) not in handles
    assert len(await broker.transactions.list_transactions(ListTransactions())) == PRODUCERS


async def test_refused_begin_uses_no_producer_up(broker: BrokerNode) -> None:
    for _ in range(5):
        with pytest.raises(RequestError) as refused:
            await broker.handle_transactions.begin(0)
        assert refused.value.kind is ErrorKind.INVALID_TRANSACTION_TIMEOUT
    assert broker.handle_transactions.slots.used_count == 0


async def test_refused_message_leaves_the_transaction_as_it_is(broker: BrokerNode) -> None:
    handle = await broker.handle_transactions.begin(TIMEOUT_MS)
    messages = [message(b"a", partition=0), message(partition=9), message(bytes(2 << 20), partition=0)]
    stored, *refused = await broker.handle_transactions.publish(handle, "t", messages)
    assert isinstance(stored, PublishedMessage)
    kinds = [result.kind for result in refused if isinstance(result, RequestError)]
    assert kinds == [ErrorKind.INVALID_REQUEST, ErrorKind.MESSAGE_TOO_LARGE]
    await broker.handle_transactions.finish(handle, commit=True)
    assert await values(broker) == [b"a"]


async def test_operator_can_abort_the_transaction(broker: BrokerNode) -> None:
    handle = await broker.handle_transactions.begin(TIMEOUT_MS)
    await publish(broker, handle)
    [listed] = await broker.transactions.list_transactions(ListTransactions())
    with pytest.raises(RequestError):
        await broker.transactions.initialize(
            InitializeProducer(transactional_id=listed.transactional_id, timeout_ms=TIMEOUT_MS)
        )
    assert await kind_of(broker, handle, commit=True) is ErrorKind.UNKNOWN_TRANSACTION
    assert await values(broker) == []
    assert broker.handle_transactions.slots.used_count == 0


async def test_commit_that_races_a_publication_includes_it_or_it_is_refused(broker: BrokerNode) -> None:
    for turns in range(12):
        handle = await broker.handle_transactions.begin(TIMEOUT_MS)
        before = await values(broker)
        sent = asyncio.ensure_future(broker.handle_transactions.publish(handle, "t", [message(partition=0)]))
        for _ in range(turns):
            await asyncio.sleep(0)
        await broker.handle_transactions.finish(handle, commit=True)
        [result] = await asyncio.gather(sent, return_exceptions=True)
        assert len(await values(broker)) - len(before) == (not isinstance(result, RequestError)), (turns, result)


@pytest.mark.parametrize("config", [{"compression.type": "zstd"}, {"dedup.enable": "true"}])
async def test_topic_that_inspects_its_records_takes_part(broker: BrokerNode, config: dict[str, str]) -> None:
    await broker.topics.create(TopicRequest(name="v", partitions=2, config=config))
    for commit in (False, True):
        handle = await broker.handle_transactions.begin(TIMEOUT_MS)
        await publish(broker, handle, message(b"a" * 200, partition=0, headers=(DEDUP,)), topic="v")
        await publish(broker, handle, message(b"b" * 200, partition=0), topic="v")
        await broker.handle_transactions.finish(handle, commit=commit)
    assert await values(broker, "v") == [b"a" * 200, b"b" * 200]


async def test_message_id_is_known_in_its_own_transaction_and_after_a_commit(broker: BrokerNode) -> None:
    for commit in (False, True):
        handle = await broker.handle_transactions.begin(TIMEOUT_MS)
        twice = [
            await broker.handle_transactions.publish(handle, "t", [message(partition=0, headers=(DEDUP,))])
            for _ in range(2)
        ]
        assert [result.duplicate for [result] in twice if isinstance(result, PublishedMessage)] == [False, True]
        await broker.handle_transactions.finish(handle, commit=commit)
    [result] = await broker.message_publisher.publish("t", [message(partition=0, headers=(DEDUP,))])
    assert isinstance(result, PublishedMessage)
    assert result.duplicate
    assert await values(broker) == [b"value"]


async def test_batch_for_several_topics_is_published_at_once(broker: BrokerNode) -> None:
    messages = [("t", message(b"a", partition=0)), ("u", message(b"b", partition=1)), ("t", message(b"c", partition=1))]
    published = await broker.handle_transactions.publish_all_or_none(messages)
    assert [(place.partition, place.offset) for place in published] == [(0, 0), (1, 0), (1, 0)]
    assert (await values(broker), await values(broker, "u")) == ([b"a", b"c"], [b"b"])


async def test_batch_with_a_refused_message_is_not_published(broker: BrokerNode) -> None:
    messages = [("t", message(partition=0)), ("u", message(partition=9)), ("u", message(partition=0))]
    with pytest.raises(RequestError) as refused:
        await broker.handle_transactions.publish_all_or_none(messages)
    assert refused.value.kind is ErrorKind.INVALID_REQUEST
    assert refused.value.message.startswith("no message was published, because message 1 was refused: ")
    assert (await values(broker), await values(broker, "u")) == ([], [])


async def test_batch_names_the_message_that_is_wrong_and_not_one_beside_it(broker: BrokerNode) -> None:
    await broker.topics.create(TopicRequest(name="keyed", partitions=1, config={"cleanup.policy": "compact"}))
    with pytest.raises(RequestError) as refused:
        await broker.handle_transactions.publish_all_or_none(
            [("t", message(partition=0)), ("keyed", message(key=b"k")), ("keyed", message())]
        )
    assert "because message 2 was refused" in refused.value.message
    assert await values(broker) == []


async def test_batch_for_a_missing_topic_is_not_published(storage: Storage) -> None:
    settings = {"broker.auto_create_topics": False, "transactions.state_replication_factor": 1}
    async with running_parts(settings, storage) as broker:
        await broker.topics.create(TopicRequest(name="t", partitions=2))
        with pytest.raises(RequestError) as refused:
            await broker.handle_transactions.publish_all_or_none([("t", message()), ("missing", message())])
        assert refused.value.kind is ErrorKind.UNKNOWN_TOPIC
        assert await values(broker) == []
        assert broker.handle_transactions.slots.used_count == 0


async def test_batches_one_after_the_other_use_one_producer(broker: BrokerNode) -> None:
    for number in range(5):
        await broker.handle_transactions.publish_all_or_none([("t", message(b"%d" % number, partition=0))])
    assert len(await broker.transactions.list_transactions(ListTransactions())) == 1
    assert await values(broker) == [b"%d" % number for number in range(5)]


async def test_batch_after_a_long_time_begins_anew(broker: BrokerNode, storage: Storage) -> None:
    """The coordinator may have forgotten the producer meanwhile."""
    await broker.handle_transactions.publish_all_or_none([("t", message(b"a", partition=0))])
    storage.clock.advance(seconds=8 * 24 * 3600)
    await broker.handle_transactions.publish_all_or_none([("t", message(b"b", partition=0))])
    assert await values(broker) == [b"a", b"b"]


async def leased(broker: BrokerNode, topic: str = "t") -> list[str]:
    """Publish a message to a topic with a new subscription, lease it, and return its ack id."""
    await broker.subscription_lifecycle.create(topic, f"of-{topic}", StartPosition(kind="earliest"), {})
    await broker.message_publisher.publish(topic, [message(partition=0)])
    return [lease.ack_id for lease in await broker.leases.lease(f"of-{topic}", 10, 0, None)]


async def test_marker_for_a_queue_without_subscriptions_is_written(broker: BrokerNode) -> None:
    """The queue is loaded for it, and unloaded again."""
    ack_ids, handle = await leased(broker), await broker.handle_transactions.begin(TIMEOUT_MS)
    await broker.handle_transactions.ack(handle, "of-t", ack_ids)
    await broker.subscription_lifecycle.delete("of-t")
    await until(lambda: broker.queue_partitions.running("t", 0) is None)
    await broker.handle_transactions.finish(handle, commit=True)
    await until(lambda: is_stable(broker.partitions.find("__queue_state.t", 0)))
    assert broker.queue_partitions.running("t", 0) is None


async def test_subscription_with_the_name_of_a_deleted_one_is_not_settled(broker: BrokerNode) -> None:
    ack_ids, handle = await leased(broker), await broker.handle_transactions.begin(TIMEOUT_MS)
    await broker.handle_transactions.ack(handle, "of-t", ack_ids)
    await broker.subscription_lifecycle.delete("of-t")
    await broker.subscription_lifecycle.create("t", "of-t", StartPosition(kind="earliest"), {})
    await broker.handle_transactions.finish(handle, commit=True)
    assert len(await broker.leases.lease("of-t", 10, 0, None)) == 1


async def test_transaction_ends_although_its_topic_is_gone(broker: BrokerNode) -> None:
    ack_ids, handle = await leased(broker), await broker.handle_transactions.begin(TIMEOUT_MS)
    await broker.handle_transactions.ack(handle, "of-t", ack_ids)
    await publish(broker, handle, topic="u")
    await broker.topics.delete("t")
    await broker.handle_transactions.finish(handle, commit=True)
    assert await values(broker, "u") == [b"value"]


async def test_ack_after_the_end_is_refused(broker: BrokerNode) -> None:
    ack_ids, handle = await leased(broker), await broker.handle_transactions.begin(TIMEOUT_MS)
    await publish(broker, handle)
    await broker.handle_transactions.finish(handle, commit=True)
    with pytest.raises(RequestError) as refused:
        await broker.handle_transactions.ack(handle, "of-t", ack_ids)
    assert refused.value.kind is ErrorKind.TRANSACTION_ENDED
    assert await broker.settlements.ack("of-t", ack_ids) == [None]
