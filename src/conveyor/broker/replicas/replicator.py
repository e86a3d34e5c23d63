"""Connects the partitions of this broker with those of other brokers, as leader and as follower.

    reconciler: role of a replicated partition -> followed (a link to its leader), or served to followers
    partition: written, flushed, changed -> pushed to followers, or reported to the leader

One link leads to each leader of partitions that this broker follows, and one comes from each follower. Partitions with
one replica are unknown here. A broker without a network to other brokers replicates nothing.
"""

from collections.abc import Callable
from functools import partial

from conveyor.broker.cluster_links import ClusterLinks
from conveyor.broker.partitions.partitions import Partitions
from conveyor.broker.partitions.reconciler import Assumed
from conveyor.broker.replicas.isr_keeper import IsrKeeper
from conveyor.broker.replicas.link_to_leader import LinkParts, LinkToLeader
from conveyor.broker.replicas.links_from_followers import LinksFromFollowers
from conveyor.broker.replicas.replica_repair import ReplicaRepair
from conveyor.broker.replicas.replication_probe import ReplicationMeasures, ReplicationProbe
from conveyor.broker.replicas.trim_waits import TrimWaits
from conveyor.broker.services import Services
from conveyor.cluster.image import ClusterImage, TopicImage
from conveyor.kernel.ids import NodeId
from conveyor.kernel.peers import PeerService
from conveyor.replication.partition import Partition


