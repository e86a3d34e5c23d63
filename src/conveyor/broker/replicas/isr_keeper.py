"""Keeps the in-sync replicas of the partitions that this broker leads: who joins, and who leaves.

    a replica has reported everything that is committed -> joining (the high watermark waits for it) -> proposed
    a replica lags -> proposed without it
    outcome: the image shows the new ISR, or the request was refused

The partitions of a bundle join and leave together: all of them must have caught up, and one that lags is enough to
leave. A join counts before it is proposed, because it may be granted before this broker learns of it. It counts until
the image shows the outcome: a failure of the metadata store leaves it pending. If the replica has gone by then, the
join is withdrawn: otherwise the high watermark would wait for it forever. All requests that are due go into one
proposal, and there is one proposal at a time. Sources: KIP-497, KIP-841, KIP-903, KAFKA-7128.
"""

import logging
from collections.abc import Iterator, Sequence
from functools import partial

import msgspec

from conveyor.broker.partitions.partition_table import PartitionTable
from conveyor.broker.replicas.links_from_followers import LinksFromFollowers
from conveyor.broker.replicas.replica_lag import MESSAGES_FOR_MS, LagLimits, ReplicaLag
from conveyor.broker.services import Services
from conveyor.cluster.changes import Change
from conveyor.cluster.controller.alter_partition import AlterPartition, IsrMember, altered_partition, withdrawn_joins
from conveyor.cluster.controller.event_batch import EventBatch, folded_events
from conveyor.cluster.image import ClusterImage, PartitionImage
from conveyor.kernel.alarm import Alarm
from conveyor.kernel.errors import ErrorKind, RequestError
from conveyor.kernel.ids import NodeId, TopicPartition
from conveyor.kernel.signal import Signal
from conveyor.replication.leader_term import LeaderTerm
from conveyor.replication.partition import Partition
from conveyor.settings.tree import Settings

log = logging.getLogger(__name__)

_CHECKS_PER_LAG_TIME = 4
_RETRY_MS = 1_000


class _Member(msgspec.Struct, frozen=True, kw_only=True):
    """A partition of a bundle that this broker leads."""

    partition: Partition
    term: LeaderTerm


class _Bundle(msgspec.Struct, frozen=True, kw_only=True):
    """The partitions of a bundle, all led by this broker as the image shows it."""

    image: PartitionImage
    members: tuple[_Member, ...]


class _Request(msgspec.Struct, frozen=True, kw_only=True):
    """A request for a bundle. joining: the replicas that it adds. topics: those that it was checked and counts for.
    withdraws: the request only ends earlier ones that may still be granted.
    """

    identity: TopicPartition
    alter: AlterPartition
    joining: tuple[NodeId, ...]
    topics: tuple[str, ...]
    withdraws: bool


