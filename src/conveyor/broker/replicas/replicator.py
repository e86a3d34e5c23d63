"""Connects the partitions of this broker with those of other brokers, as leader and as follower.

    reconciler: role of a replicated partition -> followed (a link to its leader), or served to followers
    partition: written, flushed, committed -> pushed to followers, or reported to the leader

One link leads to each leader of partitions that this broker follows, and one comes from each follower. Partitions with
one replica are unknown here. A broker without a network to other brokers has no replicator.
"""

from collections.abc import Callable
from concurrent.futures import Executor

from conveyor.broker.metadata.metadata import Metadata
from conveyor.broker.partitions.loop_tick import LoopTick
from conveyor.broker.partitions.partition_table import PartitionTable
from conveyor.broker.replicas.chore_runner import ChoreRunner
from conveyor.broker.replicas.failed_partitions import FailedPartitions
from conveyor.broker.replicas.follower_link import FollowerLink, LinkServices
from conveyor.broker.replicas.isr_keeper import IsrKeeper
from conveyor.broker.replicas.leader_links import LeaderLinks
from conveyor.broker.replicas.trim_waits import TrimWaits
from conveyor.broker.tasks import Tasks
from conveyor.cluster.image import ClusterImage, TopicImage
from conveyor.kernel.ids import NodeId
from conveyor.kernel.peers import PeerAddress, PeerEnd, PeerLink, PeerNetwork
from conveyor.kernel.ports import Clock
from conveyor.replication.partition import Partition
from conveyor.replication.roles import Follower
from conveyor.settings.tree import Settings


class Replicator:
    """See the module's docstring. address: of a broker; None if the image has none."""

    def __init__(
        self,
        *,
        metadata: Metadata,
        partitions: PartitionTable,
        network: PeerNetwork,
        address: Callable[[NodeId], PeerAddress | None],
        tick: LoopTick,
        clock: Clock,
        threads: Executor,
        tasks: Tasks,
        node_id: NodeId,
        settings: Callable[[], Settings],
    ) -> None:
        self._metadata = metadata
        self._node_id = node_id
        self._keeper = IsrKeeper(
            metadata=metadata,
            partitions=partitions,
            is_connected=lambda node, partition: self._leader_links.follows(node, partition),
            settings=settings,
            clock=clock,
            tasks=tasks,
            node_id=node_id,
        )
        self._trim_waits = TrimWaits(metadata, clock, node_id)
        self._leader_links = LeaderLinks(metadata, partitions, tick, clock, self._reported)
        self._failed = FailedPartitions(
            metadata=metadata,
            partitions=partitions,
            unfollow=self._unfollow,
            settings=settings,
            clock=clock,
            tasks=tasks,
            node_id=node_id,
        )
        self._chores = ChoreRunner(clock, threads, tasks, self._chore_ended)
        self._services = LinkServices(
            network=network, address=address, tick=tick, chores=self._chores, clock=clock, tasks=tasks
        )
        self._links: dict[NodeId, FollowerLink] = {}
        self._followed: dict[Partition, FollowerLink] = {}
        metadata.listen(self._observe)

    def accept(self, link: PeerLink) -> PeerEnd:
        """Serve a follower that has dialled this broker."""
        return self._leader_links.accept(link)

    def start(self) -> None:
        """Watch for in-sync replicas that lag, and for partitions that fail, from now on."""
        self._keeper.start()
        self._failed.start()

    def stop(self) -> None:
        """End all links."""
        self._keeper.stop()
        self._failed.stop()
        for link in self._links.values():
            link.stop("the broker stops")
        self._leader_links.stop()

    def assumed(self, topic: TopicImage, partition: Partition) -> None:
        """A partition was opened, or its role or its replicas may have changed."""
        self._leader_links.changed(partition)
        is_replicated = len(topic.partitions[partition.identity.partition].replicas) > 1
        role = partition.role
        partition.replication = self if is_replicated else None
        if isinstance(role, Follower) and role.leader not in (None, self._node_id) and is_replicated:
            self._follow(partition, topic, role)
        else:
            self._unfollow(partition)
        self._keeper.assumed(partition)

    def closed(self, partition: Partition) -> None:
        """A partition was closed, or another one has taken its place."""
        partition.replication = None
        self._keeper.closed(partition)
        self._leader_links.changed(partition)
        self._unfollow(partition)

    async def prepare_to_lead(self, image: ClusterImage) -> None:
        """Finish the changes of files of the partitions that this broker leads by an image. They stop following."""
        while partitions := [busy for busy in self._chores.busy_partitions if self._leads(image, busy)]:
            self._unfollow(partitions[0])
            await self._chores.idle(partitions[0])

    def written(self, partition: Partition) -> None:
        """See `ReplicationObserver`."""
        link = self._followed.get(partition)
        if link is None:
            self._leader_links.written(partition)
        else:
            link.progressed(partition)

    def flushed(self, partition: Partition) -> None:
        """See `ReplicationObserver`."""
        link = self._followed.get(partition)
        if link is not None:
            link.progressed(partition)

    def committed(self, partition: Partition) -> None:
        """See `ReplicationObserver`."""
        self._leader_links.committed(partition)

    def trimmed(self, partition: Partition) -> None:
        """See `ReplicationObserver`."""
        self._leader_links.committed(partition)

    async def trimmed_by_all(self, partition: Partition, offset: int, timeout_ms: int) -> int:
        """See `ReplicationObserver`."""
        return await self._trim_waits.wait(partition, offset, timeout_ms)

    def _reported(self, node: NodeId, partition: Partition) -> None:
        self._keeper.reported(node, partition)
        self._trim_waits.reported(partition)

    def _leads(self, image: ClusterImage, partition: Partition) -> bool:
        topic, number = image.topics.get(partition.identity.topic), partition.identity.partition
        return topic is not None and number < len(topic.partitions) and topic.partitions[number].leader == self._node_id

    def _follow(self, partition: Partition, topic: TopicImage, role: Follower) -> None:
        assert role.leader is not None
        link = self._links.get(role.leader)
        if link is None:
            link = self._links[role.leader] = FollowerLink(role.leader, self._services)
        if self._followed.get(partition) is not link:
            self._unfollow(partition)
            self._followed[partition] = link
        link.follow(partition, topic.topic_id)

    def _unfollow(self, partition: Partition) -> None:
        link = self._followed.pop(partition, None)
        if link is not None:
            link.unfollow(partition)

    def _chore_ended(self, partition: Partition) -> None:
        link = self._followed.get(partition)
        if link is not None:
            link.resume(partition)

    def _observe(self, old: ClusterImage, new: ClusterImage) -> None:
        for link in self._links.values():
            link.image_changed()
