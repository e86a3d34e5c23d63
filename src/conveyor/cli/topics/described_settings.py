"""A topic's settings as the broker describes them."""

from dataclasses import dataclass
from typing import Any

from conveyor.cli.terminal.kafka_client import answer, request_timeout


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicSetting:
    """source: where the value was set: topic, broker or default."""

    value: str
    source: str


def topic_settings(admin: Any, topic: str) -> dict[str, TopicSetting]:
    """All settings by name, sorted. Raises ClientError."""
    from confluent_kafka.admin import ConfigResource

    resource = ConfigResource(ConfigResource.Type.TOPIC, topic)
    entries = answer(admin.describe_configs([resource], **request_timeout())[resource])
    return {
        name: TopicSetting(value=entry.value or "", source=_source(entry.source))
        for name, entry in sorted(entries.items())
    }


def _source(code: int) -> str:
    from confluent_kafka.admin import ConfigSource

    sources = {ConfigSource.DYNAMIC_TOPIC_CONFIG.value: "topic", ConfigSource.DEFAULT_CONFIG.value: "default"}
    return sources.get(code, "broker")
