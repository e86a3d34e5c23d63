"""DescribeConfigs (key 32). v1 synonyms and sources (KIP-226) · v3 types and documentation (KIP-569) · v4 flexible."""

from typing import Any

from conveyor.kafka_api.apis.configs import config_entries as configs
from conveyor.kafka_api.wire.call import Call
from conveyor.kernel.errors import RequestError


def handle(call: Call) -> None:
    call.answer({"results": [_describe(call, each) for each in call.request.resources]})


def _describe(call: Call, resource: Any) -> dict[str, Any]:
    try:
        entries = configs.entries_of(call.broker, resource.resource_type, resource.resource_name)
    except RequestError as error:
        return configs.result(resource, error) | {"configs": ()}
    wanted = resource.configuration_keys
    chosen = [_entry(call, each) for each in entries if wanted is None or each.name in wanted]
    return configs.result(resource, None) | {"configs": chosen}


def _entry(call: Call, entry: Any) -> dict[str, Any]:
    synonyms = [
        {"name": name, "value": value, "source": configs.SOURCES[source]} for name, value, source in entry.synonyms
    ]
    with_synonyms = getattr(call.request, "include_synonyms", False)
    with_documentation = getattr(call.request, "include_documentation", False)
    return configs.encoded(entry) | {
        "synonyms": synonyms if with_synonyms else (),
        "documentation": entry.doc if with_documentation else None,
    }
