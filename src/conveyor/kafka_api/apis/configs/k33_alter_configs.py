"""AlterConfigs (key 33): replace all settings of a resource; missing ones return to their defaults. v2 flexible."""

from typing import Any

from conveyor.cluster.topic_change import ConfigChange, Operation
from conveyor.kafka_api.apis.configs import config_entries
from conveyor.kafka_api.wire.call import KafkaCall


def handle(call: KafkaCall) -> None:
    call.start(config_entries.alter(call, _changes, replaces=True))


def _changes(resource: Any) -> list[ConfigChange]:
    return [ConfigChange(name=config.name, operation=Operation.SET, value=config.value) for config in resource.configs]
