"""Every API in every version served: a request made by kio is answered with what kio reads, to the last byte."""

import io
from collections.abc import Iterator
from typing import Any
from uuid import UUID

import pytest
from kio.index import load_request_schema
from kio.serial import entity_writer

from conveyor.kafka_api.wire.codec import build
from conveyor.kafka_api.wire.versions import SERVED_APIS
from conveyor.records.record import encode_batch
from conveyor.testing import Broker
from tests.vectors.wire import ask, read_response

TOPIC = "vectors"
BATCH = encode_batch([(1, b"key", b"value", [("name", b"header")])])
EVERY_VERSION = [(api.key, version) for api in SERVED_APIS.values() for version in api.versions]


OFFSETS = {
    "name": TOPIC,
    "partitions": [{"partition_index": 0, "committed_offset": 1, "committed_metadata": "note"}],
}
MARKER = {
    "producer_id": 5, "producer_epoch": 0, "transaction_result": False, "coordinator_epoch": 0,
    "transaction_version": 0, "topics": [{"name": TOPIC, "partition_indexes": (0,)}],
}  # fmt: skip
FEATURE = {"feature": "transaction.version", "max_version_level": 2, "allow_downgrade": False}
CREDENTIAL = {"name": "alice", "mechanism": 1, "iterations": 4096, "salt": b"salt", "salted_password": bytes(32)}
FIXED_REQUESTS: dict[int, dict[str, Any]] = {
    17: {"mechanism": "PLAIN"},
    36: {"auth_bytes": b"\0alice\0secret"},
    50: {"users": [{"name": "alice"}]},
    51: {"deletions": [{"name": "bob", "mechanism": 1}], "upsertions": [CREDENTIAL]},
    24: {"v3_and_below_transactional_id": "x", "v3_and_below_producer_id": 0, "v3_and_below_producer_epoch": 0}
    | {"v3_and_below_topics": [{"name": TOPIC, "partitions": (0,)}]},
    25: {"transactional_id": "x", "producer_id": 0, "producer_epoch": 0, "group_id": "g"},
    26: {"transactional_id": "x", "producer_id": 0, "producer_epoch": 0, "committed": True},
    27: {"markers": [MARKER]},
    28: {"transactional_id": "x", "producer_id": 0, "producer_epoch": 0, "group_id": "g", "topics": [OFFSETS]},
    65: {"transactional_ids": ("x",)},
    66: {"state_filters": (), "producer_id_filters": (), "duration_filter": -1},
    34: {"dirs": [{"path": "/nowhere", "topics": [{"name": TOPIC, "partitions": (0,)}]}]},
    55: {"topics": [{"topic_name": "__cluster_metadata", "partitions": [{"partition_index": 0}]}]},
    57: {"timeout": 1000, "validate_only": True, "feature_updates": [FEATURE]},
}


