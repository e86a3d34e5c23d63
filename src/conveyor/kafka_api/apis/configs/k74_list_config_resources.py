"""ListConfigResources (key 74): what has settings (KIP-1142). v0 only lists the resources of client metrics (KIP-1000),
of which there are none · v1 asks for types, none of them for all; groups are those that have settings of their own.
"""

from conveyor.kafka_api.apis import result_errors as errors
from conveyor.kafka_api.apis.configs import config_entries as configs
from conveyor.kafka_api.wire.call import Call
from conveyor.kernel.errors import ErrorKind, RequestError

_TYPES = 1
_SUPPORTED = (configs.GROUP, configs.CLIENT_METRICS, configs.BROKER_LOGGER, configs.BROKER, configs.TOPIC)


def handle(call: Call) -> None:
    wanted = call.request.resource_types or _SUPPORTED if call.api_version >= _TYPES else (configs.CLIENT_METRICS,)
    unknown = sorted(set(wanted) - set(_SUPPORTED))
    if unknown:
        error = RequestError(ErrorKind.UNSUPPORTED_VERSION, f"there are no resources of type {unknown[0]}")
        return call.answer({"error_code": errors.code(error), "config_resources": ()})
    found = [
        {"resource_name": name, "resource_type": kind}
        for kind in _SUPPORTED
        if kind in wanted
        for name in _names(call, kind)
    ]
    call.answer({"error_code": errors.NONE, "config_resources": found})


def _names(call: Call, resource_type: int) -> list[str]:
    image = call.broker.topics.image
    if resource_type == configs.GROUP:
        return sorted(call.broker.dynamic_settings.layers.of_groups)
    if resource_type in (configs.BROKER, configs.BROKER_LOGGER):
        return [str(node_id) for node_id in image.brokers]
    return sorted(image.topics) if resource_type == configs.TOPIC else []
