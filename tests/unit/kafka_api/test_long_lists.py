"""Lists of all that a broker has: a short request, whose answer may be long."""

from collections.abc import Callable
from threading import get_ident
from typing import Any

import pytest

from conveyor.broker.slices import SLICE_ITEMS
from conveyor.cluster.topic_creation import TopicRequest
from conveyor.groups import administration
from conveyor.groups.records.group_records import OffsetKey, OffsetValue, offset_record
from conveyor.kafka_api.apis.records import k61_describe_producers
from conveyor.kafka_api.apis.topics import k03_metadata, k75_describe_topic_partitions
from conveyor.kafka_api.wire.codec import build_response
from conveyor.kernel.ids import ProducerEpoch, ProducerId
from conveyor.log.producers.producer_state import ProducerEntries, RememberedProducer
from conveyor.transactions import transaction_machine
from conveyor.transactions.transaction_log import transaction_record
from conveyor.transactions.transaction_value import TransactionState, TransactionValue
from tests.callers import CALLER
from tests.unit.broker.parts import running_parts
from tests.unit.broker.queues.dead_letters.test_dead_letter_turns import most_in_a_turn
from tests.unit.kafka_api.client import MemoryClient

METADATA, LIST_GROUPS, DESCRIBE_LOG_DIRS, DESCRIBE_CLIENT_QUOTAS, ALTER_CLIENT_QUOTAS = 3, 16, 35, 48, 49
DESCRIBE_PRODUCERS, LIST_TRANSACTIONS, DESCRIBE_TOPIC_PARTITIONS = 61, 66, 75
COUNT = 2 * SLICE_ITEMS + 1
NAMES = [f"name-{number:03}" for number in range(COUNT)]
SETTINGS = {"groups.offsets_partitions": 2, "transactions.state_partitions": 2}
NO_FILTERS: dict[int, dict[str, Any]] = {
    LIST_GROUPS: {"states_filter": (), "types_filter": ()},
    LIST_TRANSACTIONS: {"state_filters": (), "producer_id_filters": (), "duration_filter": -1},
}

ALL_TOPICS = {"topics": None, "allow_auto_topic_creation": False, "include_topic_authorized_operations": True}


