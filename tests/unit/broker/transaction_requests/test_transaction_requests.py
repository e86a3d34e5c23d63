"""Requests in transactions on one broker: all or none, once for each id, and few producers."""

import asyncio
from collections.abc import AsyncIterator, Sequence

import pytest

from conveyor.broker.broker_node import BrokerNode
from conveyor.broker.produce.outgoing_message import OutgoingMessage, PublishedMessage
from conveyor.broker.transaction_requests.transaction_request import (
    Acknowledgement,
    TransactionRequest,
    decoded_messages,
    digest_of,
    encoded_messages,
)
from conveyor.cluster.topic_creation import TopicRequest
from conveyor.kernel.access.caller import Caller
from conveyor.kernel.errors import ErrorKind, RequestError
from conveyor.kernel.ids import TopicPartition
from conveyor.queues.subscription.policy import StartPosition
from conveyor.transactions.transaction_commands import InitializeProducer, ListTransactions
from conveyor.transactions.transaction_value import TransactionState
from tests.callers import ALICE, BOB, CALLER, answer_of
from tests.unit.broker.markers.producers import is_stable, until
from tests.unit.broker.parts import Storage, running_parts
from tests.unit.broker.publishing import message

PRODUCERS = 3
SETTINGS = {
    "producers.max_producers_per_partition": 10 * PRODUCERS,
    "transactions.state_partitions": 1,
    "transactions.state_replication_factor": 1,
}
DEDUP = ("conveyor-dedup-id", b"id")


@pytest.fixture
async def broker(storage: Storage) -> AsyncIterator[BrokerNode]:
    """A broker with the topics `t` and `u`."""
    async with running_parts(SETTINGS, storage) as running:
        for topic in ("t", "u"):
            await running.topics.create(CALLER, TopicRequest(name=topic, partitions=2))
        yield running


def request_of(
    *messages: OutgoingMessage, request_id: str | None = None, acks: Sequence[str] = (), topic: str = "t"
) -> TransactionRequest:
    acknowledge = [Acknowledgement("of-t", list(acks))] if acks else []
    return TransactionRequest(request_id, [(topic, one) for one in messages], acknowledge)


async def execute(broker: BrokerNode, request: TransactionRequest) -> list[PublishedMessage]:
    return await broker.transaction_requests.execute(CALLER, request)


async def refusal(broker: BrokerNode, request: TransactionRequest) -> RequestError:
    with pytest.raises(RequestError) as refused:
        await execute(broker, request)
    return refused.value


async def values(broker: BrokerNode, topic: str = "t") -> list[bytes]:
    """Return the values that readers of committed records see."""
    stored = [await broker.fetch.browser.browse(CALLER, topic, number, 0, 100) for number in range(2)]
    return sorted(one.value or b"" for messages in stored for one in messages)


async def leased(broker: BrokerNode) -> list[str]:
    """Publish a message to `t` with a new subscription, lease it, and return its ack id."""
    await broker.queues.lifecycle.create(CALLER, "t", "of-t", StartPosition(kind="earliest"), {})
    await broker.produce.messages.publish(CALLER, "t", [message(b"input", partition=0)])
    return await lease(broker)


async def lease(broker: BrokerNode) -> list[str]:
    return [each.ack_id for each in await broker.queues.leases.lease(CALLER, "of-t", 10, 0, None)]


async def test_messages_of_several_topics_are_published_at_once(broker: BrokerNode) -> None:
    messages = [("t", message(b"a", partition=0)), ("u", message(b"b", partition=1)), ("t", message(b"c", partition=1))]
    published = await execute(broker, TransactionRequest(None, messages, []))
    assert [(place.partition, place.offset) for place in published] == [(0, 0), (1, 0), (1, 0)]
    assert (await values(broker), await values(broker, "u")) == ([b"a", b"c"], [b"b"])


async def test_refused_message_leaves_no_message(broker: BrokerNode) -> None:
    messages = [("t", message(partition=0)), ("u", message(partition=9)), ("u", message(partition=0))]
    refused = await refusal(broker, TransactionRequest(None, messages, []))
    assert refused.kind is ErrorKind.INVALID_REQUEST
    assert refused.message.startswith("nothing was published or acknowledged, because message 1 was refused: ")
    assert (await values(broker), await values(broker, "u")) == ([], [])