def topic_requests(topic_id: UUID, fetch_offset: int = 0) -> dict[int, dict[str, Any]]:
    """Values for every field of every version, by API key."""
    named = {"name": TOPIC, "topic": TOPIC, "topic_id": topic_id}
    partition = {"partition": 0, "partition_index": 0, "index": 0}
    group = {"group_id": "g", "member_id": "", "generation_id": -1, "generation_id_or_member_epoch": -1}
    produced = named | {"partition_data": [partition | {"records": BATCH}]}
    fetched = named | {"partitions": [partition | {"fetch_offset": fetch_offset, "partition_max_bytes": 1 << 20}]}
    listed = named | {"partitions": [partition | {"timestamp": -2}]}
    committed = named | {"partitions": [partition | {"committed_offset": 1, "committed_metadata": "note"}]}
    asked = [named | {"partition_indexes": (0,)}]
    creatable = {"name": "made", "num_partitions": 1, "replication_factor": 1, "assignments": [], "configs": []}
    topic_resource = {"resource_type": 2, "resource_name": TOPIC}
    quota: dict[str, Any] = {"entity": [{"entity_type": "user", "entity_name": None}]}
    altered = quota | {"ops": [{"key": "producer_byte_rate", "value": 1.0, "remove": False}]}
    acl = {"resource_type": 2, "resource_name": TOPIC, "resource_pattern_type": 3, "principal": "User:u", "host": "*"}
    acl |= {"operation": 3, "permission_type": 3}
    acl_filter = {"resource_type_filter": 2, "resource_name_filter": TOPIC, "pattern_type_filter": 3}
    acl_filter |= {"principal_filter": None, "host_filter": None, "operation": 1, "permission_type": 1}
    joined = {"session_timeout": 10_000, "rebalance_timeout": 10_000, "protocol_type": "consumer"}
    return FIXED_REQUESTS | {
        0: {"acks": -1, "timeout": 1000, "topic_data": [produced]},
        1: {"max_wait": 0, "min_bytes": 0, "topics": [fetched], "forgotten_topics_data": []},
        2: {"replica_id": -1, "isolation_level": 0, "topics": [listed], "timeout": 1000},
        3: {"topics": [named | {"topic_id": None}], "allow_auto_topic_creation": False}
        | dict.fromkeys(("include_cluster_authorized_operations", "include_topic_authorized_operations"), False),
        8: group | {"retention_time": -1, "topics": [committed]},
        9: group | {"topics": asked, "groups": [group | {"topics": asked}]},
        10: {"key": "g", "key_type": 0, "coordinator_keys": ("g",)},
        11: group | joined | {"protocols": [{"name": "range", "metadata": b"m"}]},
        12: group,
        13: group | {"members": [{"member_id": "nobody", "group_instance_id": None}]},
        14: group | {"protocol_type": "consumer", "protocol_name": "range", "assignments": []},
        15: {"groups": ("g",), "include_authorized_operations": True},
        16: {"states_filter": (), "types_filter": ()},
        18: {"client_software_name": "test", "client_software_version": "1"},
        19: {"topics": [creatable], "timeout": 1000, "validate_only": True},
        20: {"topics": [{"name": "nothing", "topic_id": None}], "topic_names": ("nothing",), "timeout": 1000},
        21: {"topics": [named | {"partitions": [partition | {"offset": 0}]}], "timeout": 1000},
        22: {"transactional_id": None, "transaction_timeout": 1000, "producer_id": -1, "producer_epoch": -1},
        23: {"replica_id": -1, "topics": [named | {"partitions": [partition | {"leader_epoch": 0}]}]},
        29: acl_filter,
        30: {"creations": [acl]},
        31: {"filters": [acl_filter]},
        32: {"resources": [topic_resource | {"configuration_keys": None}], "include_synonyms": True}
        | {"include_documentation": True},
        33: {"resources": [topic_resource | {"configs": []}], "validate_only": True},
        35: {"topics": [named | {"partitions": (0,)}]},
        37: {"topics": [named | {"count": 2, "assignments": None}], "timeout": 1000, "validate_only": True},
        42: {"groups_names": ("nothing",)},
        43: {"election_type": 0, "topic_partitions": [named | {"partitions": (0,)}], "timeout": 1000},
        44: {"resources": [topic_resource | {"configs": []}], "validate_only": True},
        45: {"timeout": 1000, "allow_replication_factor_change": True}
        | {"topics": [named | {"partitions": [partition | {"replicas": (1,)}]}]},
        46: {"timeout": 1000, "topics": [named | {"partition_indexes": (0,)}]},
        47: {"group_id": "g", "topics": [named | {"partitions": [partition]}]},
        48: {"components": [{"entity_type": "user", "match_type": 1, "match": None}], "strict": False},
        49: {"entries": [altered], "validate_only": True},
        60: {"include_cluster_authorized_operations": True, "endpoint_type": 1, "include_fenced_brokers": True},
        61: {"topics": asked},
        64: {"broker_id": 99},
        68: group
        | {"member_id": "m", "member_epoch": 0, "rebalance_timeout": 10_000, "topic_partitions": []}
        | {"instance_id": None, "rack_id": None, "subscribed_topic_names": (TOPIC,), "subscribed_topic_regex": None}
        | {"server_assignor": None},
        69: {"group_ids": ("g",), "include_authorized_operations": True},
        74: {"resource_types": ()},
        75: {"topics": [named], "response_partition_limit": 1, "cursor": None},
    }


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker(memory=True) as running:
        yield running


