"""Elects leaders on request (KIP-183, KIP-460).

A partition has one replica, on this broker, which leads it while it is online. An election is therefore not needed or,
while the partition is offline, not possible.
"""

from enum import Enum

from conveyor.broker.partitions.partition_table import PartitionTable
from conveyor.cluster.image import ClusterImage
from conveyor.kernel.errors import ErrorKind, RequestError


class ElectionKind(Enum):
    """The candidates: the first replica; or, without a leader, any replica even if it lacks records."""

    PREFERRED = 0
    UNCLEAN = 1


def elect_leader(
    image: ClusterImage, partitions: PartitionTable, topic: str, number: int, kind: ElectionKind
) -> RequestError:
    """Return why no leader is elected.

    The errors: UNKNOWN_TOPIC, ELECTION_NOT_NEEDED, PREFERRED_LEADER_NOT_AVAILABLE, ELIGIBLE_LEADERS_NOT_AVAILABLE.
    """
    topic_image = image.topics.get(topic)
    if topic_image is None or not 0 <= number < len(topic_image.partitions):
        return RequestError(ErrorKind.UNKNOWN_TOPIC, f"topic '{topic}' has no partition {number}")
    replicas, leader = topic_image.partitions[number].replicas, topic_image.partitions[number].leader
    offline_reason = partitions.offline_reason(topic, number)
    if offline_reason is None and (kind is ElectionKind.UNCLEAN or leader == replicas[0]):
        return RequestError(ErrorKind.ELECTION_NOT_NEEDED, f"{topic}-{number} is led by {leader}")
    if kind is ElectionKind.UNCLEAN:
        return RequestError(ErrorKind.ELIGIBLE_LEADERS_NOT_AVAILABLE, f"{topic}-{number} is offline: {offline_reason}")
    reason = f"offline: {offline_reason}" if offline_reason else f"led by {leader}"
    return RequestError(
        ErrorKind.PREFERRED_LEADER_NOT_AVAILABLE, f"{topic}-{number} is {reason}; {replicas[0]} cannot take over"
    )
