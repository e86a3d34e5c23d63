"""Settings of brokers, groups and loggers changed at run time take effect at once, and again after a restart."""

import logging
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import pytest

from conveyor.cluster.changes import ConfigPut
from conveyor.cluster.dynamic_config import ALL_BROKERS
from conveyor.cluster.image import ConfigScope
from conveyor.cluster.topic_creation import TopicRequest
from conveyor.kernel.errors import ErrorKind, StorageFailure
from tests.callers import CALLER
from tests.unit.broker.parts import NOW_MS, Storage, publish, rewrite, running_parts
from tests.unit.kafka_api.client import MemoryClient

METADATA, DESCRIBE, ALTER, ALTER_SOME, HEARTBEAT, LIST = 3, 32, 33, 44, 68, 74
TOPIC, BROKER, LOGGER, METRICS, GROUP = 2, 4, 8, 16, 32
SET, DELETE, APPEND = 0, 1, 2
OF_TOPIC, OF_THIS, OF_ALL, GIVEN, DEFAULT, OF_LOGGER, OF_GROUP = 1, 2, 3, 4, 5, 6, 8
THIS, ALL = "1", ""
RETENTION = "log.retention.ms"


@asynccontextmanager
async def connected(storage: Storage, **settings: object) -> AsyncIterator[MemoryClient]:
    """Yield a client of a broker that starts with the storage of an earlier one."""
    async with running_parts({name.replace("__", "."): value for name, value in settings.items()}, storage) as broker:
        yield MemoryClient(broker)


async def alter(
    client: MemoryClient,
    kind: int,
    name: str,
    texts: Mapping[str, str | None],
    operation: int = SET,
    *,
    check_only: bool = False,
) -> tuple[int, str | None]:
    """Change settings by name. Returns the error's code and message."""
    configs = [{"name": name, "value": text, "config_operation": operation} for name, text in texts.items()]
    asked = {"resource_type": kind, "resource_name": name, "configs": configs}
    [result] = (await client.ask(ALTER_SOME, 1, resources=[asked], validate_only=check_only)).responses
    return int(result.error_code), result.error_message


async def replace(client: MemoryClient, kind: int, name: str, texts: Mapping[str, str]) -> int:
    configs = [{"name": name, "value": text} for name, text in texts.items()]
    asked = {"resource_type": kind, "resource_name": name, "configs": configs}
    [result] = (await client.ask(ALTER, 2, resources=[asked], validate_only=False)).responses
    return int(result.error_code)


async def described(client: MemoryClient, kind: int, name: str) -> dict[str, Any]:
    asked = {"resource_type": kind, "resource_name": name, "configuration_keys": None}
    answer = await client.ask(DESCRIBE, 4, resources=[asked], include_synonyms=True, include_documentation=False)
    assert int(answer.results[0].error_code) == 0
    return {entry.name: entry for entry in answer.results[0].configs}


def synonyms(entry: Any) -> list[tuple[str, str, int]]:
    return [(synonym.name, synonym.value, int(synonym.source)) for synonym in entry.synonyms]


def retention_ms(client: MemoryClient, topic: str) -> int:
    return client.broker.partitions.table.find(topic, 0).log.topic.retention_ms


async def test_default_of_topics_takes_effect_at_once_and_after_a_restart(storage: Storage) -> None:
    async with connected(storage) as client:
        await client.broker.topics.create(CALLER, TopicRequest(name="t"))
        await client.broker.topics.create(CALLER, TopicRequest(name="own", config={"retention.ms": "7"}))
        assert await alter(client, BROKER, THIS, {"log.retention.ms": "60000"}) == (0, None)
        await client.broker.topics.create(CALLER, TopicRequest(name="new"))
        assert [retention_ms(client, name) for name in ("t", "own", "new")] == [60_000, 7, 60_000]
    async with connected(storage) as client:
        assert [retention_ms(client, name) for name in ("t", "own", "new")] == [60_000, 7, 60_000]
        assert await alter(client, BROKER, THIS, {"log.retention.ms": None}, DELETE) == (0, None)
        assert retention_ms(client, "t") == 14 * 24 * 3_600_000
        assert client.broker.metadata.image.configs == {}


