"""FindCoordinator (key 10): the broker that coordinates a group. v1 key type · v3 flexible · v4 several keys at once.

Key type 1 (transactions) is not supported: the error, the same as that of InitProducerId, makes clients give up at
once. Key type 2 (share groups) is answered with INVALID_REQUEST.
"""

from typing import Any

from conveyor.kafka_api.apis import result_errors
from conveyor.kafka_api.wire.call import KafkaCall
from conveyor.kernel.errors import ErrorKind, RequestError

_BATCHED = 4
_GROUP, _TRANSACTION = 0, 1


def handle(call: KafkaCall) -> None:
    call.start(_find(call))


async def _find(call: KafkaCall) -> None:
    keys = call.request.coordinator_keys if call.api_version >= _BATCHED else [call.request.key]
    coordinators = [await _coordinator(call, key) for key in keys]
    call.answer({"coordinators": coordinators} if call.api_version >= _BATCHED else coordinators[0])


async def _coordinator(call: KafkaCall, key: str) -> dict[str, Any]:
    try:
        _check(getattr(call.request, "key_type", _GROUP))
        broker = await call.broker.groups.find_coordinator(key)
    except RequestError as error:
        failed = {"node_id": -1, "host": "", "port": -1, "error_message": error.message}
        return failed | {"key": key, "error_code": result_errors.code(error)}
    coordinator = {"node_id": broker.node_id, "host": broker.host, "port": broker.port, "error_message": None}
    return coordinator | {"key": key, "error_code": result_errors.NONE}


def _check(key_type: int) -> None:
    if key_type == _TRANSACTION:
        raise RequestError(ErrorKind.TRANSACTIONS_UNSUPPORTED, "transactions are not offered by this broker yet")
    if key_type != _GROUP:
        raise RequestError(
            ErrorKind.INVALID_REQUEST, f"coordinators of type {key_type} are not offered: only consumer groups (0)"
        )
