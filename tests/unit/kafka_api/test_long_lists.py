"""Lists of all that a broker has: a short request, whose answer may be long."""

from collections.abc import Callable
from threading import get_ident
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from conveyor.broker.slices import SLICE_ITEMS
from conveyor.cluster.topic_creation import TopicRequest
from conveyor.groups import administration, committed_offsets
from conveyor.groups.records.group_records import OffsetKey, OffsetValue, offset_record
from conveyor.kafka_api.apis.groups import k69_consumer_group_describe
from conveyor.kafka_api.apis.records import k61_describe_producers
from conveyor.kafka_api.apis.topics import k03_metadata, k75_describe_topic_partitions
from conveyor.kafka_api.wire.call import KafkaCall
from conveyor.kafka_api.wire.codec import build_response
from conveyor.kernel.ids import ProducerEpoch, ProducerId, TopicPartition
from conveyor.log.producers.producer_state import ProducerEntries, RememberedProducer
from conveyor.transactions import transaction_machine
from conveyor.transactions.transaction_log import transaction_record
from conveyor.transactions.transaction_value import TransactionState, TransactionValue
from tests.callers import CALLER
from tests.unit.broker.parts import running_parts
from tests.unit.broker.queues.dead_letters.test_dead_letter_turns import most_in_a_turn
from tests.unit.kafka_api.client import MemoryClient
from tests.unit.kafka_api.requests import CREATE_TOPICS, DESCRIBE_GROUPS, JOIN_GROUP
from tests.unit.kafka_api.requests import request as kafka_request

METADATA, OFFSET_COMMIT, OFFSET_FETCH, LIST_GROUPS, DESCRIBE_LOG_DIRS, DELETE_GROUPS, DESCRIBE_TRANSACTIONS = (
    3, 8, 9, 16, 35, 42, 65,
)  # fmt: skip
DESCRIBE_CLIENT_QUOTAS, ALTER_CLIENT_QUOTAS = 48, 49
DESCRIBE_PRODUCERS, LIST_TRANSACTIONS, CONSUMER_HEARTBEAT, CONSUMER_DESCRIBE, DESCRIBE_TOPIC_PARTITIONS = (
    61, 66, 68, 69, 75,
)  # fmt: skip
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


async def with_open_transaction(client: MemoryClient) -> None:
    """Give the transactional id `long` a transaction of many topics."""
    coordinators = client.broker.coordinators.transactions
    place = await coordinators.ensured_partition("long")
    value = TransactionValue(
        producer_id=ProducerId(7), producer_epoch=ProducerEpoch(0), timeout_ms=1, state=TransactionState.ONGOING,
        start_ms=1, last_update_ms=1, partitions=frozenset(TopicPartition(name, 0) for name in NAMES),
    )  # fmt: skip
    (await coordinators.coordinator(place.partition)).machine.apply(transaction_record("long", value))


async def test_partitions_of_a_transaction_are_encoded_in_a_thread(
    client: MemoryClient, encoding_threads: list[int]
) -> None:
    await with_open_transaction(client)
    [state] = (await client.ask(DESCRIBE_TRANSACTIONS, 0, transactional_ids=("long",))).transaction_states
    assert [topic.topic for topic in state.topics] == NAMES
    assert encoding_threads[-1] != get_ident()


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


async def join_consumers(client: MemoryClient, group: str, members: int) -> None:
    """Let members join a group of the consumer protocol; each subscribes to three topics."""
    await client.ask(10, 4, key_type=0, coordinator_keys=(group,))
    beat = {
        "group_id": group, "member_epoch": 0, "instance_id": None, "rack_id": None, "rebalance_timeout": 300_000,
        "subscribed_topic_regex": None, "server_assignor": None, "topic_partitions": (),
        "subscribed_topic_names": ("a", "b", "c"),
    }  # fmt: skip
    for number in range(members):
        joined = await client.ask(CONSUMER_HEARTBEAT, 1, **beat, member_id=f"m{number}")
        assert joined.error_code is ErrorCode.none


