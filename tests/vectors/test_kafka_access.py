"""The rights that the Kafka door declares are those of Kafka's page, and the fields that name resources exist."""

from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, get_args, get_origin
from uuid import UUID

import pytest
from kio.index import load_request_schema

from conveyor.kafka_api.wire.codec import build
from conveyor.kafka_api.wire.skim import without_none
from conveyor.kafka_api.wire.versions import API_VERSIONS_KEY, SERVED_APIS
from conveyor.kernel.access.declared_access import NO_ACCESS, Access, AnyOf, Needs

PAGE = Path(__file__).parent / "golden" / "kafka_access.txt"

Row = tuple[int, str, str]

DIFFERENT: dict[Row, str] = {
    (0, "IdempotentWrite", "Cluster"): "InitProducerId alone asks for it (KIP-679)",
    (43, "ClusterAction", "Cluster"): "ControllerApis.handleElectLeaders asks for Alter",
    (60, "Describe", "Cluster"): "AuthHelper.computeDescribeClusterResponse asks for it to show operations alone",
}
"""Rows of the page that Kafka's own code does not follow, and why they are not declared."""

FURTHER: dict[Row, str] = {
    (22, "TwoPhaseCommit", "TransactionalId"): "transactions without a timeout (KIP-939)",
    (22, "Write", "Topic"): "KafkaApis.handleInitProducerIdRequest: on any topic, in place of IdempotentWrite",
    (32, "DescribeConfigs", "Group"): "settings of groups (KIP-848)",
    (33, "AlterConfigs", "Group"): "ControllerApis.authorizeAlterResource",
    (43, "Alter", "Cluster"): "ControllerApis.handleElectLeaders",
    (44, "AlterConfigs", "Group"): "ControllerApis.authorizeAlterResource",
    (65, "Describe", "Topic"): "the topics of a transaction, in KafkaApis.handleDescribeTransactionsRequest",
    (68, "Describe", "Topic"): "the topics that a member subscribes to (KAFKA-18813)",
    (69, "Describe", "Topic"): "the topics of a group's members (KAFKA-18813)",
}
"""Rights that Kafka's code asks for, and its page leaves out."""


def accesses(needs: Needs) -> Iterator[Access]:
    for need in needs:
        yield from need.alternatives if isinstance(need, AnyOf) else (need,)


def documented() -> set[Row]:
    rows = [line.split() for line in PAGE.read_text().splitlines() if not line.startswith("#")]
    return {(int(key), operation, resource) for key, operation, resource in rows if operation != "-"}


def declared() -> set[Row]:
    return {
        (key, access.operation.value, access.resource_type.value)
        for key, api in SERVED_APIS.items()
        for access in accesses(api.needs)
    }


def test_the_declared_rights_are_those_of_kafkas_page() -> None:
    page = {row for row in documented() if row[0] in SERVED_APIS}
    assert DIFFERENT.keys() <= page
    assert not FURTHER.keys() & page
    assert declared() == page - DIFFERENT.keys() | FURTHER.keys()


def test_only_a_login_and_the_list_of_brokers_need_no_right() -> None:
    handshake, authenticate, describe_cluster = 17, 36, 60
    found = [key for key, api in SERVED_APIS.items() if api.needs == NO_ACCESS]
    assert found == [handshake, API_VERSIONS_KEY, authenticate, describe_cluster]


def kind(schema: Any, path: str) -> Any:
    """Return the type of a field of a request, of the items if it is an array; None if the version lacks it."""
    for name in path.split("."):
        declared = {field.name: field.type for field in fields(schema)} if is_dataclass(schema) else {}
        if name not in declared:
            return None
        schema = without_none(declared[name])
        if get_origin(schema) is tuple:
            schema = without_none(get_args(schema)[0])
    return schema


@pytest.mark.parametrize("key", sorted(SERVED_APIS))
def test_every_version_has_a_field_that_names_the_resources(key: int) -> None:
    for version in SERVED_APIS[key].versions:
        schema = load_request_schema(key, version)
        for access in accesses(SERVED_APIS[key].needs):
            kinds = [found for path in access.named_by if (found := kind(schema, path)) is not None]
            assert bool(kinds) is bool(access.named_by), f"v{version}: {access}"
            assert all(not is_dataclass(found) for found in kinds), f"v{version}: {access}"


@pytest.mark.parametrize("key", sorted(SERVED_APIS))
def test_every_declared_field_is_one_of_some_version(key: int) -> None:
    schemas = [load_request_schema(key, version) for version in SERVED_APIS[key].versions]
    paths = {path for access in accesses(SERVED_APIS[key].needs) for path in access.named_by}
    for access in accesses(SERVED_APIS[key].needs):
        paths |= {*access.given[0]} if access.given is not None else set()
        paths |= {access.unless} if access.unless is not None else set()
    assert not [path for path in paths if all(kind(schema, path) is None for schema in schemas)]


def named(access: Access, request: Any) -> list[Any]:
    """Return what a request names of the resources of one right: names, or ids of topics."""
    if access.unless is not None and getattr(request, access.unless) is not None:
        return []
    leading = access.named_by or (access.given[0] if access.given is not None else ("",))
    found = [
        name
        for parent in dict.fromkeys(path.rpartition(".")[0] for path in leading)
        for item in items(request, parent)
        if access.given is None or number(access.given[0], parent, item, request) in access.given[1]
        for name in names(access, parent, item)
    ]
    return list(dict.fromkeys(found))


