"""Kafka's topic settings, including those without effect here: accepted, checked as in Kafka, with Kafka's defaults."""

from dataclasses import fields

import pytest

from conveyor.kernel.errors import SettingsError
from conveyor.settings.topic_settings import TopicSettings, normalized, topic_setting_fields, topic_settings
from conveyor.settings.tree import from_sources
from conveyor.settings.unused_settings import UNUSED_BROKER_SETTINGS, UNUSED_TOPIC_SETTINGS

LONGEST = (1 << 63) - 1
KAFKA_DEFAULTS: dict[str, object] = {
    "compression.gzip.level": -1,
    "compression.lz4.level": 9,
    "compression.zstd.level": 3,
    "file.delete.delay.ms": 60_000,
    "flush.messages": LONGEST,
    "flush.ms": LONGEST,
    "follower.replication.throttled.replicas": "",
    "leader.replication.throttled.replicas": "",
    "local.retention.bytes": -2,
    "local.retention.ms": -2,
    "message.downconversion.enable": True,
    "message.timestamp.after.max.ms": 3_600_000,
    "message.timestamp.before.max.ms": LONGEST,
    "preallocate": False,
    "remote.storage.enable": False,
    "segment.index.bytes": 10_485_760,
    "segment.jitter.ms": 0,
    "unclean.leader.election.enable": False,
}


@pytest.mark.parametrize(("name", "default"), KAFKA_DEFAULTS.items())
def test_kafkas_default_is_ours_and_can_be_given(name: str, default: object) -> None:
    assert topic_setting_fields()[name].default == default
    assert topic_settings(TopicSettings(), {name: str(default).lower()}) == TopicSettings()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("unclean.leader.election.enable", "true"),
        ("message.downconversion.enable", "false"),
        ("preallocate", "true"),
        ("segment.jitter.ms", "60000"),
        ("file.delete.delay.ms", "0"),
        ("flush.messages", "1"),
        ("flush.ms", "0"),
        ("segment.index.bytes", "4"),
        ("compression.gzip.level", "9"),
        ("compression.lz4.level", "17"),
        ("compression.zstd.level", "-131072"),
        ("leader.replication.throttled.replicas", "*"),
        ("follower.replication.throttled.replicas", "0:1,1:2"),
    ],
)
def test_value_that_kafka_takes_is_taken(name: str, value: str) -> None:
    made = topic_settings(TopicSettings(), {name: value})
    if name not in UNUSED_TOPIC_SETTINGS:
        assert str(getattr(made, topic_setting_fields()[name].name)).lower() == value


@pytest.mark.parametrize(
    ("name", "value", "taken"),
    [
        ("cleanup.policy", "delete, compact", "delete,compact"),
        ("cleanup.policy", " compact\t", "compact"),
        ("cleanup.policy", " ", ""),
        ("cleanup.policy", ",".join(["delete", "compact"] * 3), "delete,compact"),
    ],
)
def test_items_of_a_list_are_trimmed_and_kept_once(name: str, value: str, taken: str) -> None:
    made = topic_settings(TopicSettings(), {name: value})
    assert getattr(made, topic_setting_fields()[name].name) == taken
    assert normalized({name: value}) == {name: taken}


def test_only_lists_are_normalized() -> None:
    name = "follower.replication.throttled.replicas"
    assert normalized({name: " 0:1 , 1:2 "}) == {name: "0:1,1:2"}
    assert normalized({"segment.bytes": " 4096", "no.such": "a, b"}) == {"segment.bytes": " 4096", "no.such": "a, b"}


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("unclean.leader.election.enable", "perhaps", "it takes true or false"),
        ("segment.jitter.ms", "-1", "it must be at least 0 ms"),
        ("flush.messages", "0", "it must be at least 1 records"),
        ("flush.ms", "soon", "it takes a whole number"),
        ("segment.index.bytes", "3", "it must be at least 4 bytes"),
        ("segment.index.bytes", str(1 << 31), "it must be at most 2147483647 bytes"),
        ("compression.gzip.level", "0", "it is one of -1, 1, 2"),
        ("compression.gzip.level", "10", "it is one of -1, 1, 2"),
        ("compression.lz4.level", "18", "it must be at most 17"),
        ("compression.zstd.level", "23", "it must be at most 22"),
        ("remote.storage.enable", "true", "it is one of false"),
        ("local.retention.ms", "1000", "it is one of -2"),
        ("local.retention.bytes", "-1", "it is one of -2"),
        ("cleanup.policy", "delete compact", "it is one of delete, compact"),
        ("cleanup.policy", "delete, ", "it is one of delete, compact"),
        ("cleanup.policy", ",", "it is one of delete, compact"),
        ("flush.ms", "9" * 400 + "x", "9...: it takes a whole number"),
        ("leader.replication.throttled.replicas", "0-1", "it takes * or partition:broker,..."),
        ("follower.replication.throttled.replicas", "0:1,*", "it takes * or partition:broker,..."),
    ],
)
def test_value_that_cannot_be_is_refused(name: str, value: str, says: str) -> None:
    with pytest.raises(SettingsError) as refused:
        topic_settings(TopicSettings(), {name: value})
    assert says in str(refused.value)


def test_settings_without_effect_change_nothing_and_are_not_in_the_tree() -> None:
    given = {"flush.messages": "1", "preallocate": "true", "segment.bytes": "4096"}
    assert topic_settings(TopicSettings(), given) == TopicSettings(segment_bytes=4096)
    with pytest.raises(SettingsError, match=r"unknown setting 'topics\.flush_messages'"):
        from_sources({"topics.flush_messages": 1})


def test_settings_without_effect_say_why() -> None:
    unused = [*UNUSED_TOPIC_SETTINGS.values(), *UNUSED_BROKER_SETTINGS.values()]
    assert all(declared.metadata["doc"].startswith("Without effect here, as ") for declared in unused)
    assert not any("ithout effect" in declared.metadata["doc"] for declared in fields(TopicSettings))