@pytest.mark.parametrize("is_secure", [False, True])
async def test_consumers_of_a_group_are_described_some_in_each_turn_and_encoded_in_a_thread(
    monkeypatch: pytest.MonkeyPatch, slices_of_two: None, encoding_threads: list[int], is_secure: bool
) -> None:
    access = {"access.enabled": is_secure, "access.super_users": str(CALLER.principal)}
    async with running_parts(SETTINGS | access) as broker:
        client = MemoryClient(broker)
        await join_consumers(client, "g", 3)
        described = seen_by(monkeypatch, k69_consumer_group_describe, "_member")
        permitted = seen_by(monkeypatch, k69_consumer_group_describe, "permits")
        encoding_threads.clear()
        request = client.ask(CONSUMER_DESCRIBE, 1, group_ids=("g",), include_authorized_operations=False)
        (found, most), most_permitted = await most_in_a_turn(most_in_a_turn(request, described), permitted)
    [group] = found.groups
    assert [(member.member_id, member.subscribed_topic_names) for member in group.members] == [
        (f"m{number}", ("a", "b", "c")) for number in range(3)
    ]
    assert (len(described), most) == (3, 1)
    assert permitted == (["a", "b", "c"] if is_secure else [])
    assert most_permitted <= 2
    assert encoding_threads
    assert get_ident() not in encoding_threads


async def join_classic(client: MemoryClient, group: str, members: int) -> Any:
    """Let members join a group of the classic protocol. Returns the answer to its leader, who joins again."""
    await client.ask(10, 4, key_type=0, coordinator_keys=(group,))
    fields: dict[str, Any] = {
        "group_id": group, "session_timeout": 30_000, "rebalance_timeout": 60_000, "protocol_type": "consumer",
        "protocols": ({"name": "range", "metadata": b""},),
    }  # fmt: skip
    leader = await client.ask(JOIN_GROUP, 3, **fields, member_id="")
    for _ in range(members - 1):
        MemoryClient(client.broker).send(kafka_request(JOIN_GROUP, 3, **fields, member_id=""))
    return await client.ask(JOIN_GROUP, 3, **fields, member_id=leader.member_id)