def exchange(broker: Broker, api_key: int, version: int, values: dict[str, Any]) -> Any:
    """Send a request, and read the response with kio: all of it."""
    schema = load_request_schema(api_key, version)
    header = schema.__header_schema__
    out = io.BytesIO()
    known = {"request_api_key": api_key, "request_api_version": version, "correlation_id": 99, "client_id": "vectors"}
    entity_writer(header)(out, build(header, known))
    entity_writer(schema)(out, build(schema, values))
    correlation_id, answer = read_response(api_key, version, ask(broker, out.getvalue()))
    assert correlation_id == 99
    return answer


def errors_in(answer: Any) -> set[int]:
    """Every error code in a response, however deep."""
    if isinstance(answer, tuple):
        return set().union(*map(errors_in, answer)) if answer else set()
    if not hasattr(answer, "__dataclass_fields__"):
        return set()
    found = {int(answer.error_code)} if hasattr(answer, "error_code") else set()
    return found.union(*(errors_in(getattr(answer, name)) for name in answer.__dataclass_fields__))


EXPECTED_ERRORS = {
    11: {0, 79},
    12: {25},
    13: {25},
    14: {25},
    15: {69},
    17: {34},
    20: {3},
    25: {16},
    26: {16},
    28: {49},
    34: {57},
    36: {34},
    42: {69},
    43: {84},
    47: {69},
    50: {91},
    51: {91},
    64: {102},
    65: {16},
    69: {69},
}
EXPECTED_ERRORS |= {key: {54} for key in (29, 30, 31)}


@pytest.fixture(scope="module")
def topic_id(broker: Broker) -> UUID:
    wanted = {"name": TOPIC, "num_partitions": 1, "replication_factor": 1, "assignments": [], "configs": []}
    made = exchange(broker, 19, 7, {"topics": [wanted], "timeout": 1000, "validate_only": False})
    identity: UUID = made.topics[0].topic_id
    return identity


@pytest.mark.parametrize(("api_key", "version"), EVERY_VERSION)
def test_every_version_is_answered_in_its_own_format(
    broker: Broker, topic_id: UUID, api_key: int, version: int
) -> None:
    values = topic_requests(topic_id)[api_key]
    if api_key == 3 and version < 12:
        values = values | {"topics": [{"name": TOPIC, "topic_id": None}]}  # The field is there before it may be used.
    if api_key == 11:
        values = values | {"group_id": f"joined-{version}"}
    if api_key == 68:
        values = values | {"group_id": f"consumers-{version}"}
    answer = exchange(broker, api_key, version, values)
    assert errors_in(answer) - {0} <= EXPECTED_ERRORS.get(api_key, set())


@pytest.mark.parametrize("version", range(4, 19))
def test_fetched_records_are_the_producers_bytes(broker: Broker, topic_id: UUID, version: int) -> None:
    acknowledged = exchange(broker, 0, 9, topic_requests(topic_id)[0])
    base_offset = acknowledged.responses[0].partition_responses[0].base_offset
    answer = exchange(broker, 1, version, topic_requests(topic_id, fetch_offset=base_offset)[1])
    records = answer.responses[0].partitions[0].records
    assert records[17 : len(BATCH)] == BATCH[17:]


@pytest.mark.parametrize("version", range(7, 19))
def test_a_fetch_session_goes_on_until_it_is_closed(broker: Broker, topic_id: UUID, version: int) -> None:
    whole, nothing = topic_requests(topic_id)[1], topic_requests(topic_id)[1] | {"topics": []}
    unknown = exchange(broker, 1, version, whole | {"session_id": 5, "session_epoch": 1})
    assert (int(unknown.error_code), unknown.session_id) == (70, 0)
    session = exchange(broker, 1, version, whole | {"session_epoch": 0}).session_id
    again = exchange(broker, 1, version, nothing | {"session_id": session, "session_epoch": 1})
    assert (int(again.error_code), again.session_id) == (0, session)
    wrong = exchange(broker, 1, version, nothing | {"session_id": session, "session_epoch": 1})
    assert (int(wrong.error_code), wrong.session_id) == (71, 0)
    closing = exchange(broker, 1, version, whole | {"session_id": session, "session_epoch": -1})
    assert (len(closing.responses), closing.session_id) == (1, 0)
    closed = exchange(broker, 1, version, nothing | {"session_id": session, "session_epoch": 2})
    assert int(closed.error_code) == 70
