"""Settings as clients see them: of a topic, of this broker, of a group. What a topic sets is changed through `Topics`.

A setting has Kafka's name wherever Kafka has the setting. What a broker gives to topics that do not say has another
name than what a topic says: `log.retention.ms` and `retention.ms`.
"""

from collections.abc import Iterator
from dataclasses import Field, dataclass, fields
from enum import Enum, auto
from typing import Any

from conveyor.cluster.image import TopicImage
from conveyor.kernel.settings import GroupsSettings, Settings, TopicSettings, topic_setting_fields, topic_settings

BROKER_NAMES = {
    "cleanup.policy": "log.cleanup.policy",
    "delete.retention.ms": "log.cleaner.delete.retention.ms",
    "file.delete.delay.ms": "log.segment.delete.delay.ms",
    "flush.messages": "log.flush.interval.messages",
    "flush.ms": "log.flush.interval.ms",
    "index.interval.bytes": "log.index.interval.bytes",
    "local.retention.bytes": "log.local.retention.bytes",
    "local.retention.ms": "log.local.retention.ms",
    "max.compaction.lag.ms": "log.cleaner.max.compaction.lag.ms",
    "max.message.bytes": "message.max.bytes",
    "message.timestamp.after.max.ms": "log.message.timestamp.after.max.ms",
    "message.timestamp.before.max.ms": "log.message.timestamp.before.max.ms",
    "message.timestamp.type": "log.message.timestamp.type",
    "min.cleanable.dirty.ratio": "log.cleaner.min.cleanable.ratio",
    "min.compaction.lag.ms": "log.cleaner.min.compaction.lag.ms",
    "preallocate": "log.preallocate",
    "retention.bytes": "log.retention.bytes",
    "retention.ms": "log.retention.ms",
    "segment.bytes": "log.segment.bytes",
    "segment.index.bytes": "log.index.size.max.bytes",
    "segment.jitter.ms": "log.roll.jitter.ms",
    "segment.ms": "log.roll.ms",
}
"""Kafka's names of a broker's defaults for topics, where they differ. Source: ServerTopicConfigSynonyms."""

_SAME_NAMES = (
    "compression.gzip.level",
    "compression.lz4.level",
    "compression.type",
    "compression.zstd.level",
    "min.insync.replicas",
    "unclean.leader.election.enable",
)

_GROUP_SETTINGS = {
    "consumer.heartbeat.interval.ms": "consumer_heartbeat_interval_ms",
    "consumer.session.timeout.ms": "consumer_session_timeout_ms",
}
"""Kafka's names of what a group may have of its own; here each group has what the broker gives to all."""

_MINUTE_MS = 60_000


class ConfigSource(Enum):
    """Where a value comes from."""

    TOPIC = auto()
    BROKER = auto()
    DEFAULT = auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigEntry:
    """One setting and its value as text. `synonyms`: every value that was given, the one in force first."""

    name: str
    value: str
    source: ConfigSource
    kind: type
    several: bool
    doc: str
    read_only: bool
    synonyms: tuple[tuple[str, str, ConfigSource], ...]


def topic_configs(topic: TopicImage, settings: Settings) -> list[ConfigEntry]:
    """Every setting of a topic."""
    in_force = topic_settings(settings.topics, topic.config)
    return [
        _entry(name, each, getattr(in_force, each.name), list(_topic_synonyms(name, each, topic.config, settings)))
        for name, each in topic_setting_fields().items()
    ]


def broker_configs(settings: Settings) -> list[ConfigEntry]:
    """Every setting of this broker, by Kafka's name, else `section.name`. They are given at its start.

    And some that Kafka has as settings, which here are as they are.
    """
    given = [
        _entry(name, each, value, [(name, as_text(value), _broker_source(each, value))], read_only=True)
        for name, each, value in _broker_fields(settings)
    ]
    return given + _fixed_entries(settings)


def group_configs(settings: Settings) -> list[ConfigEntry]:
    """Every setting that a group may have in Kafka: it has the broker's."""
    declared = {each.name: each for each in fields(GroupsSettings)}
    entries = []
    for name, ours in _GROUP_SETTINGS.items():
        each, value = declared[ours], getattr(settings.groups, ours)
        synonym = (each.metadata["kafka"], as_text(value), _broker_source(each, value))
        entries.append(_entry(name, each, value, [synonym], read_only=True))
    return entries


def as_text(value: Any) -> str:
    """A setting's value as Kafka writes it."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _broker_fields(settings: Settings) -> "Iterator[tuple[str, Field[Any], Any]]":
    for section in fields(Settings):
        values = getattr(settings, section.name)
        for each in fields(values):
            name = _topic_default_name(each) if isinstance(values, TopicSettings) else each.metadata["kafka"]
            yield name or f"{section.name}.{each.name}", each, getattr(values, each.name)


def _topic_default_name(declared: "Field[Any]") -> str:
    """What the default of a topic's setting is called: Kafka's name, if Kafka has such a default."""
    name = declared.metadata["kafka"]
    return name if name in _SAME_NAMES else BROKER_NAMES.get(name, f"topics.{declared.name}")


def _fixed_entries(settings: Settings) -> list[ConfigEntry]:
    offsets_retention_ms = settings.groups.offsets_retention_ms
    return [
        _fixed("default.replication.factor", 1, "Replicas of a topic that does not say: there is one broker."),
        _fixed("offsets.topic.replication.factor", 1, "Replicas of the topic that holds committed offsets."),
        _fixed("delete.topic.enable", True, "Topics can be deleted."),
        _fixed(
            "offsets.retention.minutes",
            -(-offsets_retention_ms // _MINUTE_MS),
            "Committed offsets of an empty group are forgotten after this; groups.offsets_retention_ms says it in ms.",
        ),
    ]


def _fixed(name: str, value: bool | int, doc: str) -> ConfigEntry:
    source = ConfigSource.DEFAULT
    return ConfigEntry(
        name=name,
        value=as_text(value),
        source=source,
        kind=type(value),
        several=False,
        doc=doc,
        read_only=True,
        synonyms=((name, as_text(value), source),),
    )


def _topic_synonyms(
    name: str, declared: "Field[Any]", config: Any, settings: Settings
) -> Iterator[tuple[str, str, ConfigSource]]:
    if name in config:
        yield name, config[name], ConfigSource.TOPIC
    value = getattr(settings.topics, declared.name)
    default_name = _topic_default_name(declared)
    if _broker_source(declared, value) is ConfigSource.BROKER:
        yield default_name, as_text(value), ConfigSource.BROKER
    yield default_name, as_text(declared.default), ConfigSource.DEFAULT


def _broker_source(declared: "Field[Any]", value: Any) -> ConfigSource:
    return ConfigSource.DEFAULT if value == declared.default else ConfigSource.BROKER


def _entry(
    name: str,
    declared: "Field[Any]",
    value: Any,
    synonyms: list[tuple[str, str, ConfigSource]],
    *,
    read_only: bool = False,
) -> ConfigEntry:
    return ConfigEntry(
        name=name,
        value=as_text(value),
        source=synonyms[0][2],
        kind=type(declared.default),
        several=declared.metadata["several"],
        doc=declared.metadata["doc"],
        read_only=read_only,
        synonyms=tuple(synonyms),
    )
