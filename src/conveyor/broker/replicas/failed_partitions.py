"""Gives up what this broker cannot serve because a log has failed, or because its disk does not answer.

    every second: partitions that are offline, or all while the disk stalls
        led by this broker -> another replica is to lead (`replaced_leader`)
        followed           -> the leader is to see that this replica does not follow; see `damaged_logs`

The broker stays registered, as it serves its other partitions, and while the disk stalls, reads. Without this, a
partition whose leader has a bad disk would wait for that disk, although other replicas have all its records. Failed
proposals are repeated at the next check. When the disk answers again, the broker follows the leaders again.
"""

import logging
from collections.abc import Callable, Sequence
from functools import partial

from conveyor.broker.metadata.metadata import Metadata
from conveyor.broker.partitions.flush_stalls import CHECK_MS, FlushStalls
from conveyor.broker.partitions.partition_table import PartitionTable
from conveyor.broker.partitions.reconciler import Reconciler
from conveyor.broker.replicas.damaged_logs import DamagedLogs
from conveyor.broker.tasks import Tasks
from conveyor.cluster.changes import Change
from conveyor.cluster.controller.alter_partition import IsrMember
from conveyor.cluster.controller.event_batch import folded_events
from conveyor.cluster.controller.failed_leaders import FailedLeader, replaced_leader
from conveyor.cluster.image import ClusterImage
from conveyor.cluster.internal_topics import owner_of
from conveyor.kernel.alarm import Alarm
from conveyor.kernel.errors import RequestError
from conveyor.kernel.ids import NodeId, TopicPartition
from conveyor.kernel.ports import Clock
from conveyor.replication.partition import Partition
from conveyor.settings.tree import Settings

log = logging.getLogger(__name__)


class FailedPartitions:
    """See the module's docstring. unfollow: stop copying a partition. resumed: called when the disk answers again."""

    def __init__(
        self,
        *,
        metadata: Metadata,
        partitions: PartitionTable,
        reconciler: Reconciler,
        stalls: FlushStalls,
        damaged: DamagedLogs,
        unfollow: Callable[[Partition], None],
        resumed: Callable[[], None],
        settings: Callable[[], Settings],
        clock: Clock,
        tasks: Tasks,
        node_id: NodeId,
    ) -> None:
        self._metadata = metadata
        self._partitions = partitions
        self._reconciler = reconciler
        self._stalls = stalls
        self._damaged = damaged
        self._unfollow = unfollow
        self._resumed = resumed
        self._settings = settings
        self._tasks = tasks
        self._node_id = node_id
        self.is_stalled = False
        """Whether the disk has not finished a flush for `disk.stall_timeout_ms`."""
        self._is_proposing = False
        self._check = Alarm(clock, self._look)

    def start(self) -> None:
        self._check.after(CHECK_MS)

    def stop(self) -> None:
        self._check.cancel()

    def _look(self) -> None:
        self._look_at_disk()
        failed = self._partitions.failed()
        if self.is_stalled:
            failed = [partition.identity for partition in self._partitions]
            self._reconciler.resign_lost()
        elif failed:
            self._damaged.look()
        for identity in failed:
            partition = self._partitions.get(*identity)
            if partition is not None:
                self._unfollow(partition)
        requests = self._requests(self._metadata.image, failed)
        if requests and not self._is_proposing:
            self._is_proposing = True
            self._tasks.start(self._propose(requests))
        self._check.after(CHECK_MS)

    def _look_at_disk(self) -> None:
        stalled_ms = self._stalls.longest_ms()
        was_stalled, self.is_stalled = self.is_stalled, stalled_ms >= self._settings().disk.stall_timeout_ms
        if self.is_stalled and not was_stalled:
            log.warning("disk stalled: a flush has not ended for ms=%d; other replicas are to lead", stalled_ms)
        elif was_stalled and not self.is_stalled:
            log.info("disk answers again")
            self._resumed()

    def _requests(self, image: ClusterImage, failed: Sequence[TopicPartition]) -> list[FailedLeader]:
        """Return a request for each bundle that this broker leads, and that another replica may be able to lead."""
        own = IsrMember(self._node_id, self._metadata.session.broker_epoch)
        requests = []
        lost = [identity for identity in failed if not self._partitions.is_diverged(*identity)]
        for name, number in dict.fromkeys((owner_of(identity.topic), identity.partition) for identity in lost):
            partition = image.partition(name, number)
            if partition is None or partition.leader != self._node_id or len({*partition.isr, *partition.elr}) <= 1:
                continue
            requests.append(FailedLeader(leader=own, topic_id=image.topics[name].topic_id, partition=number))
        return requests

    async def _propose(self, requests: Sequence[FailedLeader]) -> None:
        def decide(image: ClusterImage) -> Sequence[Change]:
            settings = self._settings()
            events = [partial(replaced_leader, request=request, settings=settings) for request in requests]
            return folded_events(image, events).changes

        before = self._metadata.image
        try:
            if await self._metadata.propose(decide) is not before:
                log.warning("leaderships given up partitions=%d: their logs or their disk have failed", len(requests))
        except RequestError as error:
            log.warning("leaderships not given up partitions=%d reason=%s", len(requests), error)
        finally:
            self._is_proposing = False
