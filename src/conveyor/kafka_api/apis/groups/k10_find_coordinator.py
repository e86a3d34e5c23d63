"""FindCoordinator (key 10): the broker that coordinates a group or a transactional id. v1 key type · v3 flexible ·
v4 several keys at once.

Key type 2 (share groups) is answered with INVALID_REQUEST.
"""

from typing import Any

from conveyor.cluster.image import BrokerEndpoint, BrokerImage
from conveyor.kafka_api.apis import result_errors
from conveyor.kafka_api.wire.call import KafkaCall
from conveyor.kernel.errors import ErrorKind, RequestError

_BATCHED = 4
_GROUP, _TRANSACTION = 0, 1


def handle(call: KafkaCall) -> None:
    call.start(_find(call))


async def _find(call: KafkaCall) -> None:
    keys = call.request.coordinator_keys if call.header.api_version >= _BATCHED else [call.request.key]
    coordinators = [await _coordinator(call, key) for key in keys]
    call.answer({"coordinators": coordinators} if call.header.api_version >= _BATCHED else coordinators[0])


async def _coordinator(call: KafkaCall, key: str) -> dict[str, Any]:
    try:
        broker = await _broker(call, getattr(call.request, "key_type", _GROUP), key)
        endpoint = _endpoint(broker, call.caller.listener)
    except RequestError as error:
        failed = {"node_id": -1, "host": "", "port": -1, "error_message": error.message}
        return failed | {"key": key, "error_code": result_errors.code(error)}
    coordinator = {"node_id": broker.node_id, "host": endpoint.host, "port": endpoint.port, "error_message": None}
    return coordinator | {"key": key, "error_code": result_errors.NONE}


def _endpoint(broker: BrokerImage, listener: str) -> BrokerEndpoint:
    endpoint = broker.endpoint(listener)
    if endpoint is None:
        missing = f"broker {broker.node_id}, the coordinator, has no listener {listener}"
        raise RequestError(ErrorKind.COORDINATOR_NOT_AVAILABLE, missing)
    return endpoint


async def _broker(call: KafkaCall, key_type: int, key: str) -> BrokerImage:
    if key_type == _GROUP:
        return await call.broker.coordinators.groups.find_coordinator(call.caller, key)
    if key_type == _TRANSACTION:
        return await call.broker.coordinators.transactions.find_coordinator(call.caller, key)
    raise RequestError(
        ErrorKind.INVALID_REQUEST,
        f"coordinators of type {key_type} are not offered: only those of consumer groups (0) and transactions (1)",
    )
