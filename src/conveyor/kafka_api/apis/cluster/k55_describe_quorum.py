"""DescribeQuorum (key 55): who writes the metadata log, and how far it is (KIP-595).

v1 when replicas were caught up (KIP-836) · v2 messages of errors, and the addresses of voters (KIP-853).

The metadata log is in ZooKeeper or on the broker's disk, not on a quorum of controllers. The answer is what the broker
has observed: the controller, the only one who writes the log, as the leader and the only voter, with the epoch of its
election. The broker itself is an observer. The numbers of the log's entries are the offsets. Other brokers are left
out, because their progress is not known.
"""

from typing import Any

from conveyor.broker.metadata.metadata import Metadata
from conveyor.kafka_api.apis import result_errors
from conveyor.kafka_api.wire.call import KafkaCall
from conveyor.kernel.errors import ErrorKind, RequestError

_METADATA_TOPIC = "__cluster_metadata"
_UNKNOWN: dict[str, Any] = {
    "leader_id": -1, "leader_epoch": -1, "high_watermark": -1, "current_voters": (), "observers": (),
}  # fmt: skip
_LISTENER = "PLAINTEXT"


def handle(call: KafkaCall) -> None:
    topics = [
        {
            "topic_name": topic.topic_name,
            "partitions": [
                _partition(call, topic.topic_name, partition.partition_index) for partition in topic.partitions
            ],
        }
        for topic in call.request.topics
    ]
    call.answer(result_errors.fields(None) | {"topics": topics, "nodes": _nodes(call.broker.metadata)})


def _partition(call: KafkaCall, topic: str, number: int) -> dict[str, Any]:
    try:
        state, error = _state(call, topic, number), None
    except RequestError as failure:
        state, error = _UNKNOWN, failure.detached()
    return {"partition_index": number, **result_errors.fields(error), **state}


def _state(call: KafkaCall, topic: str, number: int) -> dict[str, Any]:
    """Return the state of the metadata log. Raises RequestError for any other partition, or without a controller."""
    if (topic, number) != (_METADATA_TOPIC, 0):
        raise RequestError(ErrorKind.UNKNOWN_TOPIC, f"this describes only {_METADATA_TOPIC}-0")
    metadata, own_id = call.broker.metadata, call.broker.settings.broker.node_id
    controller, end_offset = metadata.elected, metadata.image.seq
    if controller is None:
        raise RequestError(ErrorKind.METADATA_UNAVAILABLE, "this broker has not observed a controller yet")
    now_ms = call.broker.clock.now_ms()
    leader = {
        "replica_id": controller.node_id, "log_end_offset": end_offset, "replica_directory_id": None,
        "last_fetch_timestamp": now_ms, "last_caught_up_timestamp": now_ms,
    }  # fmt: skip
    is_leader = controller.node_id == own_id
    return {
        "leader_id": controller.node_id,
        "leader_epoch": controller.epoch,
        "high_watermark": end_offset,
        "current_voters": [leader],
        "observers": [] if is_leader else [leader | {"replica_id": own_id}],
    }


def _nodes(metadata: Metadata) -> list[dict[str, Any]]:
    broker = None if metadata.elected is None else metadata.image.brokers.get(metadata.elected.node_id)
    if broker is None:
        return []
    listener = {"name": _LISTENER, "host": broker.host, "port": broker.port}
    return [{"node_id": broker.node_id, "listeners": [listener]}]