class Replicator:
    def __init__(self, services: Services, partitions: Partitions, links: ClusterLinks) -> None:
        self._services = services
        self._metadata = services.metadata
        self._partitions = table = partitions.table
        self._repair = repair = ReplicaRepair(services, partitions.reconciler, partitions.logs, partitions.flusher)
        repair.failed.listen(self._unfollow)
        repair.resumed.listen(self._follow_all)
        self._probe = ReplicationProbe()
        self._trim_waits = TrimWaits(services)
        self._links_from_followers = LinksFromFollowers(services, table, partitions.tick, self._reported)
        links.serve(PeerService.REPLICATION, self._links_from_followers.accept)
        self._keeper = IsrKeeper(services, table, self._links_from_followers)
        self._keeper.joining.listen(self._links_from_followers.written)
        self._parts_of_links = LinkParts(
            services=services, cluster=links, tick=partitions.tick, log_tasks=partitions.log_tasks
        )
        self._links_to_leaders: dict[NodeId, LinkToLeader] = {}
        self._followed: dict[Partition, LinkToLeader] = {}
        self._leave: dict[Partition, Callable[[], None]] = {}
        """For each replicated partition that this broker leads, what ends to listen to its changes."""
        self._has_network = self._may_follow = links.has_network
        if self._has_network:
            self._listen(partitions)
            services.serving.callback(self._stop)

    @property
    def is_disk_stalled(self) -> bool:
        """True if this broker gives up its leaderships because its disk does not answer."""
        return self._repair.is_stalled

    def start(self) -> None:
        """Watch for in-sync replicas that lag, and for partitions that fail, from now on."""
        if self._has_network:
            self._keeper.start()
            self._repair.start()

    def follow_no_more(self) -> None:
        """Copy nothing from now on: a broker that stops waits until its disk has all that was copied."""
        self._may_follow = False
        for partition in list(self._followed):
            self._unfollow(partition)

    def _listen(self, partitions: Partitions) -> None:
        self._metadata.listen(self._observe)
        partitions.reconciler.assumed.listen(self._assumed)
        partitions.reconciler.closed.listen(self._closed)
        partitions.reconciler.will_lead.listen(self._unfollow)
        partitions.log_tasks.ended.listen(self._log_task_ended)

    def _stop(self) -> None:
        self._keeper.stop()
        self._repair.stop()
        self._links_from_followers.stop()

    def _assumed(self, assumed: Assumed) -> None:
        topic, partition = assumed
        self._links_from_followers.changed(partition)
        self._links_from_followers.committed(partition)
        is_replicated = len(topic.partitions[partition.identity.partition].replicas) > 1
        partition.observer = self if is_replicated else None
        if not is_replicated or partition.leader_term is None:
            self._stop_listening(partition)
        elif partition not in self._leave:
            self._leave[partition] = partition.changed.listen(partial(self._changed, partition))
        may_follow = self._may_follow and is_replicated and not self._repair.is_stalled
        leader = None if partition.leader_term is not None else partition.term.role.leader
        if leader not in (None, self._services.me) and may_follow:
            self._follow(partition, topic, leader)
        else:
            self._unfollow(partition)
        self._keeper.assumed(partition)
        self._probe.assumed(partition)

    def _closed(self, partition: Partition) -> None:
        partition.observer = None
        self._stop_listening(partition)
        self._keeper.closed(partition)
        self._probe.closed(partition)
        self._links_from_followers.changed(partition)
        self._unfollow(partition)

    def measures(self) -> ReplicationMeasures:
        """Return the numbers for the metrics."""
        throttle = self._links_from_followers.catch_up_throttle
        return ReplicationMeasures(
            isr_shrinks=self._probe.isr_shrinks,
            isr_expands=self._probe.isr_expands,
            leader_elections=self._probe.leader_elections,
            sent_bytes=self._links_from_followers.sent_bytes,
            received_bytes=sum(link.received_bytes for link in self._links_to_leaders.values()),
            catch_up_bytes=throttle.sent_bytes,
            is_catch_up_throttled=not throttle.is_open,
            longest_lag_ms=self._keeper.longest_lag_ms,
        )

    def written(self, partition: Partition) -> None:
        """See `ReplicationObserver`."""
        link = self._followed.get(partition)
        if link is None:
            self._links_from_followers.written(partition)
        else:
            link.progressed(partition)

    def flushed(self, partition: Partition) -> None:
        """See `ReplicationObserver`."""
        link = self._followed.get(partition)
        if link is not None:
            link.progressed(partition)

    def trimmed(self, partition: Partition) -> None:
        """See `ReplicationObserver`."""
        link = self._followed.get(partition)
        if link is None:
            self._links_from_followers.committed(partition)
        else:
            link.progressed(partition)

    async def trimmed_by_all(self, partition: Partition, offset: int, timeout_ms: int) -> int:
        """See `ReplicationObserver`."""
        return await self._trim_waits.wait(partition, offset, timeout_ms)

    def _reported(self, node: NodeId, partition: Partition) -> None:
        self._keeper.reported(node, partition)
        self._trim_waits.reported(partition)

    def _changed(self, partition: Partition, _: None) -> None:
        if partition.leader_term is not None and partition.offline.reason is None:
            self._links_from_followers.committed(partition)

    def _stop_listening(self, partition: Partition) -> None:
        leave = self._leave.pop(partition, None)
        if leave is not None:
            leave()

    def _follow(self, partition: Partition, topic: TopicImage, leader: NodeId) -> None:
        link = self._links_to_leaders.get(leader)
        if link is None:
            link = self._links_to_leaders[leader] = LinkToLeader(leader, self._parts_of_links)
        if self._followed.get(partition) is not link:
            self._unfollow(partition)
            self._followed[partition] = link
        link.follow(partition, topic.topic_id)

    def _unfollow(self, partition: Partition) -> None:
        link = self._followed.pop(partition, None)
        if link is not None:
            link.unfollow(partition)

    def _follow_all(self, _: None) -> None:
        topics = self._metadata.image.topics
        for partition in self._partitions:
            topic = topics.get(partition.identity.topic)
            if partition.offline.reason is None and topic is not None and partition.observer is not None:
                self._assumed(Assumed(topic, partition))

    def _log_task_ended(self, partition: Partition) -> None:
        link = self._followed.get(partition)
        if link is not None:
            link.resume(partition)

    def _observe(self, old: ClusterImage, new: ClusterImage) -> None:
        for link in self._links_to_leaders.values():
            link.image_changed()