def items(request: Any, parent: str) -> list[Any]:
    """Return what is in a field of a request, all items of an array; the request itself for no field."""
    found = [request]
    for name in parent.split(".") if parent else ():
        values = [getattr(entity, name, None) for entity in found]
        found = [item for value in values for item in (value if isinstance(value, tuple) else (value,))]
    return [item for item in found if item is not None]


def number(paths: tuple[str, ...], parent: str, item: Any, request: Any) -> int:
    for path in paths:
        within, _, name = path.rpartition(".")
        owner = item if within == parent else getattr(request, within, None) if within else request
        if hasattr(owner, name):
            return int(getattr(owner, name))
    return 0


def names(access: Access, parent: str, item: Any) -> list[Any]:
    """Return the first of an item's fields that is there and not null, as a list."""
    if not access.named_by:
        return ["*" if access.is_any else "kafka-cluster"]
    fields_of = [path.rpartition(".")[2] for path in access.named_by if path.rpartition(".")[0] == parent]
    value = next((value for name in fields_of if (value := getattr(item, name, None)) is not None), None)
    return [] if value is None else list(value) if isinstance(value, tuple) else [value]


def needed(api_key: int, version: int, **values: Any) -> dict[str, list[Any]]:
    """Return the rights that a request needs, with the names of the resources."""
    request = build(load_request_schema(api_key, version), values)
    found = {str(access): named(access, request) for access in accesses(SERVED_APIS[api_key].needs)}
    return {access: resources for access, resources in found.items() if resources}


def test_a_request_needs_a_right_on_each_resource_that_it_names() -> None:
    partitions: dict[str, list[Any]] = {"partition_data": []}
    produced = {"acks": -1, "timeout": 1000, "topic_data": [{"name": "a"} | partitions, {"name": "b"} | partitions]}
    assert needed(0, 9, **produced, transactional_id=None) == {"Write Topic": ["a", "b"]}
    assert needed(0, 9, **produced, transactional_id="t") == {
        "Write TransactionalId": ["t"],
        "Write Topic": ["a", "b"],
    }
    by_id: list[dict[str, Any]] = [{"topic_id": UUID(int=7)} | partitions]
    assert needed(0, 13, acks=-1, timeout=1000, topic_data=by_id) == {"Write Topic": [UUID(int=7)]}


def test_a_topic_is_named_by_its_name_or_its_id() -> None:
    topics = [{"name": "a", "topic_id": None}, {"name": None, "topic_id": UUID(int=7)}]
    assert needed(20, 6, topics=topics, timeout=1000) == {"Delete Topic": ["a", UUID(int=7)]}
    assert needed(20, 5, topic_names=["a", "b"], timeout=1000) == {"Delete Topic": ["a", "b"]}


def test_groups_are_named_one_by_one_or_several_at_once() -> None:
    topics = [{"name": "a", "partition_indexes": [0]}]
    assert needed(9, 7, group_id="g", topics=topics) == {"Describe Group": ["g"], "Describe Topic": ["a"]}
    groups = [{"group_id": "g", "topics": topics}, {"group_id": "h", "topics": None}]
    assert needed(9, 8, groups=groups) == {"Describe Group": ["g", "h"], "Describe Topic": ["a"]}


def test_the_type_of_a_key_decides_which_right_it_needs() -> None:
    assert needed(10, 0, key="k") == {"Describe Group": ["k"]}
    assert needed(10, 4, key_type=1, coordinator_keys=["k", "l"]) == {"Describe TransactionalId": ["k", "l"]}
    kinds = {"a": 2, "1": 4, "2": 8, "g": 32}
    resources = [
        {"resource_type": kind, "resource_name": name, "configuration_keys": None} for name, kind in kinds.items()
    ]
    assert needed(32, 4, resources=resources) == {
        "DescribeConfigs Cluster": ["kafka-cluster"],
        "DescribeConfigs Topic": ["a"],
        "DescribeConfigs Group": ["g"],
    }


def test_only_a_producer_without_a_transactional_id_needs_a_right_on_the_cluster_or_on_some_topic() -> None:
    assert needed(22, 4, transactional_id="t", transaction_timeout=0) == {"Write TransactionalId": ["t"]}
    assert needed(22, 4, transactional_id=None, transaction_timeout=0) == {
        "Write Topic": ["*"], "IdempotentWrite Cluster": ["kafka-cluster"],
    }  # fmt: skip
    two_phase = needed(22, 6, transactional_id="t", transaction_timeout=0, enable2_pc=True, keep_prepared_txn=False)
    assert two_phase == {"Write TransactionalId": ["t"], "TwoPhaseCommit TransactionalId": ["t"]}


def test_only_a_follower_fetches_by_a_right_on_the_cluster() -> None:
    limits = {"max_wait": 0, "min_bytes": 1}
    topics = [{"topic": "a", "partitions": []}]
    fetch = {"topics": topics, "forgotten_topics_data": []} | limits
    assert needed(1, 12, **fetch) == {"Read Topic": ["a"]}
    follower = {"ClusterAction Cluster": ["kafka-cluster"], "Read Topic": ["a"]}
    assert needed(1, 12, **fetch, replica_id=2) == follower
