"""DescribeConfigs (key 32). v1 synonyms and sources (KIP-226) · v3 types and documentation (KIP-569) · v4 flexible."""

from typing import Any

from conveyor.kafka_api.apis.configs import config_entries
from conveyor.kafka_api.wire.call import KafkaCall
from conveyor.kernel.errors import RequestError


def handle(call: KafkaCall) -> None:
    call.answer({"results": [_describe(call, resource) for resource in call.request.resources]})


def _describe(call: KafkaCall, resource: Any) -> dict[str, Any]:
    try:
        entries = config_entries.entries_of(call.broker, resource.resource_type, resource.resource_name)
    except RequestError as error:
        return config_entries.result(resource, error) | {"configs": ()}
    wanted = None if resource.configuration_keys is None else frozenset(resource.configuration_keys)
    chosen = [_entry(call, entry) for entry in entries if wanted is None or entry.name in wanted]
    return config_entries.result(resource, None) | {"configs": chosen}


def _entry(call: KafkaCall, entry: Any) -> dict[str, Any]:
    synonyms = [
        {"name": name, "value": value, "source": config_entries.SOURCES[source]}
        for name, value, source in entry.synonyms
    ]
    with_synonyms = getattr(call.request, "include_synonyms", False)
    with_documentation = getattr(call.request, "include_documentation", False)
    return config_entries.encoded(entry) | {
        "synonyms": synonyms if with_synonyms else (),
        "documentation": entry.doc if with_documentation else None,
    }