@pytest.fixture
def weighed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The memory that handlers have counted besides that of the request."""
    counted: list[int] = []
    weigh = KafkaCall.weigh

    def count(call: KafkaCall, more_bytes: int) -> None:
        counted.append(more_bytes)
        weigh(call, more_bytes)

    monkeypatch.setattr(KafkaCall, "weigh", count)
    return counted


async def test_answers_that_are_long_for_their_requests_are_weighed(client: MemoryClient, weighed: list[int]) -> None:
    await with_open_transaction(client)
    await client.ask(DESCRIBE_TRANSACTIONS, 0, transactional_ids=("long",))
    assert weighed == [1_000 * COUNT]
    await join_consumers(client, "members", 2)
    await client.ask(CONSUMER_DESCRIBE, 1, group_ids=("members",), include_authorized_operations=False)
    assert weighed[1:] == [600 * 2 * 4]
    coordinator = await client.broker.coordinators.groups.of_group("read")
    value = OffsetValue(offset=1, leader_epoch=0, metadata="note", commit_timestamp_ms=1, topic_id=None)
    coordinator.machine.apply(offset_record(OffsetKey(group_id="read", topic="t", partition=0), value))
    group = {"group_id": "read", "member_id": None, "member_epoch": -1, "topics": None}
    await client.ask(OFFSET_FETCH, 9, groups=[group], require_stable=False)
    assert weighed[2:] == [504]
    topic = {"name": "checked", "num_partitions": 1, "replication_factor": 1, "assignments": [], "configs": []}
    created = await client.ask(CREATE_TOPICS, 7, topics=[topic], timeout=1_000, validate_only=True)
    assert weighed[3:] == [200 * len(created.topics[0].configs)]


async def test_description_of_groups_counts_what_their_members_have_sent(client: MemoryClient) -> None:
    """The response to 300 bytes may have 500 MB."""
    leader = await join_classic(client, "g", 1)
    assignments = ({"member_id": leader.member_id, "assignment": b"x" * 100_000},)
    await client.ask(
        14, 3, group_id="g", member_id=leader.member_id, generation_id=leader.generation_id, group_instance_id=None,
        assignments=assignments,
    )  # fmt: skip
    client.send(kafka_request(DESCRIBE_GROUPS, 5, groups=("g",), include_authorized_operations=False))
    assert client.connection.buffered_bytes > 200_000
    await client.answers.get()
    assert client.connection.buffered_bytes == 0


@pytest.mark.parametrize("members", [2, 3])
async def test_members_of_a_group_are_encoded_in_a_thread_for_its_leader_and_for_others(
    slices_of_two: None, encoding_threads: list[int], members: int
) -> None:
    async with running_parts(SETTINGS | {"groups.initial_rebalance_delay_ms": 0}) as broker:
        client = MemoryClient(broker)
        joined = await join_classic(client, "g", members)
        *_, of_leader = encoding_threads
        encoding_threads.clear()
        found = await client.ask(DESCRIBE_GROUPS, 5, groups=("g",), include_authorized_operations=False)
    assert len(joined.members) == len(found.groups[0].members) == members
    assert [of_leader == get_ident(), encoding_threads == [get_ident()]] == [members == 2] * 2


@pytest.mark.parametrize("is_classic", [False, True])
async def test_each_group_is_described_in_a_turn_of_its_own(monkeypatch: pytest.MonkeyPatch, is_classic: bool) -> None:
    """Each may have thousands of members."""
    groups = [f"g{number}" for number in range(4)]
    async with running_parts(SETTINGS) as broker:
        client = MemoryClient(broker)
        for group in groups:
            await (join_classic if is_classic else join_consumers)(client, group, 1)
        verb = "describe" if is_classic else "describe_consumers"
        described = seen_by(monkeypatch, administration.Administration, verb)
        name, api_key = ("groups", DESCRIBE_GROUPS) if is_classic else ("group_ids", CONSUMER_DESCRIBE)
        request = client.ask(api_key, 1, **{name: tuple(groups)}, include_authorized_operations=False)
        found, most = await most_in_a_turn(request, described)
    assert [group.group_id for group in found.groups] == described == groups
    assert {len(group.members) for group in found.groups} == {1}
    assert most == 1


async def test_groups_are_deleted_with_some_offsets_in_each_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(committed_offsets, "DELETED_AT_ONCE", 2)
    groups = [f"g{number}" for number in range(4)]
    async with running_parts(SETTINGS) as broker:
        client = MemoryClient(broker)
        await broker.topics.create(CALLER, TopicRequest(name="t", partitions=5))
        await client.ask(10, 4, key_type=0, coordinator_keys=("g",))
        places = [{"partition_index": number, "committed_offset": 0, "committed_metadata": ""} for number in range(5)]
        committed = {"generation_id": -1, "member_id": "", "topics": [{"name": "t", "partitions": places}]}
        for group in groups:
            await client.ask(OFFSET_COMMIT, 7, group_id=group, **committed)
        deleted = seen_by(monkeypatch, committed_offsets, "offset_record")
        found, most = await most_in_a_turn(client.ask(DELETE_GROUPS, 2, groups_names=(*groups, "none")), deleted)
        left = await client.ask(LIST_GROUPS, 4, **NO_FILTERS[LIST_GROUPS])
    assert [result.group_id for result in found.results] == [*groups, "none"]
    assert [result.error_code for result in found.results] == [ErrorCode.none] * 4 + [ErrorCode.group_id_not_found]
    assert (len(deleted), most) == (20, 2 * len(groups))
    assert not left.groups
