"""Decides that the log of a follower may begin again, because it is damaged: the leader has all that was committed.

The follower asks for it, with its log offline. It leaves the ISR and the ELR of the bundle, and a new leader epoch
begins. What the follower has reported in earlier epochs, when it had its records, no longer counts: otherwise its
leader could still ask for its join, which would be granted to an empty log.

    the follower leads, or none does                    no: its log may be the only copy; see `failed_leaders`
    the leader is not live                              no
    else                                                yes: the leader is in the ISR, so the follower is not the last

What a broker finds when it starts, it says with its registration; see `registrations`.
"""

import msgspec

from conveyor.cluster.changes import Change
from conveyor.cluster.controller.alter_partition import IsrMember
from conveyor.cluster.controller.bundles import bundle_by_id
from conveyor.cluster.controller.image_draft import ImageDraft
from conveyor.cluster.controller.registrations import check_broker_epoch
from conveyor.cluster.image import ClusterImage, PartitionImage
from conveyor.kernel.ids import NodeId, TopicId
from conveyor.settings.tree import Settings


class DamagedReplica(msgspec.Struct, frozen=True, kw_only=True):
    """Asks to withdraw a replica whose log is damaged. topic_id, partition: of the owner of its bundle."""

    replica: IsrMember
    topic_id: TopicId
    partition: int


def withdrawn_replica(image: ClusterImage, request: DamagedReplica, settings: Settings) -> list[Change]:
    """Let a replica begin again. No changes if it must not.

    Raises RequestError: BROKER_ID_NOT_REGISTERED, STALE_BROKER_EPOCH.
    """
    node = request.replica.node_id
    check_broker_epoch(image, node, request.replica.broker_epoch)
    bundle = bundle_by_id(image, request.topic_id, request.partition)
    if bundle is None:
        return []
    topic, partition = bundle
    draft = ImageDraft(image, settings)
    if node not in partition.replicas or partition.leader not in draft.liveness.live - {node}:
        return []
    draft.settle(topic, request.partition, lost=frozenset({node}), begins_epoch=True)
    return draft.changes()


def is_withdrawn(partition: PartitionImage, node: NodeId) -> bool:
    """Return whether another broker leads, and this one is not expected to have any record."""
    return partition.leader >= 0 and partition.leader != node and node not in (*partition.isr, *partition.elr)
