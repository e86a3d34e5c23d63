"""A client sees and does what ACLs allow, item by item, and learns nothing of the rest."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from conveyor.broker.broker_node import BrokerNode
from conveyor.broker.slices import SLICE_ITEMS
from conveyor.cluster.acls import AclFilter
from conveyor.cluster.topic_creation import TopicRequest
from conveyor.kernel.access.acl import (
    ANY,
    CLUSTER_NAME,
    OPERATIONS,
    Acl,
    AclOperation,
    PatternType,
    Permission,
    ResourceType,
)
from conveyor.kernel.access.caller import Principal, PrincipalType
from conveyor.kernel.access.declared_access import CREATE, DELETE, DESCRIBE, DESCRIBE_CONFIGS, READ, WRITE
from conveyor.records.record import encode_batch
from tests.callers import CALLER
from tests.unit.broker.parts import BATCH, NOW_MS, Storage, running_parts
from tests.unit.kafka_api.client import MemoryClient
from tests.unit.kafka_api.requests import CREATE_TOPICS, FETCH, JOIN_GROUP, METADATA, PRODUCE, fetch, request, response

TOPIC, GROUP, CLUSTER, TRANSACTIONAL_ID = (
    ResourceType.TOPIC, ResourceType.GROUP, ResourceType.CLUSTER, ResourceType.TRANSACTIONAL_ID,
)  # fmt: skip
COMMIT, FETCH_OFFSETS, SYNC_GROUP, DESCRIBE_GROUPS, LIST_GROUPS = 8, 9, 14, 15, 16
DELETE_TOPICS, ADD_PARTITIONS = 20, 24
DESCRIBE_CLUSTER, CONSUMER_HEARTBEAT, CONSUMER_DESCRIBE, DESCRIBE_TOPIC_PARTITIONS = 60, 68, 69, 75
LARGE_BATCH = encode_batch([(NOW_MS, None, bytes(2_000), [])])
REFUSED, MISSING = ErrorCode.topic_authorization_failed, ErrorCode.unknown_topic_or_partition
SETTINGS = {
    "access.enabled": True, "access.super_users": "User:root", "groups.offsets_partitions": 1,
    "transactions.state_partitions": 1, "groups.initial_rebalance_delay_ms": 0, "topics.flush_policy": "os",
}  # fmt: skip


@pytest.fixture
async def broker(storage: Storage) -> AsyncIterator[BrokerNode]:
    """Yield a broker with the topics `open` and `secret`, and the groups of these names."""
    async with running_parts(SETTINGS, storage) as running:
        for name in ("open", "secret"):
            await running.topics.create(CALLER, TopicRequest(name=name))
            await running.coordinators.groups.find_coordinator(CALLER, name)
        yield running


@pytest.fixture
def alice(broker: BrokerNode) -> MemoryClient:
    return client_of(broker, "alice")


def client_of(broker: BrokerNode, user: str) -> MemoryClient:
    client = MemoryClient(broker)
    client.connection.authenticated(Principal(PrincipalType.USER, user))
    return client


def allowed(resource_type: ResourceType, name: str, *operations: AclOperation) -> list[Acl]:
    """Return what lets Alice do something."""
    return [
        Acl(resource_type, name, PatternType.LITERAL, "User:alice", ANY, operation, Permission.ALLOW)
        for operation in operations
    ]


async def allow(broker: BrokerNode, resource_type: ResourceType, name: str, *operations: AclOperation) -> None:
    await broker.clients.access.add(CALLER, allowed(resource_type, name, *operations))


async def disallow(broker: BrokerNode) -> None:
    """Remove all ACLs."""
    await broker.clients.access.remove(CALLER, [AclFilter()])


def produced(
    *topics: str, acks: int = -1, transactional_id: str | None = None, records: bytes = BATCH
) -> dict[str, Any]:
    data = [{"name": name, "partition_data": [{"index": 0, "records": records}]} for name in topics]
    return {"acks": acks, "timeout": 1000, "topic_data": data, "transactional_id": transactional_id}


async def test_records_of_permitted_topics_are_written_and_the_others_are_refused(
    broker: BrokerNode, alice: MemoryClient
) -> None:
    await allow(broker, TOPIC, "open", WRITE)
    answer = await alice.ask(PRODUCE, 9, **produced("secret", "open", "missing"))
    results = {topic.name: topic.partition_responses[0] for topic in answer.responses}
    assert list(results) == ["secret", "open", "missing"]
    assert {name: result.error_code for name, result in results.items()} == {
        "secret": REFUSED, "open": ErrorCode.none, "missing": REFUSED,
    }  # fmt: skip
    assert broker.partitions.table.find("open", 0).log.log_end_offset == 1
    assert broker.partitions.table.find("secret", 0).log.log_end_offset == 0


@pytest.mark.parametrize("count", [1, SLICE_ITEMS], ids=["few", "many"])
async def test_refused_records_are_not_kept_until_the_answer(
    broker: BrokerNode, alice: MemoryClient, count: int
) -> None:
    await allow(broker, TOPIC, "open", WRITE)
    alice.send(request(PRODUCE, 9, 1, **produced(*["secret"] * count, "open", records=LARGE_BATCH)))
    [call] = alice.connection._calls
    topics = (response(PRODUCE, 9, await alice.answers.get())).responses
    assert [topic.partition_responses[0].error_code for topic in topics] == [REFUSED] * count + [ErrorCode.none]
    assert [topic.partition_data[0].records for topic in call.request.topic_data] == [None] * (count + 1)


async def test_a_client_without_answers_is_disconnected(broker: BrokerNode, alice: MemoryClient) -> None:
    alice.send(request(PRODUCE, 9, 1, **produced("secret", acks=0)))
    await broker.partitions.tick.end()
    assert "TOPIC_AUTHORIZATION_FAILED" in alice.failures[0]


async def test_a_right_that_goes_while_a_fetch_waits_ends_it(broker: BrokerNode, alice: MemoryClient) -> None:
    await allow(broker, TOPIC, "open", READ)
    alice.send(fetch(1, wait_ms=600_000, topic="open"))
    await disallow(broker)
    await client_of(broker, "root").ask(PRODUCE, 9, **produced("open"))
    [topic] = response(FETCH, 4, await alice.answers.get()).responses
    assert (topic.partitions[0].error_code, topic.partitions[0].records) == (REFUSED, b"")


@pytest.mark.parametrize("last", [JOIN_GROUP, SYNC_GROUP])
async def test_a_right_that_goes_while_a_member_waits_ends_it(
    broker: BrokerNode, alice: MemoryClient, last: int
) -> None:
    """The member of a group waits for its leader, who may take minutes."""
    await allow(broker, GROUP, "open", READ)
    root = client_of(broker, "root")
    joining: dict[str, Any] = {
        "group_id": "open",
        "session_timeout": 600_000,
        "rebalance_timeout": 600_000,
        "group_instance_id": None,
    }
    joining |= {"protocol_type": "consumer", "protocols": [{"name": "range", "metadata": b""}]}
    syncing: dict[str, Any] = {"group_id": "open", "group_instance_id": None}
    leader = {"member_id": (await root.ask(JOIN_GROUP, 5, member_id="", **joining)).member_id}
    first = {"generation_id": (await root.ask(JOIN_GROUP, 5, **leader, **joining)).generation_id}
    await root.ask(SYNC_GROUP, 3, assignments=[], **leader, **first, **syncing)
    member = {"member_id": (await alice.ask(JOIN_GROUP, 5, member_id="", **joining)).member_id}
    alice.send(request(JOIN_GROUP, 5, **member, **joining))
    if last == SYNC_GROUP:
        second = {"generation_id": (await root.ask(JOIN_GROUP, 5, **leader, **joining)).generation_id}
        assert response(JOIN_GROUP, 5, await alice.answers.get()).error_code is ErrorCode.none
        alice.send(request(SYNC_GROUP, 3, assignments=[], **member, **second, **syncing))
        await disallow(broker)
        assigned = [member | {"assignment": b"secret"}]
        await root.ask(SYNC_GROUP, 3, assignments=assigned, **leader, **second, **syncing)
    else:
        await disallow(broker)
        await root.ask(JOIN_GROUP, 5, **leader, **joining)
    answer = response(last, {JOIN_GROUP: 5, SYNC_GROUP: 3}[last], await alice.answers.get())
    assert answer.error_code is ErrorCode.group_authorization_failed
    assert not (answer.members if last == JOIN_GROUP else answer.assignment)


async def test_a_fetch_session_looks_again_at_the_rights_on_all_its_topics(
    broker: BrokerNode, alice: MemoryClient
) -> None:
    await client_of(broker, "root").ask(PRODUCE, 9, **produced("open"))
    await allow(broker, TOPIC, "open", READ)
    limits = {"max_wait": 0, "min_bytes": 1, "max_bytes": 1 << 20, "forgotten_topics_data": [], "rack_id": ""}
    partition = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1 << 20}
    topics = [{"topic": "open", "partitions": [partition]}]
    first = await alice.ask(FETCH, 11, **limits, session_id=0, session_epoch=0, topics=topics)
    assert first.responses[0].partitions[0].records
    await disallow(broker)
    following = await alice.ask(FETCH, 11, **limits, session_id=first.session_id, session_epoch=1, topics=[])
    assert [partition.error_code for topic in following.responses for partition in topic.partitions] == [REFUSED]


async def test_metadata_shows_the_topics_that_the_client_may_describe(broker: BrokerNode, alice: MemoryClient) -> None:
    await allow(broker, TOPIC, "open", READ)
    answer = await alice.ask(METADATA, 12, topics=None, include_topic_authorized_operations=True)
    [shown] = answer.topics
    assert (shown.name, shown.topic_authorized_operations) == ("open", bits(READ, DESCRIBE))
    assert answer.brokers


def bits(*operations: AclOperation) -> int:
    return sum(1 << operation.number for operation in operations)


async def test_a_forbidden_topic_looks_like_a_missing_one(broker: BrokerNode, alice: MemoryClient) -> None:
    topics = [{"name": name, "topic_id": None} for name in ("secret", "missing")]
    for version in (1, 12):
        answer = await alice.ask(METADATA, version, topics=topics, allow_auto_topic_creation=True,
                                 include_topic_authorized_operations=True)  # fmt: skip
        assert {topic.name: topic.error_code for topic in answer.topics} == {"secret": REFUSED, "missing": REFUSED}
    assert len({repr(topic).replace("secret", "missing") for topic in answer.topics}) == 1
    assert "missing" not in broker.metadata.image.topics


async def metadata(client: MemoryClient, topics: Any) -> Any:
    return await client.ask(METADATA, 12, topics=topics, include_topic_authorized_operations=False)


async def test_only_who_may_create_topics_creates_missing_ones(broker: BrokerNode, alice: MemoryClient) -> None:
    await allow(broker, TOPIC, ANY, DESCRIBE)
    wanted = {"topics": [{"name": "new"}], "allow_auto_topic_creation": True}
    assert (await alice.ask(METADATA, 4, **wanted)).topics[0].error_code is REFUSED
    await allow(broker, TOPIC, "new", CREATE)
    assert (await alice.ask(METADATA, 4, **wanted)).topics[0].error_code is ErrorCode.none


async def test_an_id_of_a_forbidden_topic_shows_no_name(broker: BrokerNode, alice: MemoryClient) -> None:
    topic_id = broker.metadata.image.topics["secret"].topic_id
    [shown] = (await metadata(alice, [{"name": None, "topic_id": topic_id}])).topics
    assert (shown.error_code, shown.name, shown.topic_id) == (REFUSED, None, topic_id)
    await allow(broker, TOPIC, "open", DELETE)
    both = [{"name": "open", "topic_id": topic_id}, {"name": None, "topic_id": topic_id}]
    deleted = await alice.ask(DELETE_TOPICS, 6, topics=both, timeout=1000)
    assert {topic.error_code for topic in deleted.responses} == {REFUSED}
    assert {"open", "secret"} <= broker.metadata.image.topics.keys()


async def test_settings_of_a_new_topic_are_shown_to_whom_may_describe_them(
    broker: BrokerNode, alice: MemoryClient
) -> None:
    await allow(broker, TOPIC, ANY, CREATE)
    topic = {"num_partitions": 1, "replication_factor": 1, "assignments": [], "configs": []}

    async def create(name: str) -> Any:
        [created] = (await alice.ask(CREATE_TOPICS, 7, topics=[topic | {"name": name}], timeout=1000)).topics
        assert created.error_code is ErrorCode.none
        return created.topic_config_error_code, created.num_partitions, bool(created.configs)

    assert await create("a") == (29, -1, False)
    await allow(broker, TOPIC, ANY, DESCRIBE_CONFIGS)
    assert await create("b") == (0, 1, True)


async def test_a_delayed_topic_needs_a_right_on_its_target(broker: BrokerNode, alice: MemoryClient) -> None:
    await allow(broker, TOPIC, "later", CREATE)
    configs = [{"name": "delay.target", "value": "secret"}]
    topic = {"name": "later", "num_partitions": 1, "replication_factor": 1, "assignments": [], "configs": configs}
    assert (await alice.ask(CREATE_TOPICS, 7, topics=[topic], timeout=1000)).topics[0].error_code is REFUSED
    await allow(broker, TOPIC, "secret", WRITE)
    assert (await alice.ask(CREATE_TOPICS, 7, topics=[topic], timeout=1000)).topics[0].error_code is ErrorCode.none


async def test_groups_are_listed_and_described_one_by_one(broker: BrokerNode, alice: MemoryClient) -> None:
    root = client_of(broker, "root")
    for group in ("open", "secret"):
        await commit(root, group, "open")
    assert not (await alice.ask(LIST_GROUPS, 4, states_filter=[])).groups
    await allow(broker, GROUP, "open", DESCRIBE)
    assert [group.group_id for group in (await alice.ask(LIST_GROUPS, 4, states_filter=[])).groups] == ["open"]
    described = await alice.ask(
        DESCRIBE_GROUPS, 5, groups=["secret", "open", "missing"], include_authorized_operations=True
    )
    assert {group.group_id: (int(group.error_code), group.authorized_operations) for group in described.groups} == {
        "open": (0, bits(DESCRIBE)), "secret": (30, -(1 << 31)), "missing": (30, -(1 << 31)),
    }  # fmt: skip
    await allow(broker, CLUSTER, CLUSTER_NAME, DESCRIBE)
    assert len((await alice.ask(LIST_GROUPS, 4, states_filter=[])).groups) == 2


async def commit(client: MemoryClient, group: str, *topics: str) -> Any:
    partition = {"partition_index": 0, "committed_offset": 5, "committed_metadata": None}
    values = {"group_id": group, "generation_id_or_member_epoch": -1, "member_id": ""}
    return await client.ask(
        COMMIT, 8, **values, topics=[{"name": topic, "partitions": [partition]} for topic in topics]
    )


@pytest.mark.parametrize("version", [7, 8])
async def test_offsets_of_topics_that_the_client_may_not_describe_are_left_out(
    broker: BrokerNode, alice: MemoryClient, version: int
) -> None:
    await commit(client_of(broker, "root"), "open", "open", "secret")
    await allow(broker, GROUP, "open", READ)
    await allow(broker, TOPIC, "open", DESCRIBE)

    async def offsets(topics: Any) -> dict[str, tuple[int, int]]:
        group = {"group_id": "open", "topics": topics}
        answer = await alice.ask(FETCH_OFFSETS, version, **({"groups": [group]} if version >= 8 else group))
        shown = answer.groups[0].topics if version >= 8 else answer.topics
        return {topic.name: (topic.partitions[0].committed_offset, topic.partitions[0].error_code) for topic in shown}

    assert await offsets(None) == {"open": (5, 0)}
    named = [{"name": name, "partition_indexes": [0]} for name in ("secret", "open")]
    assert await offsets(named) == {"open": (5, 0), "secret": (-1, REFUSED)}
    assert await offsets(named[:1]) == {"secret": (-1, REFUSED)}


async def test_offsets_of_forbidden_topics_are_not_committed(broker: BrokerNode, alice: MemoryClient) -> None:
    await allow(broker, GROUP, "open", READ)
    await allow(broker, TOPIC, "open", READ)
    answer = await commit(alice, "open", "secret", "open")
    assert {topic.name: topic.partitions[0].error_code for topic in answer.topics} == {"open": 0, "secret": REFUSED}
    everything = {"groups": [{"group_id": "open", "topics": None}]}
    [group] = (await client_of(broker, "root").ask(FETCH_OFFSETS, 8, **everything)).groups
    assert [topic.name for topic in group.topics] == ["open"]


async def test_a_transaction_gets_all_partitions_or_none(broker: BrokerNode, alice: MemoryClient) -> None:
    await allow(broker, TRANSACTIONAL_ID, "x", WRITE)
    await allow(broker, TOPIC, "open", WRITE)
    topics = [{"name": name, "partitions": [0]} for name in ("secret", "open")]
    answer = await alice.ask(
        ADD_PARTITIONS, 3, v3_and_below_transactional_id="x", v3_and_below_producer_id=1, v3_and_below_producer_epoch=0,
        v3_and_below_topics=topics,
    )  # fmt: skip
    results = answer.results_by_topic_v3_and_below
    assert {topic.name: topic.results_by_partition[0].partition_error_code for topic in results} == {
        "secret": REFUSED, "open": ErrorCode.operation_not_attempted,
    }  # fmt: skip


async def test_topic_pages_have_permitted_topics_alone(broker: BrokerNode, alice: MemoryClient) -> None:
    for name in ("a", "z"):
        await broker.topics.create(CALLER, TopicRequest(name=name))
        await allow(broker, TOPIC, name, DESCRIBE)
    first = await alice.ask(DESCRIBE_TOPIC_PARTITIONS, 0, topics=[], response_partition_limit=1, cursor=None)
    assert ([topic.name for topic in first.topics], first.next_cursor.topic_name) == (["a"], "z")
    named = [{"name": name} for name in ("a", "secret", "missing")]
    answer = await alice.ask(DESCRIBE_TOPIC_PARTITIONS, 0, topics=named, response_partition_limit=9, cursor=None)
    assert {topic.name: topic.error_code for topic in answer.topics} == {
        "a": ErrorCode.none, "secret": REFUSED, "missing": REFUSED,
    }  # fmt: skip


async def test_pages_are_those_of_a_missing_topic_for_one_that_is_forbidden(
    broker: BrokerNode, alice: MemoryClient
) -> None:
    await broker.topics.create(CALLER, TopicRequest(name="hidden", partitions=3))
    for limit in range(1, 5):
        pages = [
            await alice.ask(
                DESCRIBE_TOPIC_PARTITIONS, 0, topics=[{"name": name}], response_partition_limit=limit, cursor=None
            )
            for name in ("hidden", "absent")
        ]
        assert repr(pages[0]).replace("hidden", "absent") == repr(pages[1])


async def test_a_group_whose_members_read_forbidden_topics_is_not_shown(
    broker: BrokerNode, alice: MemoryClient
) -> None:
    beat = {"group_id": "g", "member_id": "m", "member_epoch": 0, "rebalance_timeout": 60_000, "topic_partitions": []}
    root = client_of(broker, "root")
    joined = await root.ask(CONSUMER_HEARTBEAT, 1, **beat, subscribed_topic_names=["secret"])
    assert joined.error_code is ErrorCode.none
    await allow(broker, GROUP, "g", READ)
    described = {"group_ids": ["g"], "include_authorized_operations": False}
    [group] = (await alice.ask(CONSUMER_DESCRIBE, 1, **described)).groups
    assert (group.error_code, group.members) == (REFUSED, ())
    assert "secret" not in group.error_message
    refused = await alice.ask(CONSUMER_HEARTBEAT, 1, **beat | {"member_id": "n"}, subscribed_topic_names=["secret"])
    assert refused.error_code is REFUSED
    await allow(broker, TOPIC, "secret", DESCRIBE)
    [group] = (await alice.ask(CONSUMER_DESCRIBE, 1, **described)).groups
    assert [member.member_id for member in group.members] == ["m"]


async def test_a_pattern_needs_a_right_on_all_topics_that_it_could_match(
    broker: BrokerNode, alice: MemoryClient
) -> None:
    """The assignment shows which topics there are, and a group gets nothing that its members may not read."""
    beat = {"group_id": "g", "member_id": "m", "member_epoch": 0, "rebalance_timeout": 60_000, "topic_partitions": []}

    async def join(pattern: str) -> Any:
        return await alice.ask(CONSUMER_HEARTBEAT, 1, **beat, subscribed_topic_names=[], subscribed_topic_regex=pattern)

    await allow(broker, GROUP, "g", READ)
    await allow(broker, TOPIC, "open", DESCRIBE)
    refused = [await join(pattern) for pattern in ("secret.*", "absent.*")]
    assert refused[0] == refused[1]
    assert (refused[0].error_code, refused[0].assignment) == (REFUSED, None)
    assert (await join("open")).error_code is REFUSED, "openly could be a topic of another owner"
    prefix = Acl(TOPIC, "ope", PatternType.PREFIXED, "User:alice", ANY, READ, Permission.ALLOW)
    await broker.clients.access.add(CALLER, [prefix])
    assert [(await join(pattern)).error_code for pattern in (".*", "op.*", "(open)")] == [REFUSED] * 3
    joined = await join("^ope.+")
    assert joined.error_code is ErrorCode.none
    assigned = [broker.metadata.image.names_by_id[topic.topic_id] for topic in joined.assignment.topic_partitions]
    assert assigned == ["open"]


async def test_the_cluster_is_described_to_everybody_and_its_operations_to_whom_may(
    broker: BrokerNode, alice: MemoryClient
) -> None:
    wanted = {"include_cluster_authorized_operations": True}
    shown = await alice.ask(DESCRIBE_CLUSTER, 0, **wanted)
    assert (len(shown.brokers), shown.cluster_authorized_operations) == (1, 0)
    everything = await client_of(broker, "root").ask(DESCRIBE_CLUSTER, 0, **wanted)
    assert everything.cluster_authorized_operations == bits(*OPERATIONS[CLUSTER])


async def test_a_long_request_is_decided_item_by_item(broker: BrokerNode, alice: MemoryClient) -> None:
    await allow(broker, TOPIC, "open", WRITE, DESCRIBE)
    names = [f"secret{number}" for number in range(SLICE_ITEMS)]
    answer = await alice.ask(PRODUCE, 9, **produced(*names, "open", *names))
    codes = [topic.partition_responses[0].error_code for topic in answer.responses]
    assert codes == [REFUSED] * len(names) + [ErrorCode.none] + [REFUSED] * len(names)
    answer = await metadata(alice, [{"name": name, "topic_id": None} for name in (*names, "open")])
    assert {topic.name for topic in answer.topics if topic.error_code is ErrorCode.none} == {"open"}
    assert len(answer.topics) == len(names) + 1


async def test_rights_count_on_the_request_that_follows_their_change(broker: BrokerNode, alice: MemoryClient) -> None:
    for _ in range(2):
        await allow(broker, TOPIC, "open", DESCRIBE)
        assert (await metadata(alice, None)).topics
        await disallow(broker)
        assert not (await metadata(alice, None)).topics
