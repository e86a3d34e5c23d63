"""Gives up leaderships of failed logs, and replaces the damaged logs of followers by copies of their leaders' logs.

    every second: partitions that are offline, or all while the disk does not answer
        led by this broker  -> another replica is to lead (`replaced_leader`)
        followed, damaged   -> withdrawn in a new leader epoch (`withdrawn_replica`) -> its directory is set aside
                            -> the log is recreated, empty -> copied -> in sync

The broker stays registered, as it serves its other partitions, and while the disk stalls, reads. Without this, a
partition whose leader has a bad disk would wait for that disk, although other replicas have all its records. When the
disk answers again, the broker follows the leaders again.

A log is damaged if the disk has lost a write, cannot read, or returns other bytes than were written. The log of a
leader is not replaced: another replica leads first, if there is one, so the last in-sync replica is never replaced. Nor
is a log with committed records that its leader lacks (`LogDiverged`). The damaged log stays on the disk. Until an
operator removes it, a log that fails again stays offline: otherwise a failing disk would fill up with copies. Attempts
that fail are repeated, those to copy after growing pauses.
"""

import asyncio
import logging
from collections.abc import Sequence
from functools import partial

from conveyor.broker.partitions.flusher import Flusher
from conveyor.broker.partitions.log_opening import LogOpening
from conveyor.broker.partitions.reconciler import Reconciler
from conveyor.broker.replicas.flush_stalls import CHECK_MS, FlushStalls
from conveyor.broker.services import Services
from conveyor.broker.timed_signal import Pauses
from conveyor.cluster.changes import Change
from conveyor.cluster.controller.alter_partition import IsrMember
from conveyor.cluster.controller.damaged_replicas import DamagedReplica, withdrawn_replica
from conveyor.cluster.controller.event_batch import folded_events
from conveyor.cluster.controller.failed_leaders import FailedLeader, replaced_leader
from conveyor.cluster.image import ClusterImage, TopicImage
from conveyor.kernel.alarm import Alarm
from conveyor.kernel.errors import RequestError, StorageFailure
from conveyor.kernel.ids import TopicPartition
from conveyor.kernel.signal import Signal
from conveyor.replication.partition import Partition

log = logging.getLogger(__name__)

_FIRST_PAUSE_MS = 1_000
_LONGEST_PAUSE_MS = 60_000
_COPIES_AT_ONCE = 100

_Replica = tuple[TopicImage, int]