async def test_each_value_is_described_with_its_source(storage: Storage) -> None:
    async with connected(storage, topics__retention_ms=4) as client:
        await client.broker.topics.create(CALLER, TopicRequest(name="t", config={"retention.ms": "1"}))
        await alter(client, BROKER, ALL, {"log.retention.ms": "3"})
        of_all = (await described(client, BROKER, THIS))[RETENTION]
        assert (of_all.value, int(of_all.config_source), of_all.read_only) == ("3", OF_ALL, False)
        await alter(client, BROKER, THIS, {"log.retention.ms": "2"})
        entry = (await described(client, BROKER, THIS))[RETENTION]
        at_run_time = [(RETENTION, "2", OF_THIS), (RETENTION, "3", OF_ALL), (RETENTION, "4", GIVEN)]
        assert (entry.value, synonyms(entry)) == ("2", at_run_time)
        assert client.broker.settings.topics.retention_ms == 2
        of_topic = (await described(client, TOPIC, "t"))["retention.ms"]
        built_in = (RETENTION, "1209600000", DEFAULT)
        assert synonyms(of_topic) == [("retention.ms", "1", OF_TOPIC), *at_run_time, built_in]
        assert {name: entry.value for name, entry in (await described(client, BROKER, ALL)).items()} == {RETENTION: "3"}


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("node.id", "2"),
        ("max.connections", "5"),
        ("offsets.topic.num.partitions", "3"),
        ("group.consumer.assignors", "range"),
        ("broker.flush_threads", "2"),
    ],
)
async def test_setting_that_needs_a_restart_is_refused(client: MemoryClient, name: str, text: str) -> None:
    code, message = await alter(client, BROKER, THIS, {name: text})
    assert (code, message is not None and "needs a restart" in message) == (42, True)
    assert (await described(client, BROKER, THIS))[name].read_only
    assert await alter(client, BROKER, THIS, {name: None}, DELETE) == (0, None), "it is not set"


KERBEROS = "sasl.kerberos.min.time.before.relogin"


async def test_kafkas_settings_that_have_no_effect_are_kept_and_described(storage: Storage) -> None:
    async with connected(storage) as client:
        entry = (await described(client, BROKER, THIS))["background.threads"]
        assert (entry.value, int(entry.config_source), entry.read_only) == ("10", DEFAULT, False)
        assert await alter(client, BROKER, ALL, {"background.threads": "8"}) == (0, None)
        assert await alter(client, BROKER, THIS, {"background.threads": "9", KERBEROS: "58000"}) == (0, None)
    async with connected(storage) as client:
        entries = await described(client, BROKER, THIS)
        values = [("9", OF_THIS), ("8", OF_ALL), ("10", DEFAULT)]
        assert synonyms(entries["background.threads"]) == [("background.threads", *value) for value in values]
        assert (entries["background.threads"].value, entries[KERBEROS].value) == ("9", "58000")
        assert {name: entry.value for name, entry in (await described(client, BROKER, ALL)).items()} == {
            "background.threads": "8"
        }
        assert await replace(client, BROKER, THIS, {KERBEROS: "57000"}) == 0
        entries = await described(client, BROKER, THIS)
        assert (entries["background.threads"].value, entries[KERBEROS].value) == ("8", "57000")


async def test_settings_of_topics_have_no_effect_on_a_broker(client: MemoryClient) -> None:
    assert "cleanup.policy" not in await described(client, BROKER, THIS)
    assert await alter(client, BROKER, THIS, {"cleanup.policy": "compact"}) == (0, None)
    assert await alter(client, BROKER, THIS, {"cleanup.policy": "delete"}, APPEND) == (0, None)
    assert (await described(client, BROKER, THIS))["cleanup.policy"].value == "compact,delete"
    assert client.broker.partitions.table.find("t", 0).log.topic.cleanup_policy == "delete"


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("background.threads", "many"),
        ("background.threads", "0"),
        ("cleanup.policy", "burn"),
        ("no.such.setting", "1"),
        ("ssl.protocol", "TLSv1.3"),
        ("sasl.enabled.mechanisms", "PLAIN"),
        ("listeners", "SASL_SSL://:9093"),
    ],
)
async def test_settings_that_kafka_refuses_or_that_promise_safety_are_refused(
    client: MemoryClient, name: str, text: str
) -> None:
    code, message = await alter(client, BROKER, THIS, {name: text})
    assert (code, message is not None and f"'{name}'" in message) == (42, True)
    assert client.broker.metadata.image.configs == {}


async def test_check_changes_nothing(client: MemoryClient) -> None:
    for kind, name, setting in ((BROKER, THIS, "num.partitions"), (GROUP, "g", "consumer.session.timeout.ms")):
        assert await alter(client, kind, name, {setting: "50000"}, check_only=True) == (0, None)
    assert client.broker.settings.broker.num_partitions == 1
    assert client.broker.metadata.image.configs == {}


