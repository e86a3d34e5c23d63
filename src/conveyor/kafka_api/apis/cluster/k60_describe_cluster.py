"""DescribeCluster (key 60): the cluster's id, its controller and its brokers (KIP-700).

v1 endpoint types (KIP-919): only brokers, because there are no separate controllers · v2 fenced brokers (KIP-1073), if
the request asks for them.
"""

from conveyor.kafka_api.access.operations import NOT_ASKED, cluster_operations
from conveyor.kafka_api.apis import result_errors
from conveyor.kafka_api.wire.call import KafkaCall
from conveyor.kernel.errors import ErrorKind, RequestError

_BROKERS, _CONTROLLERS = 1, 2


def handle(call: KafkaCall) -> None:
    endpoint_type = getattr(call.request, "endpoint_type", _BROKERS)
    if endpoint_type != _BROKERS:
        return _refuse(call, endpoint_type)
    image = call.broker.metadata.image
    with_fenced = getattr(call.request, "include_fenced_brokers", False)
    brokers = [
        {
            "broker_id": node.node_id,
            "host": endpoint.host,
            "port": endpoint.port,
            "rack": node.rack,
            "is_fenced": node.is_fenced,
        }
        for node in (image.brokers.values() if with_fenced else image.live_brokers)
        if (endpoint := node.endpoint(call.caller.listener)) is not None
    ]
    requested = call.request.include_cluster_authorized_operations
    call.answer(
        {
            "error_code": result_errors.NONE,
            "cluster_id": image.cluster_id,
            "controller_id": call.broker.metadata.controller_id,
            "brokers": brokers,
            "cluster_authorized_operations": cluster_operations(call) if requested else NOT_ASKED,
        }
    )


def _refuse(call: KafkaCall, endpoint_type: int) -> None:
    asks_for_controllers = endpoint_type == _CONTROLLERS
    kind = ErrorKind.MISMATCHED_ENDPOINT_TYPE if asks_for_controllers else ErrorKind.UNSUPPORTED_ENDPOINT_TYPE
    error = RequestError(kind, f"endpoint type {endpoint_type} is not supported: use {_BROKERS} (brokers)")
    call.answer(
        {"error_code": result_errors.code(error), "error_message": error.message, "cluster_id": "", "brokers": []}
    )
