"""Decides on elections that someone asks for (ElectLeaders, KIP-183, KIP-460), and on the balance of leaders.

The elections that follow from other changes are in `partition_transition`.
"""

from collections import defaultdict

import msgspec

from conveyor.cluster.changes import Change
from conveyor.cluster.controller.bundles import existing_bundle
from conveyor.cluster.controller.image_draft import ImageDraft
from conveyor.cluster.controller.partition_transition import Election
from conveyor.cluster.image import NO_LEADER, ClusterImage, TopicImage
from conveyor.kernel.errors import ErrorKind, RequestError
from conveyor.kernel.ids import NodeId
from conveyor.settings.tree import Settings

MOST_IMBALANCE = 0.1
"""The part of a broker's preferred bundles that others may lead. Kafka: leader.imbalance.per.broker.percentage."""

MOST_MOVES = 50
"""Leaderships that one balance moves: each one interrupts its clients briefly."""


class ElectionRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request to elect the first replica (PREFERRED), or to give a bundle any leader (UNCLEAN)."""

    topic: str
    partition: int
    election: Election


def elected_leader(image: ClusterImage, request: ElectionRequest, settings: Settings) -> list[Change]:
    """Elect the leader of one bundle.

    Raises RequestError: ELECTION_NOT_NEEDED, PREFERRED_LEADER_NOT_AVAILABLE, ELIGIBLE_LEADERS_NOT_AVAILABLE;
    UNKNOWN_TOPIC; INVALID_TOPIC for a companion.
    """
    topic, partition = existing_bundle(image, request.topic, request.partition)
    name, preferred = f"{request.topic}-{request.partition}", partition.replicas[0]
    is_preferred = request.election is Election.PREFERRED
    if partition.leader == preferred or (partition.leader != NO_LEADER and not is_preferred):
        raise RequestError(ErrorKind.ELECTION_NOT_NEEDED, f"{name} is led by {partition.leader}")
    draft = ImageDraft(image, settings)
    leader = draft.settle(topic, request.partition, election=request.election).leader
    if is_preferred and leader != preferred:
        raise RequestError(
            ErrorKind.PREFERRED_LEADER_NOT_AVAILABLE, f"{name}: {preferred} is not live, or not in the ISR"
        )
    if leader == NO_LEADER:
        raise RequestError(ErrorKind.ELIGIBLE_LEADERS_NOT_AVAILABLE, f"{name} has no live replica")
    return draft.changes()


def balanced_leaders(image: ClusterImage, settings: Settings) -> list[Change]:
    """Elect preferred leaders for brokers of which others lead more than MOST_IMBALANCE of the preferred bundles.

    At most MOST_MOVES. Only a first replica in the ISR is elected (KAFKA-9866): it has caught up.
    """
    draft = ImageDraft(image, settings, MOST_MOVES)
    preferred_count: defaultdict[NodeId, int] = defaultdict(int)
    misplaced: defaultdict[NodeId, list[tuple[TopicImage, int]]] = defaultdict(list)
    for topic, number, partition in draft.bundles():
        preferred = partition.replicas[0]
        preferred_count[preferred] += 1
        if partition.leader != preferred and preferred in draft.liveness.ready and preferred in partition.isr:
            misplaced[preferred].append((topic, number))
    for preferred in sorted(misplaced):
        if len(misplaced[preferred]) > MOST_IMBALANCE * preferred_count[preferred]:
            for topic, number in misplaced[preferred]:
                if not draft.is_full:
                    draft.settle(topic, number, election=Election.PREFERRED)
    return draft.changes()