class ReplicaRepair:
    """See the module's docstring.

    failed: a partition whose leader must not be followed now. resumed: the disk answers again.
    """

    def __init__(self, services: Services, reconciler: Reconciler, logs: LogOpening, flusher: Flusher) -> None:
        self.failed: Signal[Partition] = Signal()
        self.resumed: Signal[None] = Signal()
        self.is_stalled = False
        """True if the disk has not finished a flush for `disk.stall_timeout_ms`."""
        self._services = services
        self._metadata = services.metadata
        self._partitions = reconciler.partitions
        self._reconciler = reconciler
        self._directories = logs.directories
        self._stalls = FlushStalls(flusher, services.clock)
        self._is_giving_up = self._is_copying = False
        self._pauses = Pauses(_FIRST_PAUSE_MS, _LONGEST_PAUSE_MS)
        self._copies_from_ms = 0
        self._alarm = Alarm(services.clock, self._check)

    def start(self) -> None:
        self._alarm.after(CHECK_MS)

    def stop(self) -> None:
        self._alarm.end()

    def _check(self) -> None:
        self._check_disk()
        failed = self._partitions.failed()
        if self.is_stalled:
            failed = [partition.identity for partition in self._partitions]
            self._reconciler.resign_lost()
        for identity in failed:
            partition = self._partitions.get(*identity)
            if partition is not None:
                self.failed.emit(partition)
        leaders = [] if self._is_giving_up else self._failed_leaders(failed)
        if leaders:
            self._is_giving_up = True
            self._services.tasks.start(self._give_up(leaders))
        damaged = [] if self.is_stalled or not failed else self._damaged()
        if damaged:
            self._is_copying = True
            self._services.tasks.start(self._copy(damaged))
        self._alarm.after(CHECK_MS)

    def _check_disk(self) -> None:
        stalled_ms, limit_ms = self._stalls.longest_ms(), self._services.settings.disk.stall_timeout_ms
        was_stalled, self.is_stalled = self.is_stalled, stalled_ms >= limit_ms
        if self.is_stalled and not was_stalled:
            log.warning("disk stalled: a flush has not ended for ms=%d; other replicas are to lead", stalled_ms)
        elif was_stalled and not self.is_stalled:
            log.info("disk answers again")
            self.resumed.emit(None)

    def _own(self) -> IsrMember:
        return IsrMember(self._services.me, self._metadata.session.broker_epoch)

    def _failed_leaders(self, failed: Sequence[TopicPartition]) -> list[FailedLeader]:
        """Return a request for each bundle that this broker leads, and that another replica may be able to lead."""
        own, image = self._own(), self._metadata.image
        requests = []
        lost = [identity for identity in failed if not self._partitions.is_diverged(*identity)]
        for name, number in dict.fromkeys(
            (image.bundle_owner(identity.topic), identity.partition) for identity in lost
        ):
            partition = image.partition(name, number)
            if partition is None or partition.leader != own.node_id or len({*partition.isr, *partition.elr}) <= 1:
                continue
            requests.append(FailedLeader(leader=own, topic_id=image.topics[name].topic_id, partition=number))
        return requests

    async def _give_up(self, requests: Sequence[FailedLeader]) -> None:
        def decide(image: ClusterImage) -> Sequence[Change]:
            settings = self._services.settings  # As of this image: another broker may have changed them meanwhile.
            events = [partial(replaced_leader, request=request, settings=settings) for request in requests]
            return folded_events(image, events).changes

        before = self._metadata.image
        try:
            if await self._metadata.propose(decide) is not before:
                log.warning("leaderships given up partitions=%d: their logs or their disk have failed", len(requests))
        except RequestError as error:
            log.warning("leaderships not given up partitions=%d reason=%s", len(requests), error)
        finally:
            self._is_giving_up = False

    def _damaged(self) -> list[_Replica]:
        """Return the damaged logs to copy now: of partitions with a leader elsewhere."""
        if self._is_copying or self._services.clock.steady_ms() < self._copies_from_ms:
            return []
        damaged = [self._topic_of(identity) for identity in self._partitions.damaged()]
        return [replica for replica in damaged if replica is not None][:_COPIES_AT_ONCE]

    def _topic_of(self, identity: TopicPartition) -> _Replica | None:
        image = self._metadata.image
        partition = image.partition(*identity)
        if partition is None or partition.leader in (-1, self._services.me):
            return None
        return image.topics[identity.topic], identity.partition

    async def _copy(self, damaged: Sequence[_Replica]) -> None:
        loop = asyncio.get_running_loop()
        try:
            replaceable = await loop.run_in_executor(self._services.threads, self._replaceable, damaged)
            if replaceable:
                for identity in await self._withdrawn(replaceable):
                    await self._reconciler.recreate(identity)
                    if self._partitions.offline_reason(*identity) is None:
                        self._pauses.reset()
        except RequestError as error:
            log.warning("damaged logs not copied again partitions=%d reason=%s", len(damaged), error)
        finally:
            self._is_copying = False
            self._copies_from_ms = self._services.clock.steady_ms() + self._pauses.next_ms()

    def _replaceable(self, damaged: Sequence[_Replica]) -> list[_Replica]:
        """Return the logs that can be set aside. Blocks."""
        replaceable = []
        for topic, number in damaged:
            try:
                self._directories.check_room_aside(topic, number)
            except StorageFailure as failure:
                log.warning("damaged log stays offline partition=%s-%d: %s", topic.name, number, failure)
            else:
                replaceable.append((topic, number))
        return replaceable

    async def _withdrawn(self, replaceable: Sequence[_Replica]) -> list[TopicPartition]:
        """Leave the ISRs and the ELRs of the bundles in new leader epochs. Returns the logs for which that is done."""
        before = self._metadata.image
        names = dict.fromkeys((before.bundle_owner(topic.name), number) for topic, number in replaceable)

        def decide(image: ClusterImage) -> Sequence[Change]:
            nonlocal before
            before = image
            own, settings = self._own(), self._services.settings
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
