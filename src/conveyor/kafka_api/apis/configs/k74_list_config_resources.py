"""ListConfigResources (key 74): the resources that have settings (KIP-1142).

v0 lists only client metrics resources (KIP-1000), of which there are none · v1 resource types; an empty list requests
all types. Only groups with settings of their own are listed.
"""

from conveyor.kafka_api.apis import result_errors
from conveyor.kafka_api.apis.configs import config_entries
from conveyor.kafka_api.wire.call import KafkaCall
from conveyor.kernel.errors import ErrorKind, RequestError

_TYPES = 1
_SUPPORTED = (
    config_entries.GROUP,
    config_entries.CLIENT_METRICS,
    config_entries.BROKER_LOGGER,
    config_entries.BROKER,
    config_entries.TOPIC,
)


def handle(call: KafkaCall) -> None:
    wanted = (
        call.request.resource_types or _SUPPORTED
        if call.header.api_version >= _TYPES
        else (config_entries.CLIENT_METRICS,)
    )
    unknown = sorted(set(wanted) - set(_SUPPORTED))
    if unknown:
        error = RequestError(ErrorKind.UNSUPPORTED_VERSION, f"there are no resources of type {unknown[0]}")
        return call.answer({"error_code": result_errors.code(error), "config_resources": ()})
    resources = [
        {"resource_name": name, "resource_type": kind}
        for kind in _SUPPORTED
        if kind in wanted
        for name in _names(call, kind)
    ]
    call.answer({"error_code": result_errors.NONE, "config_resources": resources}, len(resources))


def _names(call: KafkaCall, resource_type: int) -> list[str]:
    image = call.broker.metadata.image
    if resource_type == config_entries.GROUP:
        return sorted(call.broker.cluster.dynamic_settings.layers.of_groups)
    if resource_type in (config_entries.BROKER, config_entries.BROKER_LOGGER):
        return [str(node_id) for node_id in image.brokers]
    return sorted(image.topics) if resource_type == config_entries.TOPIC else []
