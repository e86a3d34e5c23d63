"""Checks of a whole simulated cluster, once its faults have ended.

Invariants, by the names that failures report:

    LogMatching      the logs of all replicas hold the same batches, in the same leader epochs, from the highest log
                     start on
    ImagesAgree      all brokers show the same image
    ClusterSettles   30 s after the last fault every partition is led, all its replicas are in sync, all its records
                     are committed, each broker has the roles that the image gives to it, no follower has records that
                     its leader has deleted, all closed segments are sealed, and, in a cluster of several, no data
                     directory says that replicas with `flush.policy=ack` may be unflushed
"""

from collections.abc import Iterable, Iterator, Sequence
from hashlib import sha256

from conveyor.broker.broker_node import BrokerNode
from conveyor.broker.partitions.replica_checkpoint import key_of
from conveyor.cluster.image import NO_LEADER, ClusterImage
from conveyor.kernel.ids import NodeId
from conveyor.log.batch_reading import batches_between
from conveyor.records.batch import CONTROL
from conveyor.records.record import decode_records
from simulation.ledger import InvariantBroken

Batches = dict[int, tuple[int, int, str]]
"""By base offset: the next offset, the leader epoch, and a digest of the batch."""


def unsettled(nodes: Iterable[BrokerNode]) -> list[str]:
    """Return what is not as it should be long after the last fault."""
    brokers = list(nodes)
    images = [broker.metadata.image for broker in brokers]
    newest = max(images, key=lambda image: image.seq)
    differences = [f"image {image.seq} of {newest.seq}" for image in images if image.seq != newest.seq]
    differences += _not_in_sync(newest)
    for broker in brokers:
        differences += _wrong_roles(broker, newest)
    return sorted(differences) + _untrimmed(brokers)


def check_images(nodes: Iterable[BrokerNode]) -> None:
    """Compare the images of all brokers. They are of the same number."""
    first, *others = (broker.metadata.image for broker in nodes)
    for other in others:
        if other != first:
            raise InvariantBroken("ImagesAgree", f"image {first.seq} is {first} and {other}")


def check_logs(nodes: Iterable[BrokerNode], topic: str, number: int) -> None:
    """Compare the logs of all replicas of a partition. Nothing is being appended."""
    replicas = [
        (broker.settings.broker.node_id, partition.log)
        for broker in nodes
        if (partition := broker.partitions.table.get(topic, number)) is not None
    ]
    start = max(log.log_start_offset for _, log in replicas)
    contents: dict[NodeId, Batches] = {}
    for node_id, log in replicas:
        contents[NodeId(node_id)] = {
            batch.header.base_offset: (
                batch.header.next_offset,
                batch.header.leader_epoch,
                sha256(batch.content).hexdigest()[:16],
            )
            for batch in batches_between(log, start, log.log_end_offset)
            if batch.header.base_offset >= start
        }
    (first, expected), *others = contents.items()
    for node_id, found in others:
        if found != expected:
            offset = min(offset for offset in {*expected, *found} if expected.get(offset) != found.get(offset))
            raise InvariantBroken(
                "LogMatching",
                f"{topic}-{number} offset {offset}: broker {first} holds {expected.get(offset)}, broker {node_id}"
                f" {found.get(offset)}",
            )


def committed_values(nodes: Iterable[BrokerNode], topic: str, number: int) -> Iterator[bytes]:
    """Yield the values of the records that the leader of a partition has."""
    for broker in nodes:
        partition = broker.partitions.table.get(topic, number)
        if partition is not None and partition.leader_term is not None:
            log = partition.log
            for header, _, content in batches_between(log, log.log_start_offset, partition.term.high_watermark):
                if not header.attributes & CONTROL:
                    yield from (record.value or b"" for record in decode_records(content))


def _not_in_sync(image: ClusterImage) -> list[str]:
    return [
        f"{topic.name}-{number} leader {partition.leader} ISR {partition.isr}"
        for topic in image.topics.values()
        for number, partition in enumerate(topic.partitions)
        if partition.leader == NO_LEADER or {*partition.isr} != {*partition.replicas}
    ]


def _untrimmed(brokers: Sequence[BrokerNode]) -> list[str]:
    partitions = [partition for broker in brokers for partition in broker.partitions.table]
    starts = {
        partition.identity: partition.log.log_start_offset
        for partition in partitions
        if partition.leader_term is not None
    }
    return [
        f"{partition.identity} starts at {partition.log.log_start_offset} at a follower, not at {start}"
        for partition in partitions
        if partition.log.log_start_offset < (start := starts.get(partition.identity, 0))
    ]


def _wrong_roles(broker: BrokerNode, image: ClusterImage) -> list[str]:
    node_id = broker.settings.broker.node_id
    wanted = {
        (topic.name, number, partition.leader == node_id, partition.leader_epoch)
        for topic in image.topics.values()
        for number, partition in enumerate(topic.partitions)
        if node_id in partition.replicas
    }
    found = {
        (
            partition.identity.topic,
            partition.identity.partition,
            partition.leader_term is not None and not partition.leader_term.role.is_read_only,
            partition.term.epoch,
        )
        for partition in broker.partitions.table
        if partition.offline.reason is None
    }
    uncommitted = [
        f"broker {node_id} {partition.identity} committed {term.high_watermark} of {partition.log.log_end_offset}"
        for partition in broker.partitions.table
        if (term := partition.leader_term) is not None and term.high_watermark < partition.log.log_end_offset
    ]
    offline = [f"broker {node_id} {name}" for name in broker.partitions.table.offline()]
    marked = [
        f"broker {node_id} {partition.identity} may be unflushed"
        for partition in broker.partitions.table
        if not broker.metadata.session.is_embedded
        and partition.log.topic.flush_policy == "ack"
        and broker.partitions.logs.checkpoint.is_marked(key_of(partition))
    ]
    unsealed = [
        f"broker {node_id} {partition.identity} has closed segments without seals"
        for partition in broker.partitions.table
        if not all(segment.sealed for segment in partition.log.segments.all[:-1])
    ]
    differences = [f"broker {node_id} {difference}" for difference in sorted(wanted ^ found)]
    return differences + uncommitted + offline + marked + unsealed
