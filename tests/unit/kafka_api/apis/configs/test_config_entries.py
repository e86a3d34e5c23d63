"""DescribeConfigs: settings of brokers, topics and groups under Kafka's names, with their synonyms."""

from typing import Any

import pytest

from conveyor.broker.topics.configs import broker_configs, topic_configs
from conveyor.cluster.dynamic_config import as_given
from conveyor.cluster.topic_creation import TopicRequest
from conveyor.settings.tree import Settings, topic_setting_fields
from tests.callers import CALLER
from tests.unit.broker.parts import Storage, running_parts
from tests.unit.kafka_api.client import MemoryClient

CREATE, DESCRIBE, ALTER = 19, 32, 44
TOPIC, BROKER, GROUP = 2, 4, 32
SET, DELETE, APPEND, SUBTRACT = range(4)
OF_TOPIC, OF_BROKER, DEFAULT = 1, 4, 5
FIXED = ("offsets.topic.replication.factor", "delete.topic.enable", "offsets.retention.minutes")
"""What cannot be changed at run time."""


async def answered(client: MemoryClient, kind: int, name: str) -> Any:
    asked = {"resource_type": kind, "resource_name": name, "configuration_keys": None}
    answer = await client.ask(DESCRIBE, 4, resources=[asked], include_synonyms=True, include_documentation=True)
    return answer.results[0]


async def described(client: MemoryClient, kind: int, name: str) -> dict[str, Any]:
    result = await answered(client, kind, name)
    assert int(result.error_code) == 0
    return {entry.name: entry for entry in result.configs}


def synonyms(entry: Any) -> list[tuple[str, str, int]]:
    return [(synonym.name, synonym.value, int(synonym.source)) for synonym in entry.synonyms]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("log.retention.ms", "1209600000"),
        ("log.segment.bytes", "1073741824"),
        ("log.cleanup.policy", "delete"),
        ("message.max.bytes", "1048588"),
        ("min.insync.replicas", "1"),
        ("compression.type", "producer"),
        ("default.replication.factor", "1"),
        ("offsets.topic.replication.factor", "3"),
        ("delete.topic.enable", "true"),
        ("offsets.retention.minutes", "10080"),
        ("groups.offsets_retention_ms", "604800000"),
        ("topics.flush_policy", "ack"),
    ],
)
async def test_a_brokers_settings_have_kafkas_names(client: MemoryClient, name: str, value: str) -> None:
    entry = (await described(client, BROKER, "1"))[name]
    assert (entry.value, int(entry.config_source)) == (value, DEFAULT)
    assert entry.read_only == (name in FIXED)


async def test_a_topics_synonyms_lead_to_the_brokers_default() -> None:
    async with running_parts({"topics.retention_ms": 5000}, Storage()) as broker:
        await broker.topics.create(CALLER, TopicRequest(name="t", config={"retention.ms": "60000"}))
        client = MemoryClient(broker)
        entry = (await described(client, TOPIC, "t"))["retention.ms"]
        built_in = ("log.retention.ms", "1209600000", DEFAULT)
        given = ("log.retention.ms", "5000", OF_BROKER)
        assert synonyms(entry) == [("retention.ms", "60000", OF_TOPIC), given, built_in]
        assert synonyms((await described(client, BROKER, "1"))["log.retention.ms"]) == [given]


async def test_every_synonym_of_a_topics_setting_is_a_setting_of_the_broker(client: MemoryClient) -> None:
    layers = client.broker.cluster.dynamic_settings.layers
    of_broker = {entry.name for entry in broker_configs(layers)}
    of_topic = topic_configs(client.broker.topics.existing("t").config, layers)
    assert {name for entry in of_topic for name, _, _ in entry.synonyms} <= of_broker
    assert len(of_topic) == len(topic_setting_fields())


def test_no_two_settings_of_a_broker_have_one_name() -> None:
    names = [entry.name for entry in broker_configs(as_given(Settings()))]
    assert len(set(names)) == len(names)


async def test_a_group_has_the_brokers_settings(client: MemoryClient) -> None:
    entries = await described(client, GROUP, "any")
    assert {name: synonyms(entry) for name, entry in entries.items()} == {
        "consumer.heartbeat.interval.ms": [("group.consumer.heartbeat.interval.ms", "5000", DEFAULT)],
        "consumer.session.timeout.ms": [("group.consumer.session.timeout.ms", "45000", DEFAULT)],
        "offsets.retention.ms": [("groups.offsets_retention_ms", "604800000", DEFAULT)],
    }


async def altered(client: MemoryClient, operation: int, name: str, value: str | None, topic: str = "t") -> int:
    config = {"name": name, "value": value, "config_operation": operation}
    asked = {"resource_type": TOPIC, "resource_name": topic, "configs": [config]}
    [result] = (await client.ask(ALTER, 1, resources=[asked], validate_only=False)).responses
    return int(result.error_code)


async def test_deleting_an_unknown_setting_does_nothing(client: MemoryClient) -> None:
    assert await altered(client, DELETE, "nothere", None) == 0
    assert client.broker.topics.existing("t").config == {}
    assert await altered(client, DELETE, "nothere", None, topic="missing") == 3
    assert [await altered(client, operation, "nothere", "1") for operation in (SET, APPEND, SUBTRACT)] == [40, 40, 40]


async def test_an_internal_topic_is_made_as_the_broker_needs_it(client: MemoryClient) -> None:
    configs = [{"name": "cleanup.policy", "value": "delete"}]
    asked = {"num_partitions": 1, "replication_factor": 1, "assignments": [], "configs": configs}
    asked["name"] = "__consumer_offsets"
    [made] = (await client.ask(CREATE, 7, topics=[asked], timeout=1000, validate_only=False)).topics
    assert (int(made.error_code), made.num_partitions) == (0, 8)
    assert {config.name: config.value for config in made.configs}["cleanup.policy"] == "compact"
    assert (await described(client, TOPIC, "__consumer_offsets"))["cleanup.policy"].value == "compact"


async def test_a_list_is_described_without_blanks(client: MemoryClient) -> None:
    assert await altered(client, SET, "cleanup.policy", "delete, compact") == 0
    assert (await described(client, TOPIC, "t"))["cleanup.policy"].value == "delete,compact"


async def test_a_list_may_be_empty(client: MemoryClient) -> None:
    assert await altered(client, SET, "cleanup.policy", "") == 0
    assert synonyms((await described(client, TOPIC, "t"))["cleanup.policy"])[0] == ("cleanup.policy", "", OF_TOPIC)
    assert await altered(client, APPEND, "cleanup.policy", "compact") == 0
    assert client.broker.partitions.table.find("t", 0).log.topic.cleanup_policy == "compact"
    assert await altered(client, SUBTRACT, "cleanup.policy", "compact") == 0
    assert client.broker.partitions.table.find("t", 0).log.topic.cleanup_policy == ""
    assert [await altered(client, SET, "cleanup.policy", text) for text in (",", "delete,", ",delete")] == [40, 40, 40]


async def test_address_of_the_metadata_is_hidden_because_it_may_hold_a_password() -> None:
    for metadata, value in (("zookeeper://me:secret@host/x", None), ("embedded", "embedded")):
        async with running_parts({"broker.metadata": metadata}) as broker:
            entry = (await described(MemoryClient(broker), BROKER, "1"))["broker.metadata"]
            assert (entry.value, entry.is_sensitive) == (value, value is None)
            assert "secret" not in str(entry)