async def test_error_names_the_message_that_is_wrong_and_not_one_beside_it(broker: BrokerNode) -> None:
    await broker.topics.create(CALLER, TopicRequest(name="keyed", partitions=1, config={"cleanup.policy": "compact"}))
    messages = [("t", message(partition=0)), ("keyed", message(key=b"k")), ("keyed", message())]
    refused = await refusal(broker, TransactionRequest(None, messages, []))
    assert "because message 2 was refused" in refused.message
    assert await values(broker) == []


async def test_too_many_topics_are_refused(broker: BrokerNode) -> None:
    messages = [(f"topic-{number}", message()) for number in range(101)]
    assert (await refusal(broker, TransactionRequest(None, messages, []))).kind is ErrorKind.INVALID_REQUEST


async def test_request_for_a_missing_topic_leaves_nothing(storage: Storage) -> None:
    async with running_parts({**SETTINGS, "broker.auto_create_topics": False}, storage) as broker:
        await broker.topics.create(CALLER, TopicRequest(name="t", partitions=2))
        refused = await refusal(broker, TransactionRequest(None, [("t", message()), ("missing", message())], []))
        assert refused.kind is ErrorKind.UNKNOWN_TOPIC
        assert await values(broker) == []


async def test_requests_one_after_the_other_use_one_producer(broker: BrokerNode) -> None:
    for number in range(5):
        await execute(broker, request_of(message(b"%d" % number, partition=0), request_id=f"request-{number}"))
    assert len(await broker.coordinators.transactions.list_transactions(CALLER, ListTransactions())) == 1
    assert await values(broker) == [b"%d" % number for number in range(5)]


async def test_requests_at_the_same_time_use_as_many_producers_as_there_are(broker: BrokerNode) -> None:
    requests = [request_of(message(b"%d" % number, partition=0)) for number in range(PRODUCERS + 2)]
    results = await asyncio.gather(*(execute(broker, one) for one in requests), return_exceptions=True)
    kinds = [result.kind for result in results if isinstance(result, RequestError)]
    assert kinds == [ErrorKind.THROTTLING_QUOTA_EXCEEDED] * 2
    assert len(await values(broker)) == PRODUCERS
    for one in requests:
        await execute(broker, one)
    assert len(await broker.coordinators.transactions.list_transactions(CALLER, ListTransactions())) == PRODUCERS


async def test_request_after_a_long_time_initializes_its_producer_again(broker: BrokerNode, storage: Storage) -> None:
    """The coordinator may have forgotten the producer meanwhile."""
    await execute(broker, request_of(message(b"a", partition=0)))
    storage.clock.advance(seconds=8 * 24 * 3600)
    await execute(broker, request_of(message(b"b", partition=0)))
    assert await values(broker) == [b"a", b"b"]


@pytest.mark.parametrize("config", [{"compression.type": "zstd"}, {"dedup.enable": "true"}])
async def test_topic_that_inspects_its_records_takes_part(broker: BrokerNode, config: dict[str, str]) -> None:
    await broker.topics.create(CALLER, TopicRequest(name="v", partitions=2, config=config))
    first, second = message(b"a" * 200, partition=0, headers=(DEDUP,)), message(b"b" * 200, partition=0)
    assert (await refusal(broker, request_of(first, message(partition=9), topic="v"))).kind is ErrorKind.INVALID_REQUEST
    await execute(broker, request_of(first, second, topic="v"))
    assert await values(broker, "v") == [b"a" * 200, b"b" * 200]


async def test_message_with_a_known_dedup_id_is_published_once(broker: BrokerNode) -> None:
    results = [await execute(broker, request_of(message(partition=0, headers=(DEDUP,)))) for _ in range(2)]
    assert [[place.duplicate for place in published] for published in results] == [[False], [True]]
    assert await values(broker) == [b"value"]


async def test_message_is_acknowledged_with_its_results(broker: BrokerNode) -> None:
    acks = await leased(broker)
    await execute(broker, request_of(message(b"result"), acks=acks, topic="u"))
    assert await values(broker, "u") == [b"result"]
    assert (await broker.queues.statistics.stats(CALLER, "of-t")).unsettled == 0


async def test_request_may_only_acknowledge(broker: BrokerNode) -> None:
    assert await execute(broker, request_of(acks=await leased(broker))) == []
    assert (await broker.queues.statistics.stats(CALLER, "of-t")).unsettled == 0