async def test_replacement_resets_other_settings(client: MemoryClient) -> None:
    assert await replace(client, BROKER, THIS, {RETENTION: "5", "num.partitions": "3"}) == 0
    assert await replace(client, BROKER, THIS, {"num.partitions": "4"}) == 0
    assert client.broker.settings.broker.num_partitions == 4
    assert client.broker.settings.topics.retention_ms == 14 * 24 * 3_600_000


async def test_list_is_appended_to_the_value_in_force(client: MemoryClient) -> None:
    assert await alter(client, BROKER, ALL, {"log.cleanup.policy": "compact, acknowledged"}, APPEND) == (0, None)
    assert client.broker.settings.topics.cleanup_policy == "delete,compact,acknowledged"


async def test_topics_are_created_with_the_settings_in_force(storage: Storage) -> None:
    async with connected(storage) as client:
        await alter(client, BROKER, THIS, {"num.partitions": "3", "auto.create.topics.enable": "true"})
        asked = [{"name": "made", "topic_id": None}]
        await client.ask(METADATA, 12, topics=asked, allow_auto_topic_creation=True, **AUTHORIZED)
        assert len(client.broker.topics.existing("made").partitions) == 3
        await alter(client, BROKER, THIS, {"auto.create.topics.enable": "false"})
        asked = [{"name": "other", "topic_id": None}]
        await client.ask(METADATA, 12, topics=asked, allow_auto_topic_creation=True, **AUTHORIZED)
        assert "other" not in client.broker.metadata.image.topics
        await alter(client, BROKER, THIS, {"broker.max_partitions": "3"})
        code, _ = await create(client, "more")
        assert code == 37


AUTHORIZED = dict.fromkeys(("include_cluster_authorized_operations", "include_topic_authorized_operations"), False)


async def create(client: MemoryClient, name: str) -> tuple[int, int]:
    asked = {"name": name, "num_partitions": -1, "replication_factor": -1, "assignments": [], "configs": []}
    [made] = (await client.ask(19, 7, topics=[asked], timeout=1000, validate_only=False)).topics
    return int(made.error_code), made.num_partitions


async def test_lower_message_limit_takes_effect_at_once(client: MemoryClient) -> None:
    await alter(client, BROKER, ALL, {"message.max.bytes": "10"})
    [refused] = await publish(client.broker, ("t", 0))
    assert refused.error is not None
    assert refused.error.kind is ErrorKind.MESSAGE_TOO_LARGE


async def test_delay_target_has_no_default_for_all_topics(client: MemoryClient) -> None:
    code, message = await alter(client, BROKER, ALL, {"topics.delay_target": "t"})
    assert (code, "set delay.target when you create" in (message or "")) == (42, True)


async def test_own_topics_keep_their_settings(client: MemoryClient) -> None:
    await client.broker.coordinators.groups.ensured()
    await alter(
        client, BROKER, ALL, {"log.cleanup.policy": "delete", "message.max.bytes": "10", "topics.flush_policy": "os"}
    )
    topic = client.broker.partitions.table.find("__consumer_offsets", 0).log.topic
    assert (topic.cleanup_policy, topic.flush_policy, topic.max_message_bytes) == ("compact", "ack", (1 << 31) - 1)


async def test_quotas_are_measured_over_the_new_windows(client: MemoryClient) -> None:
    await alter(client, BROKER, THIS, {"quota.window.size.seconds": "5"})
    assert client.broker.clients.quotas.window_ms == 5000


