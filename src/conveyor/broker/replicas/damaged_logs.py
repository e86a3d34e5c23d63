"""Replaces the damaged logs of followers by copies of their leaders' logs.

    a log has failed for good -> withdrawn in a new leader epoch (`damaged_replicas`) -> its directory is set aside
        -> the log begins again, empty -> copied -> in sync

A log is damaged if the disk has lost a write, cannot read, or returns other bytes than were written. The log of a
leader is not replaced: another replica leads first, if there is one; see `failed_partitions`. So the last in-sync
replica is never replaced. Nor is a log with committed records that its leader lacks (`LogDiverged`). The damaged log
stays on the disk. Until an operator removes it, a log that fails again stays offline: otherwise a failing disk would
fill up with copies. Attempts that fail are repeated after growing pauses.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from functools import partial

from conveyor.broker.metadata.metadata import Metadata
from conveyor.broker.metadata.timed_signal import Pauses
from conveyor.broker.partitions.log_directories import LogDirectories
from conveyor.broker.partitions.partition_table import PartitionTable
from conveyor.broker.partitions.reconciler import Reconciler
from conveyor.broker.tasks import Tasks
from conveyor.cluster.changes import Change
from conveyor.cluster.controller.alter_partition import IsrMember
from conveyor.cluster.controller.damaged_replicas import DamagedReplica, withdrawn_replica
from conveyor.cluster.controller.event_batch import folded_events
from conveyor.cluster.image import ClusterImage, TopicImage
from conveyor.cluster.internal_topics import owner_of
from conveyor.kernel.errors import RequestError, StorageFailure
from conveyor.kernel.ids import NodeId, TopicPartition
from conveyor.kernel.ports import Clock
from conveyor.settings.tree import Settings

log = logging.getLogger(__name__)

_FIRST_PAUSE_MS = 1_000
_LONGEST_PAUSE_MS = 60_000
_AT_ONCE = 100
"""The logs of one attempt."""


class DamagedLogs:
    """See the module's docstring. Call `look` about every second while a partition is offline."""

    def __init__(
        self,
        *,
        metadata: Metadata,
        partitions: PartitionTable,
        reconciler: Reconciler,
        directories: LogDirectories,
        settings: Callable[[], Settings],
        clock: Clock,
        threads: Executor,
        tasks: Tasks,
        node_id: NodeId,
    ) -> None:
        self._metadata = metadata
        self._partitions = partitions
        self._reconciler = reconciler
        self._directories = directories
        self._settings = settings
        self._clock = clock
        self._threads = threads
        self._tasks = tasks
        self._node_id = node_id
        self._is_working = False
        self._pauses = Pauses(_FIRST_PAUSE_MS, _LONGEST_PAUSE_MS)
        self._not_before_ms = 0

    def look(self) -> None:
        """Replace the damaged logs that another broker leads, after the pause."""
        if self._is_working or self._clock.steady_ms() < self._not_before_ms:
            return
        damaged = map(self._topic_of, self._partitions.damaged())
        chosen = [entry for entry in damaged if entry is not None][:_AT_ONCE]
        if chosen:
            self._is_working = True
            self._tasks.start(self._replace(chosen))

    def _topic_of(self, identity: TopicPartition) -> tuple[TopicImage, int] | None:
        """Return the topic and number of a partition with a leader elsewhere."""
        image = self._metadata.image
        partition = image.partition(*identity)
        if partition is None or partition.leader in (-1, self._node_id):
            return None
        return image.topics[identity.topic], identity.partition

    async def _replace(self, chosen: Sequence[tuple[TopicImage, int]]) -> None:
        try:
            replaceable = await asyncio.get_running_loop().run_in_executor(self._threads, self._replaceable, chosen)
            if replaceable:
                for identity in await self._withdrawn(replaceable):
                    await self._reconciler.begin_again(identity)
                    if self._partitions.offline_reason(*identity) is None:
                        self._pauses.reset()
        except RequestError as error:
            log.warning("damaged logs not copied again partitions=%d reason=%s", len(chosen), error)
        finally:
            self._is_working = False
            self._not_before_ms = self._clock.steady_ms() + self._pauses.next_ms()

    def _replaceable(self, chosen: Sequence[tuple[TopicImage, int]]) -> list[tuple[TopicImage, int]]:
        """Return the logs that can be set aside. Blocks."""
        replaceable = []
        for topic, number in chosen:
            try:
                self._directories.check_room_aside(topic, number)
            except StorageFailure as failure:
                log.warning("damaged log stays offline partition=%s-%d: %s", topic.name, number, failure)
            else:
                replaceable.append((topic, number))
        return replaceable

    async def _withdrawn(self, replaceable: Sequence[tuple[TopicImage, int]]) -> list[TopicPartition]:
        """Leave the ISRs and the ELRs of the bundles in new leader epochs. Returns the logs for which that is done."""
        before = self._metadata.image
        names = dict.fromkeys((owner_of(topic.name), number) for topic, number in replaceable)

        def decide(image: ClusterImage) -> Sequence[Change]:
            nonlocal before
            before = image
            settings = self._settings()
            own = IsrMember(self._node_id, self._metadata.session.broker_epoch)
            requests = [
                DamagedReplica(replica=own, topic_id=image.topics[name].topic_id, partition=number)
                for name, number in names
                if name in image.topics
            ]
            events = [partial(withdrawn_replica, request=request, settings=settings) for request in requests]
            return folded_events(image, events).changes

        after = await self._metadata.propose(decide)
        return [
            TopicPartition(topic.name, number)
            for topic, number in replaceable
            if _has_new_epoch(before, after, topic, number)
        ]


def _has_new_epoch(before: ClusterImage, after: ClusterImage, topic: TopicImage, number: int) -> bool:
    earlier, later = before.topic_by_id(topic.topic_id), after.topic_by_id(topic.topic_id)
    if earlier is None or later is None:
        return False
    return later.partitions[number].leader_epoch > earlier.partitions[number].leader_epoch
