"""Settings as clients see them: of a topic, and of this broker. What a topic sets is changed through `Topics`."""

from collections.abc import Iterator
from dataclasses import Field, dataclass, fields
from enum import Enum, auto
from typing import Any

from conveyor.cluster.image import TopicImage
from conveyor.kernel.settings import Settings, TopicSettings, topic_setting_fields, topic_settings


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
    """Every setting of this broker, by Kafka's name, else `section.name`. They are given at its start."""
    return [
        _entry(name, each, value, [(name, as_text(value), _broker_source(each, value))], read_only=True)
        for name, each, value in _broker_fields(settings)
    ]


def as_text(value: Any) -> str:
    """A setting's value as Kafka writes it."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _broker_fields(settings: Settings) -> "Iterator[tuple[str, Field[Any], Any]]":
    for section in fields(Settings):
        values = getattr(settings, section.name)
        for each in fields(values):
            ours = f"{section.name}.{each.name}"
            is_topic_default = isinstance(values, TopicSettings)
            yield (ours if is_topic_default else each.metadata["kafka"] or ours), each, getattr(values, each.name)


def _topic_synonyms(
    name: str, declared: "Field[Any]", config: Any, settings: Settings
) -> Iterator[tuple[str, str, ConfigSource]]:
    if name in config:
        yield name, config[name], ConfigSource.TOPIC
    value = getattr(settings.topics, declared.name)
    if _broker_source(declared, value) is ConfigSource.BROKER:
        yield f"topics.{declared.name}", as_text(value), ConfigSource.BROKER
    yield f"topics.{declared.name}", as_text(declared.default), ConfigSource.DEFAULT


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
