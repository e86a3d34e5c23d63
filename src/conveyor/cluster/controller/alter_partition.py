"""Decides on a leader's change of an ISR (AlterPartition, KIP-497). It also completes reassignments.

The checks, in order; the first that fails is the answer:

    STALE_BROKER_EPOCH        the sender's registration has ended
    UNKNOWN_TOPIC_ID          the topic was deleted
    UNKNOWN_TOPIC             the topic has no such partition
    NOT_CONTROLLER            the sender has seen a newer leader epoch than this image: it asks a former controller
    FENCED_LEADER_EPOCH       the sender has missed a newer leader epoch
    INVALID_REQUEST           the sender is not the leader; or the ISR lacks it, repeats a replica, or has a stranger
    (no changes)              the ISR is the wanted one: the same request, sent again (KAFKA-14144)
    NOT_CONTROLLER            the sender has seen a newer partition epoch than this image
    INVALID_UPDATE_VERSION    the partition has changed since the sender decided
    INELIGIBLE_REPLICA        a new member is fenced or stopping (KIP-841), or has registered again (KIP-903)

A member that stays is not checked for stopping: the last member of an ISR may be a stopping leader, which leaves it as
soon as another one joins.
"""

import msgspec
from msgspec.structs import replace

from conveyor.cluster.changes import Change
from conveyor.cluster.controller.bundles import bundle_changes
from conveyor.cluster.controller.image_draft import ImageDraft
from conveyor.cluster.controller.registrations import check_broker_epoch
from conveyor.cluster.image import ClusterImage, PartitionImage, TopicImage
from conveyor.kernel.errors import ErrorKind, RequestError
from conveyor.kernel.ids import LeaderEpoch, NodeId, TopicId
from conveyor.settings.tree import Settings


class IsrMember(msgspec.Struct, frozen=True):
    """A wanted member of the ISR, and the broker epoch in which it has caught up."""

    node_id: NodeId
    broker_epoch: int


class AlterPartition(msgspec.Struct, frozen=True, kw_only=True):
    """A leader's request. The epochs are those of the image by which it has decided; isr includes the leader."""

    leader: IsrMember
    topic_id: TopicId
    partition: int
    leader_epoch: LeaderEpoch
    partition_epoch: int
    isr: tuple[IsrMember, ...]


def altered_partition(image: ClusterImage, request: AlterPartition, settings: Settings) -> list[Change]:
    """Change the ISR. Raises RequestError: see the module's docstring; BROKER_ID_NOT_REGISTERED."""
    check_broker_epoch(image, request.leader.node_id, request.leader.broker_epoch)
    topic, partition = _partition(image, request)
    _check_leader(request, partition)
    _check_members(request, partition)
    wanted = {member.node_id for member in request.isr}
    if wanted == set(partition.isr):
        return []
    _check_partition_epoch(request, partition)
    for member in request.isr:
        _check_eligible(image, partition, member)
    draft = ImageDraft(image, settings)
    isr = tuple(node for node in partition.replicas if node in wanted)
    draft.settle(topic, request.partition, replace(partition, isr=isr))
    return draft.changes()


def withdrawn_joins(image: ClusterImage, request: AlterPartition) -> list[Change]:
    """Raise the partition epoch, so that no request in the present one can be granted any more.

    For a leader that does not know the outcome of a request. Raises RequestError: as `altered_partition`.
    """
    check_broker_epoch(image, request.leader.node_id, request.leader.broker_epoch)
    topic, partition = _partition(image, request)
    _check_leader(request, partition)
    _check_partition_epoch(request, partition)
    return list(bundle_changes(image, topic, request.partition, partition))


def _partition(image: ClusterImage, request: AlterPartition) -> tuple[TopicImage, PartitionImage]:
    topic = image.topic_by_id(request.topic_id)
    if topic is None:
        raise RequestError(ErrorKind.UNKNOWN_TOPIC_ID, f"there is no topic with the id {request.topic_id}")
    if not 0 <= request.partition < len(topic.partitions):
        raise RequestError(ErrorKind.UNKNOWN_TOPIC, f"topic '{topic.name}' has no partition {request.partition}")
    return topic, topic.partitions[request.partition]


def _check_leader(request: AlterPartition, partition: PartitionImage) -> None:
    if request.leader_epoch > partition.leader_epoch:
        raise RequestError(ErrorKind.NOT_CONTROLLER, f"leader epoch {request.leader_epoch} is not known here yet")
    if request.leader_epoch < partition.leader_epoch:
        raise RequestError(
            ErrorKind.FENCED_LEADER_EPOCH,
            f"leader epoch {request.leader_epoch} has ended, the current one is {partition.leader_epoch}",
        )
    if request.leader.node_id != partition.leader:
        raise RequestError(
            ErrorKind.INVALID_REQUEST,
            f"broker {request.leader.node_id} does not lead, the leader is {partition.leader}",
        )


def _check_members(request: AlterPartition, partition: PartitionImage) -> None:
    members = [member.node_id for member in request.isr]
    is_sound = len(set(members)) == len(members) and set(members) <= set(partition.replicas)
    if not is_sound or partition.leader not in members:
        raise RequestError(
            ErrorKind.INVALID_REQUEST,
            f"the ISR {members} must have the leader {partition.leader} and others of {list(partition.replicas)}",
        )


def _check_partition_epoch(request: AlterPartition, partition: PartitionImage) -> None:
    if request.partition_epoch > partition.partition_epoch:
        raise RequestError(ErrorKind.NOT_CONTROLLER, f"partition epoch {request.partition_epoch} is not known here yet")
    if request.partition_epoch < partition.partition_epoch:
        raise RequestError(
            ErrorKind.INVALID_UPDATE_VERSION,
            f"partition epoch {request.partition_epoch} has ended, the current one is {partition.partition_epoch}",
        )


def _check_eligible(image: ClusterImage, partition: PartitionImage, member: IsrMember) -> None:
    broker = image.brokers.get(member.node_id)
    reason = None
    if broker is None or broker.is_fenced:
        reason = "is fenced"
    elif broker.broker_epoch != member.broker_epoch:
        reason = "has registered again"
    elif broker.is_stopping and member.node_id not in partition.isr:
        reason = "is stopping"
    if reason is not None:
        raise RequestError(ErrorKind.INELIGIBLE_REPLICA, f"broker {member.node_id} {reason}")
