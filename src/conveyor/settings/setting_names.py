"""The names of settings as clients see them: Kafka's names for settings that Kafka has.

A topic setting and the broker's default for it have different names, for example `retention.ms` and `log.retention.ms`.
"""

from collections.abc import Mapping
from dataclasses import Field, dataclass, field, fields
from functools import cache
from types import MappingProxyType
from typing import Any

from conveyor.settings.tree import (
    GroupsSettings,
    Settings,
    TopicSettings,
    topic_setting_fields,
    topic_setting_name,
)
from conveyor.settings.unused_settings import UNUSED_BROKER_SETTINGS, UNUSED_TOPIC_SETTINGS

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
"""Kafka's names of the broker's topic defaults, if they differ from the topic settings' names. Source:
ServerTopicConfigSynonyms.
"""

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
"""The settings that a group can override. The first two names are Kafka's, the last is Conveyor's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerSetting:
    """One setting of the settings tree, or one of Kafka's that has no effect here and no section.

    is_of_topics: a topic's setting, which has no effect on a broker. DescribeConfigs shows it only if it is set.
    """

    section: str = ""
    declared: "Field[Any]"
    is_of_topics: bool = False

    @property
    def path(self) -> str:
        """`section.name`, as in conveyor.toml. Only settings of the tree have one."""
        return f"{self.section}.{self.declared.name}"

    @property
    def is_used(self) -> bool:
        return bool(self.section)

    @property
    def is_live(self) -> bool:
        """True if the setting can change at run time. Every topic setting's broker default can."""
        return self.section == "topics" or not self.is_used or bool(self.declared.metadata["live"])

    def value(self, settings: Settings) -> Any:
        """Return the value in a settings tree; the default of a setting that is not used."""
        return getattr(getattr(settings, self.section), self.declared.name) if self.is_used else self.declared.default

    @property
    def is_of_cluster(self) -> bool:
        """True if the value belongs to the whole cluster; see `cluster_defaults`."""
        return self.is_used and bool(self.declared.metadata["of_cluster"])


@cache
def broker_settings() -> Mapping[str, BrokerSetting]:
    """Return every broker setting by the name that clients see: Kafka's name, or `section.name`."""
    settings_by_name = {name: BrokerSetting(declared=declared) for name, declared in UNUSED_BROKER_SETTINGS.items()}
    settings_by_name |= {
        name: BrokerSetting(declared=_without_effect(name, declared), is_of_topics=True)
        for name, declared in topic_setting_fields().items()
        if name in BROKER_NAMES
    }
    for section in fields(Settings):
        kind: Any = section.default_factory
        for declared in fields(kind):
            setting = BrokerSetting(section=section.name, declared=declared)
            is_of_topics = kind is TopicSettings
            name = topic_default_name(topic_setting_name(declared)) if is_of_topics else declared.metadata["kafka"]
            settings_by_name[name or setting.path] = setting
    settings_by_name |= {
        topic_default_name(name): BrokerSetting(declared=declared) for name, declared in UNUSED_TOPIC_SETTINGS.items()
    }
    return MappingProxyType(settings_by_name)


@cache
def cluster_settings() -> Mapping[str, BrokerSetting]:
    """Return the broker settings that belong to the whole cluster, by the name that clients see."""
    return MappingProxyType({name: setting for name, setting in broker_settings().items() if setting.is_of_cluster})


@cache
def group_settings() -> Mapping[str, BrokerSetting]:
    """Return the settings that a group can override, by the name that clients see, with the broker setting of each."""
    declared = {declared_field.name: declared_field for declared_field in fields(GroupsSettings)}
    return MappingProxyType(
        {name: BrokerSetting(section="groups", declared=declared[field]) for name, field in _GROUP_NAMES.items()}
    )


def topic_default_name(name: str) -> str:
    """Return the name of the broker's default for a topic's setting: Kafka's, if Kafka has such a default."""
    return name if name in _SAME_NAMES else BROKER_NAMES.get(name, f"topics.{name.replace('.', '_')}")


def _without_effect(name: str, declared: "Field[Any]") -> "Field[Any]":
    """Return a topic's setting with the documentation that it has for a broker."""
    doc = f"Without effect on a broker: topics inherit {BROKER_NAMES[name]}."
    described: Field[Any] = field(default=declared.default, metadata={**declared.metadata, "doc": doc})
    return described
