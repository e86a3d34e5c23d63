"""The names of settings as clients see them: Kafka's, wherever Kafka has the setting.

What a broker gives to topics that do not say has another name than what a topic says: `log.retention.ms` and
`retention.ms`.
"""

from collections.abc import Mapping
from dataclasses import Field, dataclass, fields
from functools import cache
from types import MappingProxyType
from typing import Any

from conveyor.settings.tree import GroupsSettings, Settings, TopicSettings

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

_GROUP_NAMES = {
    "consumer.heartbeat.interval.ms": "consumer_heartbeat_interval_ms",
    "consumer.session.timeout.ms": "consumer_session_timeout_ms",
    "offsets.retention.ms": "offsets_retention_ms",
}
"""What a group may have of its own: the first two by Kafka's names, the last is Conveyor's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerSetting:
    """One setting of the tree. `path`: `section.name`, as in conveyor.toml."""

    section: str
    declared: "Field[Any]"

    @property
    def path(self) -> str:
        return f"{self.section}.{self.declared.name}"

    @property
    def is_live(self) -> bool:
        """Whether a change at run time takes effect. What each topic can change for itself, a broker can for all."""
        return self.section == "topics" or bool(self.declared.metadata["live"])


@cache
def broker_settings() -> Mapping[str, BrokerSetting]:
    """Every setting of a broker by the name that clients see: Kafka's, else `section.name`."""
    found = {}
    for section in fields(Settings):
        kind: Any = section.default_factory
        for declared in fields(kind):
            setting = BrokerSetting(section=section.name, declared=declared)
            name = topic_default_name(declared) if kind is TopicSettings else declared.metadata["kafka"]
            found[name or setting.path] = setting
    return MappingProxyType(found)


@cache
def group_settings() -> Mapping[str, BrokerSetting]:
    """What a group may have of its own, by the name that clients see; the broker's setting is for all other groups."""
    declared = {each.name: each for each in fields(GroupsSettings)}
    return MappingProxyType(
        {name: BrokerSetting(section="groups", declared=declared[field]) for name, field in _GROUP_NAMES.items()}
    )


def topic_default_name(declared: "Field[Any]") -> str:
    """The name of the broker's default for a topic's setting: Kafka's, if Kafka has such a default."""
    name = declared.metadata["kafka"]
    return name if name in _SAME_NAMES else BROKER_NAMES.get(name, f"topics.{declared.name}")