class IsrKeeper:
    """See the module's docstring.

    joining: emitted with a partition when it begins to wait for one more replica.
    """

    def __init__(self, services: Services, partitions: PartitionTable, links: LinksFromFollowers) -> None:
        self.joining: Signal[Partition] = Signal()
        self._services = services
        self._metadata = services.metadata
        self._partitions = partitions
        self._links = links
        self._lag = ReplicaLag()
        self._due: dict[TopicPartition, None] = {}
        """The bundles with a replica that may join or has to leave, by their owners."""
        self._lagging: dict[TopicPartition, set[NodeId]] = {}
        self._is_proposing = False
        self._check = Alarm(services.clock, self._check_lag)
        self._retry = Alarm(services.clock, self._propose_soon)

    def start(self) -> None:
        """Check for replicas that lag from now on."""
        self._check.after(self._interval_ms)

    def stop(self) -> None:
        self._check.end()
        self._retry.end()

    @property
    def longest_lag_ms(self) -> int:
        """See `ReplicaLag`."""
        return self._lag.longest_ms

    def reported(self, node: NodeId, partition: Partition) -> None:
        """A follower has reported its progress: it may join the ISR."""
        term = partition.leader_term
        if term is not None and node not in term.role.isr and self._has_caught_up(partition, term, node):
            self._want(self._owner(partition))

    def assumed(self, partition: Partition) -> None:
        """A partition was opened, or its role has changed: replicas that could not join before may join now."""
        term = partition.leader_term
        if term is None:
            return self._lag.forget(partition)
        for node in term.replicas.reports:
            self.reported(node, partition)

    def closed(self, partition: Partition) -> None:
        self._lag.forget(partition)
        self._lagging.pop(self._owner(partition), None)

    @property
    def _interval_ms(self) -> int:
        settings = self._services.settings.broker
        interval_ms = max(1, settings.replica_lag_time_max_ms // _CHECKS_PER_LAG_TIME)
        return min(interval_ms, MESSAGES_FOR_MS) if settings.replica_lag_max_messages else interval_ms

    def _check_lag(self) -> None:
        """Find all replicas that lag, and those that may join: a request may have been refused, because the bundle has
        changed, and they may have nothing new to report. The cost is proportional to the replicas of led partitions.
        """
        settings, now_ms = self._services.settings.broker, self._services.clock.steady_ms()
        limits = LagLimits(time_ms=settings.replica_lag_time_max_ms, messages=settings.replica_lag_max_messages)
        lagging: dict[TopicPartition, set[NodeId]] = {}
        for partition in self._partitions:
            term = partition.leader_term
            if term is None or partition.offline.reason is not None:
                continue
            if term.replicas.joining:
                self._want(self._owner(partition))
            for node in term.replicas.reports:
                self.reported(node, partition)
            for node in term.role.isr:
                if node == self._services.me:
                    continue
                is_connected = self._links.follows(node, partition)
                if self._lag.lags(partition, node, now_ms, limits, is_connected=is_connected):
                    lagging.setdefault(self._owner(partition), set()).add(node)
        self._lagging = lagging
        for owner in lagging:
            self._want(owner)
        self._check.after(self._interval_ms)

    def _want(self, owner: TopicPartition) -> None:
        self._due[owner] = None
        self._propose_soon()

    def _propose_soon(self) -> None:
        if self._due and not self._is_proposing and not self._retry.is_set:
            self._is_proposing = True
            self._services.tasks.start(self._propose())

    async def _propose(self) -> None:
        try:
            while self._due and not self._retry.is_set:
                owners, self._due = list(self._due), {}
                requests = [request for owner in owners if (request := self._request(owner)) is not None]
                if requests:
                    await self._alter(requests)
        finally:
            self._is_proposing = False

    async def _alter(self, requests: Sequence[_Request]) -> None:
        """Propose the requests. Those that do not fit into one entry, and all after a failure, follow later."""
        batch = EventBatch(changes=(), outcomes=())

        def decide(image: ClusterImage) -> Sequence[Change]:
            nonlocal batch
            settings = self._services.settings
            batch = folded_events(
                image, [partial(_altered, request=request, settings=settings) for request in requests]
            )
            return batch.changes

        try:
            await self._metadata.propose(decide)
        except RequestError as error:
            log.warning("in-sync replicas not changed partitions=%d reason=%s", len(requests), error)
            self._due.update((request.identity, None) for request in requests)
            return self._retry.after(_RETRY_MS)
        for request, refusal in zip(requests, batch.outcomes, strict=False):
            if refusal is not None:
                self._refused(request, refusal)
        self._due.update((request.identity, None) for request in requests[len(batch.outcomes) :])

    def _refused(self, request: _Request, refusal: RequestError) -> None:
        """A join that was refused on the image that it was decided on was never granted, so it no longer counts."""
        log.info("change of in-sync replicas refused partition=%s reason=%s", request.identity, refusal)
        bundle = self._bundle(request.identity)
        if bundle is None or bundle.image.partition_epoch != request.alter.partition_epoch:
            return
        for member in bundle.members:
            for node in request.joining:
                member.term.replicas.end_join(node)

    def _request(self, owner: TopicPartition) -> _Request | None:
        """Return the request for the ISR that a bundle should have; None if it has it. Its joins count from now on."""
        bundle, image = self._bundle(owner), self._metadata.image
        if bundle is None:
            return None
        leaving = self._lagging.get(owner, set()).intersection(bundle.image.isr)
        joining = tuple(node for node in bundle.image.replicas if self._may_join(bundle, node))
        withdraws = not leaving and not joining and any(member.term.replicas.joining for member in bundle.members)
        if not leaving and not joining and not withdraws:
            return None
        for member in bundle.members:
            for node in joining:
                member.term.replicas.join(node, member.term.role.partition_epoch)
                self.joining.emit(member.partition)
                self._lag.joins(member.partition, node)
        isr = [node for node in bundle.image.isr if node not in leaving]
        members = tuple(_member(image, node) for node in (*isr, *joining))
        log.info(
            "in-sync replicas to change partition=%s isr=%s joining=%s leaving=%s",
            owner, bundle.image.isr, joining, tuple(leaving),
        )  # fmt: skip
        topic_id = image.topics[owner.topic].topic_id
        alter = AlterPartition(
            leader=IsrMember(self._services.me, self._metadata.session.broker_epoch),
            topic_id=topic_id,
            partition=owner.partition,
            leader_epoch=bundle.image.leader_epoch,
            partition_epoch=bundle.image.partition_epoch,
            isr=members,
        )
        topics = tuple(member.partition.identity.topic for member in bundle.members)
        return _Request(identity=owner, alter=alter, joining=joining, topics=topics, withdraws=withdraws)

    def _owner(self, partition: Partition) -> TopicPartition:
        topic, number = partition.identity
        return TopicPartition(self._metadata.image.bundle_owner(topic), number)

    def _bundle(self, owner: TopicPartition) -> _Bundle | None:
        """Return the bundle if this broker serves all of it, in the roles of the newest image."""
        image = self._metadata.image
        owner_image = image.partition(*owner)
        if owner_image is None:
            return None
        members = tuple(self._members(image, owner))
        led = tuple(member for member in members if member is not None)
        return _Bundle(image=owner_image, members=led) if len(led) == len(members) else None

    def _members(self, image: ClusterImage, owner: TopicPartition) -> Iterator[_Member | None]:
        for name in _bundle_topics(image, owner):
            state = image.topics[name].partitions[owner.partition]
            partition = self._partitions.get(name, owner.partition)
            term = None if partition is None or partition.offline.reason is not None else partition.leader_term
            if partition is None or term is None or term.epoch != state.leader_epoch:
                yield None
            else:
                is_current = term.role.partition_epoch == state.partition_epoch
                yield _Member(partition=partition, term=term) if is_current else None

    def _may_join(self, bundle: _Bundle, node: NodeId) -> bool:
        broker = self._metadata.image.brokers.get(node)
        if node in bundle.image.isr or broker is None or broker.is_fenced or broker.is_stopping:
            return False
        return all(self._has_caught_up(member.partition, member.term, node) for member in bundle.members)

    def _has_caught_up(self, partition: Partition, term: LeaderTerm, node: NodeId) -> bool:
        return self._links.follows(node, partition) and term.may_join(node)


def _altered(image: ClusterImage, request: _Request, settings: Settings) -> Sequence[Change]:
    """Change the ISR. A replica does not join a companion that was created since: its leader has not waited for it."""
    if request.withdraws:
        return withdrawn_joins(image, request.alter)
    if request.joining and tuple(_bundle_topics(image, request.identity)) != request.topics:
        raise RequestError(ErrorKind.INVALID_UPDATE_VERSION, f"{request.identity} has another companion now")
    return altered_partition(image, request.alter, settings)


def _bundle_topics(image: ClusterImage, owner: TopicPartition) -> Iterator[str]:
    for name in (owner.topic, *(topic.name for topic in image.companions(owner.topic))):
        if image.partition(name, owner.partition) is not None:
            yield name


def _member(image: ClusterImage, node: NodeId) -> IsrMember:
    broker = image.brokers.get(node)
    return IsrMember(node, -1 if broker is None else broker.broker_epoch)