async def test_one_request_acknowledges_for_several_subscriptions(broker: BrokerNode) -> None:
    """Both states are in one log."""
    await broker.queues.lifecycle.create(CALLER, "t", "other", StartPosition(kind="earliest"), {})
    acks = await leased(broker)
    others = [each.ack_id for each in await broker.queues.leases.lease(CALLER, "other", 10, 0, None)]
    acknowledge = [Acknowledgement("of-t", acks), Acknowledgement("other", others)]
    await execute(broker, TransactionRequest(None, [], acknowledge))
    for name in ("of-t", "other"):
        assert (await broker.queues.statistics.stats(CALLER, name)).unsettled == 0


async def test_refused_ack_names_the_lease_and_leaves_nothing(broker: BrokerNode) -> None:
    acks = await leased(broker)
    await answer_of(broker.queues.settlements.nack, CALLER, "of-t", acks, 0)
    refused = await refusal(broker, request_of(message(b"result"), acks=acks, topic="u", request_id="x"))
    assert refused.kind is ErrorKind.LEASE_LOST
    assert acks[0] in refused.message
    assert await values(broker, "u") == []
    await execute(broker, request_of(message(b"again"), acks=await lease(broker), topic="u", request_id="x"))
    assert await values(broker, "u") == [b"again"]


async def test_repeated_request_gets_the_first_answer(broker: BrokerNode) -> None:
    request = request_of(message(b"result"), acks=await leased(broker), topic="u", request_id="x")
    first = await execute(broker, request)
    assert [await execute(broker, request) for _ in range(3)] == [first] * 3
    assert await values(broker, "u") == [b"result"]


async def test_id_of_another_request_is_refused(broker: BrokerNode) -> None:
    await execute(broker, request_of(message(b"a"), request_id="x"))
    for other in (request_of(message(b"b"), request_id="x"), request_of(message(b"a"), topic="u", request_id="x")):
        assert (await refusal(broker, other)).kind is ErrorKind.TRANSACTION_ID_REUSED
    assert await values(broker) == [b"a"]


async def test_users_do_not_meet_in_an_id(broker: BrokerNode) -> None:
    """Nobody learns that another user has an id, or takes it from that user."""
    callers = CALLER, ALICE, BOB
    requests = [request_of(message(str(number).encode()), request_id="x") for number in range(3)]
    pairs = list(zip(callers, requests, strict=True))
    first = await asyncio.gather(*(broker.transaction_requests.execute(*pair) for pair in pairs))
    assert [await broker.transaction_requests.execute(*pair) for pair in pairs] == first
    assert await values(broker) == [b"0", b"1", b"2"]
    with pytest.raises(RequestError) as refused:
        await broker.transaction_requests.execute(BOB, requests[1])
    assert refused.value.kind is ErrorKind.TRANSACTION_ID_REUSED


async def test_request_runs_once_at_a_time(broker: BrokerNode) -> None:
    request = request_of(message(b"a"), request_id="x")
    results = await asyncio.gather(*(execute(broker, request) for _ in range(3)), return_exceptions=True)
    kinds = [result.kind for result in results if isinstance(result, RequestError)]
    assert kinds == [ErrorKind.CONCURRENT_TRANSACTIONS] * 2
    assert await values(broker) == [b"a"]
    assert [await execute(broker, request)] == [result for result in results if isinstance(result, list)]


async def test_request_is_executed_again_after_the_retention(broker: BrokerNode, storage: Storage) -> None:
    request = request_of(message(b"a", partition=0), request_id="x")
    for milliseconds, count in ((299_999, 1), (1, 2)):
        await execute(broker, request)
        storage.clock.advance(ms=milliseconds)
        await execute(broker, request)
        assert len(await values(broker)) == count


async def test_answers_survive_a_restart(storage: Storage) -> None:
    request = request_of(message(b"a", partition=0), request_id="x")
    results = []
    for _ in range(2):
        async with running_parts(SETTINGS, storage) as broker:
            await broker.topics.ensure(CALLER, TopicRequest(name="t", partitions=2))
            results.append(await execute(broker, request))
            assert await values(broker) == [b"a"]
    assert results[0] == results[1]


