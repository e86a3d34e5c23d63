"""Decides what happens to a bundle when its leader cannot serve it: the log of one of its partitions has failed.

Only the leader knows of it, and asks for it. It leaves the ISR and the ELR, as its records may be lost, and
another replica with every committed record leads. It joins again as any other replica does, once its log can be opened.
If there is no such replica the leader stays: its log may still be the only copy.
"""

import msgspec

from conveyor.cluster.changes import Change
from conveyor.cluster.controller.alter_partition import IsrMember
from conveyor.cluster.controller.bundles import bundle_by_id
from conveyor.cluster.controller.image_draft import ImageDraft
from conveyor.cluster.controller.registrations import check_broker_epoch
from conveyor.cluster.image import ClusterImage
from conveyor.kernel.ids import TopicId
from conveyor.settings.tree import Settings


class FailedLeader(msgspec.Struct, frozen=True, kw_only=True):
    """The leader of a bundle, which is named by its owner, cannot serve it."""

    leader: IsrMember
    topic_id: TopicId
    partition: int


def replaced_leader(image: ClusterImage, request: FailedLeader, settings: Settings) -> list[Change]:
    """Elect another leader. No changes if this broker no longer leads, or no other replica can lead.

    Raises RequestError: BROKER_ID_NOT_REGISTERED, STALE_BROKER_EPOCH.
    """
    node = request.leader.node_id
    check_broker_epoch(image, node, request.leader.broker_epoch)
    bundle = bundle_by_id(image, request.topic_id, request.partition)
    if bundle is None:
        return []
    topic, partition = bundle
    draft = ImageDraft(image, settings)
    others = {*partition.isr, *partition.elr} - {node}
    if partition.leader != node or others.isdisjoint(draft.liveness.ready):
        return []
    draft.settle(topic, request.partition, lost=frozenset({node}))
    return draft.changes()
