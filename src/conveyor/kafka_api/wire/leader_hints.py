"""Tagged fields in Produce and Fetch responses that name the leader of a partition. Source: KIP-951.

A client that receives NOT_LEADER, or FENCED_LEADER_EPOCH from Fetch, can retry at the leader without requesting
metadata first. Kafka's brokers add the fields to Produce from version 10 on, to Fetch from version 16 on.

    in a partition   CurrentLeader   leader id int32, leader epoch int32
    in the response  NodeEndpoints   for each leader: node id int32, host, port int32, rack
"""

from collections.abc import Mapping, Sequence
from itertools import starmap
from struct import Struct

from conveyor.cluster.image import BrokerEndpoint, BrokerImage
from conveyor.kafka_api.wire.packing import array_length, nullable_string, string, unsigned_varint
from conveyor.kernel.errors import LeaderMoved, RequestError
from conveyor.kernel.ids import NodeId

NO_TAGS = b"\0"
_ENDPOINTS_TAG = 0
_NO_LEADER = -1
_CURRENT_LEADER = Struct(">iib")
_NODE_ID = Struct(">i")
_PORT = Struct(">i")


ClientView = tuple[Mapping[NodeId, BrokerImage], str]
"""The brokers, and the name of the listener by which the client reaches each of them."""


def partition_tags(error: RequestError | None, tag: int) -> bytes:
    """Return the tagged fields of one partition: the leader, if the error carries it."""
    if not isinstance(error, LeaderMoved):
        return NO_TAGS
    leader = _NO_LEADER if error.leader is None else error.leader
    return _one_field(tag, _CURRENT_LEADER.pack(leader, error.leader_epoch, 0))


def response_tags(errors: Sequence[RequestError | None], view: ClientView | None) -> bytes:
    """Return the tagged fields of a response: the endpoints of the leaders that its partitions name."""
    if view is None or not any(errors):
        return NO_TAGS
    leaders = {error.leader for error in errors if isinstance(error, LeaderMoved) and error.leader is not None}
    brokers, listener = view
    known = [brokers[leader] for leader in sorted(leaders) if leader in brokers]
    reachable = [(broker, endpoint) for broker in known if (endpoint := broker.endpoint(listener)) is not None]
    if not reachable:
        return NO_TAGS
    return _one_field(_ENDPOINTS_TAG, array_length(len(reachable), True) + b"".join(starmap(_packed, reachable)))


def _packed(broker: BrokerImage, endpoint: BrokerEndpoint) -> bytes:
    host, rack = string(endpoint.host, True), nullable_string(broker.rack, True)
    return _NODE_ID.pack(broker.node_id) + host + _PORT.pack(endpoint.port) + rack + NO_TAGS


def _one_field(tag: int, content: bytes) -> bytes:
    return unsigned_varint(1) + unsigned_varint(tag) + unsigned_varint(len(content)) + content