async def test_retention_runs_at_the_configured_interval(
    client: MemoryClient, storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked: list[tuple[str, int]] = []

    async def look(what: str) -> None:
        looked.append((what, storage.clock.now_ms() - NOW_MS))

    monkeypatch.setattr(client.broker.partitions.retention, "run_once", partial(look, "retention"))
    monkeypatch.setattr(client.broker.partitions.compaction, "run_once", partial(look, "compaction"))
    often = {"log.retention.check.interval.ms": "1000", "log.cleaner.backoff.ms": "1500"}
    await alter(client, BROKER, THIS, often)
    for _ in range(6):
        storage.clock.advance(ms=500)
        await client.broker.partitions.tick.end()
    every_second = [("retention", value) for value in (1000, 2000, 3000)]
    assert sorted(looked) == [("compaction", 1500), ("compaction", 3000), *every_second]


def beat(group: str, epoch: int) -> dict[str, Any]:
    return {
        "group_id": group, "member_id": "m", "member_epoch": epoch, "instance_id": None, "rack_id": None,
        "rebalance_timeout": 10_000, "subscribed_topic_names": ("t",), "subscribed_topic_regex": None,
        "server_assignor": None, "topic_partitions": [] if epoch == 0 else None,
    }  # fmt: skip


async def heartbeat_ms(client: MemoryClient, group: str, epoch: int = 0) -> tuple[int, int]:
    """Return the error code and heartbeat interval (ms) of a member."""
    answer = await client.ask(HEARTBEAT, 1, **beat(group, epoch))
    return int(answer.error_code), round(answer.heartbeat_interval.total_seconds() * 1000)


async def test_group_has_settings_of_its_own_at_once_and_after_a_restart(storage: Storage) -> None:
    own = {"consumer.heartbeat.interval.ms": "1000", "consumer.session.timeout.ms": "3000"}
    async with connected(storage) as client:
        await client.broker.topics.create(CALLER, TopicRequest(name="t"))
        assert await heartbeat_ms(client, "g") == (0, 5000)
        assert await alter(client, GROUP, "g", own) == (0, None)
        entry = (await described(client, GROUP, "g"))["consumer.session.timeout.ms"]
        assert (entry.value, int(entry.config_source), entry.read_only) == ("3000", OF_GROUP, False)
        assert synonyms(entry)[1:] == [("group.consumer.session.timeout.ms", "45000", DEFAULT)]
        assert await heartbeat_ms(client, "g", 1) == (0, 1000)
        assert await heartbeat_ms(client, "other") == (0, 5000)
    async with connected(storage) as client:
        assert await heartbeat_ms(client, "g", 1) == (0, 1000)
        storage.clock.advance(seconds=4)
        assert (await heartbeat_ms(client, "g", 1))[0] == 25, "its session was 3 seconds"
        assert (await heartbeat_ms(client, "other", 1))[0] == 0
        assert await alter(client, GROUP, "g", dict.fromkeys(own), DELETE) == (0, None)
        assert await heartbeat_ms(client, "g") == (0, 5000)


async def test_groups_have_the_brokers_settings_in_force(client: MemoryClient) -> None:
    assert await heartbeat_ms(client, "g") == (0, 5000)
    await alter(client, BROKER, ALL, {"group.consumer.heartbeat.interval.ms": "2000"})
    assert await heartbeat_ms(client, "g", 1) == (0, 2000)
    assert (await described(client, GROUP, "g"))["consumer.heartbeat.interval.ms"].value == "2000"


async def test_offsets_of_a_group_are_forgotten_by_its_own_setting(client: MemoryClient, storage: Storage) -> None:
    committed = {"partition_index": 0, "committed_offset": 1, "committed_leader_epoch": -1, "committed_metadata": ""}
    topics = [{"name": "t", "partitions": [committed]}]
    for group in ("short", "long"):
        identity = {"group_id": group, "generation_id_or_member_epoch": -1, "member_id": "", "group_instance_id": None}
        await client.ask(8, 9, **identity, topics=topics)
    await alter(client, GROUP, "short", {"offsets.retention.ms": "1000"})
    storage.clock.advance(seconds=2)
    assert [await committed_offset(client, group) for group in ("short", "long")] == [-1, 1]


async def committed_offset(client: MemoryClient, group: str) -> int:
    topics = [{"name": "t", "partition_indexes": (0,)}]
    asked = {"group_id": group, "member_id": None, "member_epoch": -1, "topics": topics}
    answer = await client.ask(9, 9, groups=[asked], require_stable=False)
    return int(answer.groups[0].topics[0].partitions[0].committed_offset)


async def test_brokers_setting_that_contradicts_a_groups_is_refused(client: MemoryClient) -> None:
    await alter(client, GROUP, "g", {"consumer.heartbeat.interval.ms": "20000"})
    code, message = await alter(client, BROKER, THIS, {"group.consumer.session.timeout.ms": "10000"})
    assert (code, message is not None and "group 'g'" in message) == (42, True)


async def test_stored_settings_that_are_invalid_now_are_ignored(
    storage: Storage, caplog: pytest.LogCaptureFixture
) -> None:
    async with connected(storage) as client:
        await alter(client, BROKER, ALL, {"num.partitions": "3"})
        await alter(client, BROKER, THIS, {"group.consumer.heartbeat.interval.ms": "20000"})
    texts = {"num.partitions": "3", "of.a.newer.version": "1"}
    await rewrite(storage, lambda _: [ConfigPut(scope=ConfigScope.BROKERS, name=ALL_BROKERS, texts=texts)])
    async with connected(storage, groups__consumer_session_timeout_ms=10_000) as client:
        groups = client.broker.settings.groups
        assert (groups.consumer_session_timeout_ms, groups.consumer_heartbeat_interval_ms) == (10_000, 5_000)
        assert client.broker.settings.broker.num_partitions == 3
        assert "settings left out owner=brokers/default names=['of.a.newer.version']" in caplog.text
        assert "settings left out owner=brokers/1" in caplog.text
        assert (await alter(client, BROKER, THIS, {"log.retention.ms": "1"}))[0] == 42
        assert await alter(client, BROKER, THIS, {"group.consumer.heartbeat.interval.ms": "4000"}) == (0, None)
        assert client.broker.settings.groups.consumer_heartbeat_interval_ms == 4000


async def test_change_that_cannot_be_stored_takes_no_effect(
    client: MemoryClient, storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(*_: object, **__: object) -> int:
        raise StorageFailure("the disk is full")

    monkeypatch.setattr(storage.store, "commit", fail)
    assert (await alter(client, BROKER, THIS, {"num.partitions": "3"}))[0] == 7
    assert client.broker.settings.broker.num_partitions == 1


async def listed(client: MemoryClient, version: int, *types: int) -> list[tuple[int, str]]:
    answer = await client.ask(LIST, version, resource_types=types)
    assert int(answer.error_code) == 0
    return [
        (getattr(resource, "resource_type", METRICS), resource.resource_name) for resource in answer.config_resources
    ]


async def test_resources_with_settings_are_listed(client: MemoryClient) -> None:
    await alter(client, GROUP, "g/1", {"consumer.session.timeout.ms": "50000"})
    assert await listed(client, 1) == [(GROUP, "g/1"), (LOGGER, "1"), (BROKER, "1"), (TOPIC, "t")]
    assert await listed(client, 1, TOPIC, GROUP) == [(GROUP, "g/1"), (TOPIC, "t")]
    assert await listed(client, 1, METRICS) == []
    assert await listed(client, 0) == []


async def test_logger_levels_hold_until_the_broker_stops(storage: Storage) -> None:
    logger, top = logging.getLogger("conveyor.broker.topics.topics"), logging.getLogger("conveyor")
    before = logger.level, top.level
    async with connected(storage) as client:
        assert await alter(client, LOGGER, THIS, {"conveyor.broker.topics.topics": "TRACE"}) == (0, None)
        assert logger.getEffectiveLevel() == logging.DEBUG
        entry = (await described(client, LOGGER, THIS))["conveyor.broker.topics.topics"]
        assert (entry.value, int(entry.config_source)) == ("DEBUG", OF_LOGGER)
        assert await alter(client, LOGGER, THIS, {"conveyor.broker.topics.topics": "FATAL"}, check_only=True) == (
            0,
            None,
        )
        assert await alter(client, BROKER, THIS, {"broker.log_level": "error"}) == (0, None)
        assert (logger.getEffectiveLevel(), top.getEffectiveLevel()) == (logging.DEBUG, logging.ERROR)
        assert await alter(client, LOGGER, THIS, {"conveyor.broker.topics.topics": None}, DELETE) == (0, None)
        assert logger.getEffectiveLevel() == logging.ERROR
        assert await alter(client, BROKER, THIS, {"broker.log_level": None}, DELETE) == (0, None)
        assert top.level == before[1]
        await alter(client, LOGGER, THIS, {"conveyor.broker.topics.topics": "FATAL"})
    assert (logger.level, top.level) == before


async def test_topics_inherit_settings_without_effect(client: MemoryClient) -> None:
    assert await alter(client, BROKER, ALL, {"log.flush.interval.ms": "5", "log.preallocate": "yes"}) == (0, None)
    assert await alter(client, TOPIC, "t", {"flush.messages": "7"}) == (0, None)
    entries = await described(client, TOPIC, "t")
    assert [entries[name].value for name in ("flush.ms", "preallocate", "flush.messages")] == ["5", "true", "7"]
    assert [value for _, value, _ in synonyms(entries["flush.ms"])] == ["5", "9223372036854775807"]
    assert (await alter(client, BROKER, ALL, {"log.flush.interval.ms": "soon"}))[0] == 42
    replicas = {"leader.replication.throttled.replicas": "0:1"}
    for value in ("0:1", "0:1,1:2"):
        assert await alter(client, TOPIC, "t", replicas, 2) == (0, None)
        assert (await described(client, TOPIC, "t"))["leader.replication.throttled.replicas"].value == value
        replicas = {"leader.replication.throttled.replicas": "1:2"}


async def test_topics_take_settings_of_remote_storage_that_are_off(client: MemoryClient) -> None:
    for name in ("remote.log.copy.disable", "remote.log.delete.on.disable"):
        assert await alter(client, TOPIC, "t", {name: "false"}) == (0, None)
        assert (await alter(client, TOPIC, "t", {name: "true"}))[0] == 40