@pytest.fixture
def encoding_threads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The threads that build the responses, one after the other."""
    threads: list[int] = []

    def build(*arguments: Any) -> Any:
        threads.append(get_ident())
        return build_response(*arguments)

    monkeypatch.setattr("conveyor.kafka_api.wire.call.build_response", build)
    return threads


def counted(monkeypatch: pytest.MonkeyPatch, module: object) -> list[object]:
    """Return what a machine looks at from now on."""
    seen: list[object] = []
    is_wanted: Callable[..., bool] = getattr(module, "_is_wanted")  # noqa: B009 - mypy

    def look(item: object, *arguments: Any) -> bool:
        seen.append(item)
        return is_wanted(item, *arguments)

    monkeypatch.setattr(module, "_is_wanted", look)
    return seen


async def with_transactions(client: MemoryClient) -> None:
    """Give the coordinator of each of two partitions transactional ids; one of them has many."""
    coordinators = client.broker.coordinators.transactions
    await coordinators.ensured()
    value = TransactionValue(
        producer_id=ProducerId(7),
        producer_epoch=ProducerEpoch(0),
        timeout_ms=1,
        state=TransactionState.EMPTY,
        last_update_ms=1,
    )
    for number, names in enumerate((NAMES[1:], NAMES[:1])):
        machine = (await coordinators.coordinator(number)).machine
        for name in names:
            machine.apply(transaction_record(name, value))


async def with_groups(client: MemoryClient) -> None:
    """As `with_transactions`, for groups."""
    coordinators = client.broker.coordinators.groups
    await coordinators.ensured()
    value = OffsetValue(offset=1, leader_epoch=0, metadata="", commit_timestamp_ms=1, topic_id=None)
    for number, names in enumerate((NAMES[1:], NAMES[:1])):
        machine = (await coordinators.coordinator(number)).machine
        for name in names:
            machine.apply(offset_record(OffsetKey(group_id=name, topic="t", partition=0), value))


@pytest.mark.parametrize("api_key", [LIST_GROUPS, LIST_TRANSACTIONS])
async def test_coordinator_lists_a_page_in_each_turn_and_a_thread_encodes_all(
    monkeypatch: pytest.MonkeyPatch, encoding_threads: list[int], api_key: int
) -> None:
    is_of_groups = api_key == LIST_GROUPS
    async with running_parts(SETTINGS) as broker:
        client = MemoryClient(broker)
        await (with_groups if is_of_groups else with_transactions)(client)
        seen = counted(monkeypatch, administration if is_of_groups else transaction_machine)
        request = client.ask(api_key, 4 if is_of_groups else 1, **NO_FILTERS[api_key])
        found, most = await most_in_a_turn(request, seen)
    if is_of_groups:
        assert sorted(group.group_id for group in found.groups) == NAMES
    else:
        assert sorted(transaction.transactional_id for transaction in found.transaction_states) == NAMES
    assert (len(seen), most) == (COUNT, SLICE_ITEMS)
    assert len(encoding_threads) == 1
    assert get_ident() not in encoding_threads


@pytest.mark.parametrize("partitions", [2, 3])
async def test_sizes_of_many_partitions_are_encoded_in_a_thread(
    monkeypatch: pytest.MonkeyPatch, encoding_threads: list[int], partitions: int
) -> None:
    monkeypatch.setattr("conveyor.kafka_api.wire.call.SLICE_ITEMS", 2)
    async with running_parts() as broker:
        await broker.topics.create(CALLER, TopicRequest(name="t", partitions=partitions))
        found = await MemoryClient(broker).ask(DESCRIBE_LOG_DIRS, 4, topics=None)
    [directory] = found.results
    assert [len(topic.partitions) for topic in directory.topics] == [partitions]
    assert (encoding_threads == [get_ident()]) == (partitions == 2)


@pytest.fixture
def slices_of_two(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("broker.slices", "kafka_api.access.gate", "kafka_api.wire.call", "kafka_api.wire.long_request"):
        monkeypatch.setattr(f"conveyor.{module}.SLICE_ITEMS", 2)
    monkeypatch.setattr(k03_metadata, "SLICE_ITEMS", 2)


def seen_by(monkeypatch: pytest.MonkeyPatch, module: object, name: str) -> list[object]:
    """Return the last argument of each call of a function from now on."""
    seen: list[object] = []
    plain: Callable[..., Any] = getattr(module, name)

    def look(*arguments: Any) -> Any:
        seen.append(arguments[-1])
        return plain(*arguments)

    monkeypatch.setattr(module, name, look)
    return seen


@pytest.mark.parametrize(
    ("api_key", "version", "fields"),
    [
        (
            METADATA,
            12,
            {"topics": None, "allow_auto_topic_creation": False, "include_topic_authorized_operations": True},
        ),
        (DESCRIBE_TOPIC_PARTITIONS, 0, {"topics": (), "response_partition_limit": 100, "cursor": None}),
    ],
)
@pytest.mark.parametrize("is_secure", [False, True])
async def test_all_topics_are_described_some_in_each_turn_and_encoded_in_a_thread(
    monkeypatch: pytest.MonkeyPatch,
    slices_of_two: None,
    encoding_threads: list[int],
    api_key: int,
    version: int,
    fields: dict[str, Any],
    is_secure: bool,
) -> None:
    async with running_parts({"access.enabled": is_secure, "access.super_users": str(CALLER.principal)}) as broker:
        for name in NAMES[:5]:
            await broker.topics.create(CALLER, TopicRequest(name=name))
        module = k03_metadata if api_key == METADATA else k75_describe_topic_partitions
        described = seen_by(monkeypatch, module, "described_partition")
        asked = seen_by(monkeypatch, module, "topic_operations")
        found, most = await most_in_a_turn(MemoryClient(broker).ask(api_key, version, **fields), described)
    assert [topic.name for topic in found.topics if topic.name in NAMES] == NAMES[:5]
    assert 0 < most <= 2
    assert set(asked) == {topic.name for topic in found.topics}
    assert get_ident() not in encoding_threads
    assert encoding_threads


async def test_producers_are_described_some_in_each_turn_and_encoded_in_a_thread(
    monkeypatch: pytest.MonkeyPatch, slices_of_two: None
) -> None:
    threads: list[int] = []

    def build(*arguments: Any) -> Any:
        threads.append(get_ident())
        return build_response(*arguments)

    monkeypatch.setattr("conveyor.kafka_api.wire.long_request.build_response", build)
    monkeypatch.setattr("conveyor.kafka_api.wire.call.build_response", build)
    async with running_parts() as broker:
        await broker.topics.create(CALLER, TopicRequest(name="t", partitions=11))
        producers = broker.partitions.table.find("t", 0).log.producers
        remembered = RememberedProducer(ProducerEpoch(0), 1, (), -1)
        producers.restore(ProducerEntries(range(5), [remembered] * 5))
        described = seen_by(monkeypatch, k61_describe_producers, "_producer")
        for indexes in (range(1), range(11)):
            described.clear()
            topics = ({"name": "t", "partition_indexes": tuple(indexes)},)
            request = MemoryClient(broker).ask(DESCRIBE_PRODUCERS, 0, topics=topics)
            found, most = await most_in_a_turn(request, described)
            partitions = found.topics[0].partitions
            assert [len(each.active_producers) for each in partitions] == [5, *(0 for _ in indexes[1:])]
            assert most == 2
            assert threads[0] != get_ident()


async def test_quotas_of_many_entities_are_encoded_in_a_thread(
    slices_of_two: None, encoding_threads: list[int]
) -> None:
    async with running_parts() as broker:
        client = MemoryClient(broker)
        entries = tuple(
            {
                "entity": ({"entity_type": "user", "entity_name": name},),
                "ops": ({"key": "producer_byte_rate", "value": 1.0, "remove": False},),
            }
            for name in NAMES[:3]
        )
        await client.ask(ALTER_CLIENT_QUOTAS, 1, entries=entries, validate_only=False)
        encoding_threads.clear()
        found = await client.ask(DESCRIBE_CLIENT_QUOTAS, 1, components=(), strict=False)
    assert [entry.entity[0].entity_name for entry in found.entries] == NAMES[:3]
    assert encoding_threads
    assert get_ident() not in encoding_threads
