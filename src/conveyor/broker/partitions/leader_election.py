"""Electing leaders on request (KIP-183, KIP-460).

A partition has one replica here, which leads it as long as it is online: there is nobody to elect. So an election is
not needed, or, while the partition is offline, not possible.
"""

from enum import Enum

from conveyor.broker.partitions.partition_table import PartitionTable
from conveyor.cluster.image import ClusterImage
from conveyor.kernel.errors import ErrorKind, RequestError


class ElectionKind(Enum):
    """Whom to elect: the first replica, or any replica though it may lack records, where nobody leads."""

    PREFERRED = 0
    UNCLEAN = 1


def elect_leader(
    image: ClusterImage, partitions: PartitionTable, topic: str, number: int, kind: ElectionKind
) -> RequestError:
    """Why nobody is elected: UNKNOWN_TOPIC, ELECTION_NOT_NEEDED, PREFERRED_LEADER_NOT_AVAILABLE,
    ELIGIBLE_LEADERS_NOT_AVAILABLE."""
    known = image.topics.get(topic)
    if known is None or not 0 <= number < len(known.partitions):
        return RequestError(ErrorKind.UNKNOWN_TOPIC, f"topic '{topic}' has no partition {number}")
    replicas, leader = known.partitions[number].replicas, known.partitions[number].leader
    offline_reason = partitions.offline_reason(topic, number)
    if offline_reason is None and (kind is ElectionKind.UNCLEAN or leader == replicas[0]):
        return RequestError(ErrorKind.ELECTION_NOT_NEEDED, f"{topic}-{number} is led by {leader}")
    if kind is ElectionKind.UNCLEAN:
        return RequestError(ErrorKind.ELIGIBLE_LEADERS_NOT_AVAILABLE, f"{topic}-{number} is offline: {offline_reason}")
    reason = f"offline: {offline_reason}" if offline_reason else f"led by {leader}"
    return RequestError(
        ErrorKind.PREFERRED_LEADER_NOT_AVAILABLE, f"{topic}-{number} is {reason}; {replicas[0]} cannot take over"
    )
