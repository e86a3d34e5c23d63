"""Decides on reassignments: other replicas for a bundle (KIP-455).

    start       origin = the replicas; target = the request's; replicas = the target, then the rest of the origin
    again       a reassignment in progress gets another target; the origin stays, other additions are dropped
    complete    all targets are in the ISR; see `partition_transition`. A target within the ISR completes at once
    cancel      the origin becomes the replicas again, in its order

The replicas that a cancelled or repeated reassignment drops may hold the last in-sync copy: such a request is refused.
"""

import msgspec
from msgspec.structs import replace

from conveyor.cluster.changes import Change
from conveyor.cluster.controller.bundles import existing_bundle, owners
from conveyor.cluster.controller.image_draft import ImageDraft
from conveyor.cluster.image import ClusterImage, PartitionImage
from conveyor.cluster.placement import Placement, check_no_gateway
from conveyor.kernel.errors import ErrorKind, RequestError
from conveyor.kernel.ids import NodeId
from conveyor.settings.tree import Settings


class Reassignment(msgspec.Struct, frozen=True, kw_only=True):
    """The wanted replicas of a bundle, the preferred leader first. None cancels the reassignment in progress.

    keeps_factor: the number of replicas must not change (KIP-860).
    """

    topic: str
    partition: int
    target: tuple[NodeId, ...] | None
    keeps_factor: bool = False


def reassigned(image: ClusterImage, request: Reassignment, settings: Settings) -> list[Change]:
    """Start, change or cancel a reassignment.

    Raises RequestError: UNKNOWN_TOPIC; INVALID_TOPIC for a companion; INVALID_REPLICA_ASSIGNMENT;
    INVALID_REPLICATION_FACTOR; NO_REASSIGNMENT_IN_PROGRESS.
    """
    topic, partition = existing_bundle(image, request.topic, request.partition)
    if request.target is None:
        wanted = _cancelled(partition)
    else:
        _check_target(image, partition, request.target)
        if request.keeps_factor:
            _check_factor(partition, request.target)
        wanted = _started(partition, request.target)
    if not wanted.isr:
        raise RequestError(
            ErrorKind.INVALID_REPLICA_ASSIGNMENT,
            f"{request.topic}-{request.partition}: only {list(partition.isr)} are in sync, and all would be dropped",
        )
    draft = ImageDraft(image, settings)
    draft.settle(topic, request.partition, wanted)
    return draft.changes()


def drain_plan(image: ClusterImage, node_id: NodeId) -> list[Reassignment]:
    """Return the reassignments that empty a broker, each with the substitute that `placement` chooses.

    The plan is as long as the broker holds bundles; each reassignment is a decision of its own.
    Raises RequestError (INVALID_REPLICATION_FACTOR) if too few other brokers are live.
    """
    placement = Placement(image)
    return [
        Reassignment(topic=topic, partition=number, target=placement.substitute(replicas, node_id))
        for topic, number, replicas in _held(image, node_id)
    ]


def _held(image: ClusterImage, node_id: NodeId) -> list[tuple[str, int, tuple[NodeId, ...]]]:
    return [
        (topic.name, number, replicas)
        for topic in owners(image)
        for number, partition in enumerate(topic.partitions)
        if node_id in (replicas := partition.target or partition.replicas)
    ]


def _started(partition: PartitionImage, target: tuple[NodeId, ...]) -> PartitionImage:
    """Return the partition with this target; as it is if it has the target already."""
    if target == (partition.target or partition.replicas):
        return partition
    origin = partition.origin or partition.replicas
    replicas = (*target, *(node for node in origin if node not in target))
    return _with_replicas(partition, replicas, origin=origin, target=target)


def _cancelled(partition: PartitionImage) -> PartitionImage:
    if not partition.target:
        raise RequestError(ErrorKind.NO_REASSIGNMENT_IN_PROGRESS, "there is no reassignment to cancel")
    return _with_replicas(partition, partition.origin, origin=(), target=())


def _with_replicas(
    partition: PartitionImage,
    replicas: tuple[NodeId, ...],
    *,
    origin: tuple[NodeId, ...],
    target: tuple[NodeId, ...],
) -> PartitionImage:
    isr = tuple(node for node in replicas if node in partition.isr)
    return replace(partition, replicas=replicas, isr=isr, origin=origin, target=target)


def _check_target(image: ClusterImage, partition: PartitionImage, target: tuple[NodeId, ...]) -> None:
    """A replica that is to be added must be live: it could not catch up otherwise."""
    check_no_gateway(target)
    unusable = [
        node
        for node in target
        if (broker := image.brokers.get(node)) is None
        or (node not in partition.replicas and (broker.is_fenced or broker.is_stopping))
    ]
    if not target or unusable or len(set(target)) != len(target):
        raise RequestError(
            ErrorKind.INVALID_REPLICA_ASSIGNMENT,
            f"the target {list(target)} must name each broker once, and add only live ones: not {unusable}",
        )


def _check_factor(partition: PartitionImage, target: tuple[NodeId, ...]) -> None:
    factor = len(partition.target or partition.replicas)
    if len(target) != factor:
        raise RequestError(
            ErrorKind.INVALID_REPLICATION_FACTOR,
            f"the partition has {factor} replicas, and the target {list(target)} has {len(target)}",
        )
