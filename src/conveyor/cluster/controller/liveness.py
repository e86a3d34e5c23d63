"""Selects the brokers of an image that may serve partitions."""

from collections.abc import Mapping

import msgspec

from conveyor.cluster.image import BrokerImage
from conveyor.kernel.ids import NodeId


class Liveness(msgspec.Struct, frozen=True):
    """live: brokers that are not fenced. ready: those of them that are not stopping."""

    live: frozenset[NodeId]
    ready: frozenset[NodeId]


def liveness_of(brokers: Mapping[NodeId, BrokerImage]) -> Liveness:
    """Return the liveness of all brokers. A broker that is not in the image is not live."""
    live = [broker for broker in brokers.values() if not broker.is_fenced]
    ready = frozenset(broker.node_id for broker in live if not broker.is_stopping)
    return Liveness(frozenset(broker.node_id for broker in live), ready)
