"""Changes of the cluster that an operator requests: reassignments, elections, the removal of a broker.

`cluster.controller` decides on each request by the image that the requests before it have left. Requests that come
together are stored in as few entries of the metadata log as possible; a refused request does not affect the others.
"""

from collections.abc import Sequence
from functools import partial

from conveyor.broker.partitions.partition_table import PartitionTable
from conveyor.broker.services import Services
from conveyor.cluster.changes import Change
from conveyor.cluster.controller.bundles import owners
from conveyor.cluster.controller.elections import ElectionRequest, elected_leader
from conveyor.cluster.controller.event_batch import Event, EventBatch, folded_events
from conveyor.cluster.controller.partition_transition import Election
from conveyor.cluster.controller.reassignments import Reassignment, reassigned
from conveyor.cluster.controller.registrations import removed_broker
from conveyor.cluster.image import NO_LEADER, ClusterImage
from conveyor.kernel.access.caller import Caller
from conveyor.kernel.errors import ErrorKind, RequestError
from conveyor.kernel.ids import NodeId

Outcomes = Sequence[RequestError | None]
"""The reason why each request was refused, None if it was not; in the order of the requests."""


class ClusterOperations:
    """See the module's docstring. settings: the effective ones. Every method raises RequestError if nothing can be
    stored.
    """

    def __init__(self, services: Services, partitions: PartitionTable) -> None:
        self._services = services
        self._metadata = services.metadata
        self._partitions = partitions

    async def reassign(self, caller: Caller, requests: Sequence[Reassignment]) -> Outcomes:
        """Start, change or cancel reassignments. Errors: those of `reassigned`."""
        return await self._all([partial(self._reassigned, request) for request in requests])

    async def elect(self, caller: Caller, requests: Sequence[ElectionRequest]) -> Outcomes:
        """Elect leaders. Errors: those of `elected_leader`."""
        return await self._all([partial(self._elected, request) for request in requests])

    def elections_needed(self, election: Election) -> list[ElectionRequest]:
        """Return the elections for all bundles that nobody leads, or a leader that is offline here; with PREFERRED,
        also for those that another replica than the preferred one leads.
        """
        return [
            ElectionRequest(topic=topic.name, partition=number, election=election)
            for topic in owners(self._metadata.image)
            for number, partition in enumerate(topic.partitions)
            if self._failure(topic.name, number, partition.leader) is not None
            or partition.leader == NO_LEADER
            or (election is Election.PREFERRED and partition.leader != partition.replicas[0])
        ]

    async def remove_broker(self, caller: Caller, node_id: NodeId) -> None:
        """Remove a broker that is stopped and holds no replicas. Errors: those of `removed_broker`."""
        await self._metadata.propose(lambda image: removed_broker(image, node_id))

    def _reassigned(self, request: Reassignment, image: ClusterImage) -> Sequence[Change]:
        return reassigned(image, request, self._services.settings)

    def _elected(self, request: ElectionRequest, image: ClusterImage) -> Sequence[Change]:
        partition = image.partition(request.topic, request.partition)
        if partition is not None:
            failure = self._failure(request.topic, request.partition, partition.leader)
            if failure is not None:
                raise _offline(request, failure)
        return elected_leader(image, request, self._services.settings)

    def _failure(self, topic: str, number: int, leader: NodeId) -> str | None:
        """Return why a partition is offline that this broker leads."""
        return self._partitions.offline_reason(topic, number) if leader == self._services.me else None

    async def _all(self, events: Sequence[Event]) -> Outcomes:
        """Decide on all events, in as few entries as they fit in."""
        outcomes: list[RequestError | None] = []
        while rest := events[len(outcomes) :]:
            outcomes += await self._some(rest)
        return outcomes

    async def _some(self, events: Sequence[Event]) -> Outcomes:
        """Decide on the first events, at least one, in one entry."""
        attempts: list[EventBatch] = []

        def decide(image: ClusterImage) -> Sequence[Change]:
            attempts.append(folded_events(image, events))
            return attempts[-1].changes

        await self._metadata.propose(decide)
        return attempts[-1].outcomes


def _offline(request: ElectionRequest, reason: str) -> RequestError:
    is_preferred = request.election is Election.PREFERRED
    kind = ErrorKind.PREFERRED_LEADER_NOT_AVAILABLE if is_preferred else ErrorKind.ELIGIBLE_LEADERS_NOT_AVAILABLE
    return RequestError(kind, f"{request.topic}-{request.partition} is offline: {reason}")
