"""Returns what a client may do, for handlers that show or decide it themselves."""

from conveyor.kafka_api.wire.call import KafkaCall
from conveyor.kernel.access.acl import CLUSTER_NAME, AclOperation, ResourceType
from conveyor.kernel.errors import ErrorKind, RequestError

NOT_ASKED = -(1 << 31)
"""In place of operations that the request does not ask for."""


def topic_operations(call: KafkaCall, name: str) -> int:
    """Return what the client may do with a topic, one bit for each operation (KIP-430)."""
    return call.broker.clients.access.operations(call.caller, ResourceType.TOPIC, name)


def group_operations(call: KafkaCall, name: str) -> int:
    """Return what the client may do with a group, as `topic_operations`."""
    return call.broker.clients.access.operations(call.caller, ResourceType.GROUP, name)


def cluster_operations(call: KafkaCall) -> int:
    """Return what the client may do with the cluster, as `topic_operations`: nothing if it may not describe it."""
    access = call.broker.clients.access
    if not access.allows(call.caller, AclOperation.DESCRIBE, ResourceType.CLUSTER, CLUSTER_NAME):
        return 0
    return access.operations(call.caller, ResourceType.CLUSTER, CLUSTER_NAME)


def may(call: KafkaCall, operation: AclOperation, topic: str) -> bool:
    """Return whether the client may do something with a topic, to choose what an answer shows."""
    return call.broker.clients.access.allows(call.caller, operation, ResourceType.TOPIC, topic)


def request_name(call: KafkaCall) -> str:
    """Return the name of the API for the audit, such as `Produce`."""
    return type(call.request).__name__.removesuffix("Request")


def permits(call: KafkaCall, operation: AclOperation, topic: str) -> bool:
    """Return whether the client may do with a topic what the request asks for."""
    access = call.broker.clients.access
    return access.permits(call.caller, request_name(call), operation, ResourceType.TOPIC, topic)


def topic_refused(topic: str) -> RequestError:
    """Return the error for a right on a topic that the client does not have. It does not say whether it exists."""
    return RequestError(ErrorKind.TOPIC_AUTHORIZATION_FAILED, f"no right to topic '{topic}'")


def check_may_create(call: KafkaCall, topic: str) -> None:
    """Raise RequestError if the client may neither create all topics nor this one."""
    access = call.broker.clients.access
    on_cluster = access.decide(call.caller, AclOperation.CREATE, ResourceType.CLUSTER, CLUSTER_NAME)
    if not on_cluster.is_allowed:
        if not permits(call, AclOperation.CREATE, topic):
            raise topic_refused(topic)
    elif access.audit is not None:
        create = AclOperation.CREATE, ResourceType.TOPIC, topic
        access.audit.note(call.caller, request_name(call), *create, on_cluster)