async def test_transaction_that_was_aborted_leaves_nothing(broker: BrokerNode) -> None:
    """An operator aborts it while its commit is on the way; the request may be repeated."""
    request = request_of(message(b"a"), acks=await leased(broker), topic="u", request_id="x")
    acknowledge = broker.queues.settlements.ack_in_transaction

    async def aborted(caller: Caller, name: str, targets: Sequence[str], transaction: object) -> object:
        results = await acknowledge(caller, name, targets, transaction)  # type: ignore[arg-type]
        [listed] = await broker.coordinators.transactions.list_transactions(CALLER, ListTransactions())
        command = InitializeProducer(transactional_id=listed.transactional_id, timeout_ms=1_000)
        with pytest.raises(RequestError):
            await broker.coordinators.transactions.ask(CALLER, command)
        return results

    broker.queues.settlements.ack_in_transaction = aborted  # type: ignore[method-assign,assignment]
    refused = await refusal(broker, request)
    assert refused.kind is ErrorKind.COORDINATOR_NOT_AVAILABLE
    assert refused.message.startswith("nothing was published or acknowledged, because the transaction was aborted")
    assert await values(broker, "u") == []
    del broker.queues.settlements.ack_in_transaction
    await execute(broker, request_of(message(b"a"), acks=await lease(broker), topic="u", request_id="x"))
    assert await values(broker, "u") == [b"a"]


async def test_transaction_that_a_crash_left_is_aborted(storage: Storage) -> None:
    """The next coordinator uses the same transactional ids. The leases have ended, too."""
    async with running_parts(SETTINGS, storage) as broker:
        await broker.topics.create(CALLER, TopicRequest(name="t", partitions=2))
        await broker.topics.create(CALLER, TopicRequest(name="u", partitions=2))
        acks = await leased(broker)
        publish = broker.produce.messages.publish
        begun = asyncio.Event()

        async def stuck(*arguments: object, **more: object) -> object:
            results = await publish(*arguments, **more)  # type: ignore[arg-type]
            begun.set()
            await asyncio.Event().wait()
            return results

        broker.produce.messages.publish = stuck  # type: ignore[method-assign,assignment]
        running = asyncio.ensure_future(execute(broker, request_of(message(b"lost"), acks=acks, topic="u")))
        await begun.wait()
    running.cancel()
    async with running_parts(SETTINGS, storage) as broker:
        [left] = await broker.coordinators.transactions.list_transactions(CALLER, ListTransactions())
        assert left.state is TransactionState.ONGOING
        await execute(broker, request_of(message(b"a"), acks=await lease(broker), topic="u"))
        assert await values(broker, "u") == [b"a"]
        assert len(await broker.coordinators.transactions.list_transactions(CALLER, ListTransactions())) == 1


async def test_subscription_may_be_gone_when_the_markers_are_written(broker: BrokerNode) -> None:
    """Its queue is loaded for them, and unloaded again."""
    acks = await leased(broker)
    acknowledge = broker.queues.settlements.ack_in_transaction

    async def deleted(caller: Caller, name: str, targets: Sequence[str], transaction: object) -> object:
        results = await acknowledge(caller, name, targets, transaction)  # type: ignore[arg-type]
        await broker.queues.lifecycle.delete(CALLER, "of-t")
        await until(lambda: broker.coordinators.queues.find(TopicPartition("t", 0)) is None)
        return results

    broker.queues.settlements.ack_in_transaction = deleted  # type: ignore[method-assign,assignment]
    await execute(broker, request_of(message(b"result"), acks=acks, topic="u"))
    await until(lambda: is_stable(broker.partitions.table.find("__queue_state.t", 0)))
    assert broker.coordinators.queues.find(TopicPartition("t", 0)) is None


async def test_messages_are_the_same_in_their_form_between_brokers() -> None:
    many = tuple((f"header-{number}", b"x") for number in range(7_000))
    messages = [("t", message(b"a", headers=many)), ("u", message(None, key=b"k", partition=1)), ("t", message())]
    parts = [part async for part in encoded_messages(messages)]
    assert len(parts) == 2
    assert await decoded_messages(parts) == messages
    digests = {
        await digest_of(TransactionRequest("x", given, acknowledge))
        for given in (messages, messages[:1], messages[::-1], [])
        for acknowledge in ([], [Acknowledgement("s", ["1"])], [Acknowledgement("s", ["1", "2"])])
    }
    assert len(digests) == 12
    assert await digest_of(TransactionRequest("x", messages, [])) == await digest_of(
        TransactionRequest("y", list(messages), [])
    )
