"""Settings as clients see them: of a topic, of this broker, of a group, of a logger."""

from collections.abc import Mapping
from dataclasses import Field, dataclass
from enum import Enum, auto
from typing import Any

from conveyor.cluster.dynamic_config import LayeredSettings
from conveyor.settings.setting import as_text, parse
from conveyor.settings.setting_names import broker_settings, group_settings, topic_default_name
from conveyor.settings.tree import Settings, topic_setting_fields, topic_settings
from conveyor.settings.unused_settings import UNUSED_TOPIC_SETTINGS

_MINUTE_MS = 60_000


class ConfigSource(Enum):
    TOPIC = auto()
    BROKER_AT_RUN_TIME = auto()
    ALL_BROKERS_AT_RUN_TIME = auto()
    BROKER = auto()
    DEFAULT = auto()
    LOGGER = auto()
    GROUP = auto()


Synonym = tuple[str, str, ConfigSource]
"""Name, value as text, source."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigEntry:
    """One setting and its value as text. `synonyms`: all configured values, the effective one first.

    is_sensitive: clients may not see the value. It is empty here, and there are no synonyms.
    """

    name: str
    value: str
    source: ConfigSource
    kind: type
    is_list: bool
    doc: str
    read_only: bool
    synonyms: tuple[Synonym, ...]
    is_sensitive: bool = False


def topic_configs(config: Mapping[str, str], layers: LayeredSettings) -> list[ConfigEntry]:
    """Return every setting of a topic. config: those that were set for it."""
    in_force = topic_settings(layers.in_force.topics, config)
    entries = []
    for name, declared in topic_setting_fields().items():
        own = [(name, config[name], ConfigSource.TOPIC)] if name in config else []
        default_name = topic_default_name(name)
        inherited = _broker_synonyms(default_name, layers)
        built_in = (default_name, as_text(declared.default), ConfigSource.DEFAULT)
        synonyms = [*own, *inherited] if built_in in inherited else [*own, *inherited, built_in]
        if name in UNUSED_TOPIC_SETTINGS:
            value = parse(declared, synonyms[0][1], label=name)
        else:
            value = getattr(in_force, declared.name)
        entries.append(_entry(name, declared, value, synonyms))
    return entries


def broker_configs(layers: LayeredSettings) -> list[ConfigEntry]:
    """Return every setting of this broker, and some of Kafka's settings that are fixed here."""
    entries = []
    for name, setting in broker_settings().items():
        synonyms = _broker_synonyms(name, layers)
        _, text, source = synonyms[0]
        if setting.is_of_topics and source is ConfigSource.DEFAULT:
            continue
        value = setting.value(layers.in_force) if setting.is_used else text
        entries.append(_entry(name, setting.declared, value, synonyms, read_only=not setting.is_live))
    return entries + _fixed_entries(layers.in_force)


def all_brokers_configs(layers: LayeredSettings) -> list[ConfigEntry]:
    """Return only the settings that were changed at run time for all brokers, as in Kafka."""
    source = ConfigSource.ALL_BROKERS_AT_RUN_TIME
    return [
        _entry(name, broker_settings()[name].declared, text, [(name, text, source)])
        for name, text in layers.of_all.items()
    ]


def group_configs(group_id: str, layers: LayeredSettings) -> list[ConfigEntry]:
    """Return every setting that a group may override: the group's value, or else the broker's."""
    names = {setting.path: name for name, setting in broker_settings().items() if setting.is_used}
    own, in_force = layers.of_groups.get(group_id, {}), layers.group_settings.get(group_id, layers.in_force.groups)
    entries = []
    for name, setting in group_settings().items():
        given = [(name, own[name], ConfigSource.GROUP)] if name in own else []
        synonyms = [*given, *_broker_synonyms(names[setting.path], layers)]
        entries.append(_entry(name, setting.declared, getattr(in_force, setting.declared.name), synonyms))
    return entries


def logger_configs(levels: Mapping[str, str]) -> list[ConfigEntry]:
    source = ConfigSource.LOGGER
    return [
        ConfigEntry(
            name=name,
            value=level,
            source=source,
            kind=str,
            is_list=False,
            doc="The level of this logger, until the broker stops.",
            read_only=False,
            synonyms=((name, level, source),),
        )
        for name, level in levels.items()
    ]


def _fixed_entries(settings: Settings) -> list[ConfigEntry]:
    offsets_retention_ms = settings.groups.offsets_retention_ms
    return [
        _fixed("delete.topic.enable", True, "Topics can be deleted."),
        _fixed(
            "offsets.retention.minutes",
            -(-offsets_retention_ms // _MINUTE_MS),
            "Committed offsets of an empty group are deleted after this time; groups.offsets_retention_ms holds ms.",
        ),
    ]


def _fixed(name: str, value: bool | int, doc: str) -> ConfigEntry:
    source = ConfigSource.DEFAULT
    return ConfigEntry(
        name=name,
        value=as_text(value),
        source=source,
        kind=type(value),
        is_list=False,
        doc=doc,
        read_only=True,
        synonyms=((name, as_text(value), source),),
    )


def _broker_synonyms(name: str, layers: LayeredSettings) -> list[Synonym]:
    """Return all configured values of a setting, the effective one first; only the default if there are none."""
    setting = broker_settings()[name]
    at_run_time = [
        (name, texts[name], source)
        for texts, source in (
            (layers.of_broker, ConfigSource.BROKER_AT_RUN_TIME),
            (layers.of_all, ConfigSource.ALL_BROKERS_AT_RUN_TIME),
        )
        if name in texts
    ]
    value, default = setting.value(layers.given), setting.declared.default
    source = ConfigSource.DEFAULT if value == default else ConfigSource.BROKER
    return [*at_run_time, (name, as_text(value), source)]


def _entry(
    name: str,
    declared: "Field[Any]",
    value: Any,
    synonyms: list[Synonym],
    *,
    read_only: bool = False,
) -> ConfigEntry:
    is_sensitive = declared.metadata["is_secret"] and value != declared.default
    return ConfigEntry(
        name=name,
        value="" if is_sensitive else as_text(value),
        source=synonyms[0][2],
        kind=type(declared.default),
        is_list=declared.metadata["is_list"],
        doc=declared.metadata["doc"],
        read_only=read_only,
        synonyms=() if is_sensitive else tuple(synonyms),
        is_sensitive=is_sensitive,
    )
