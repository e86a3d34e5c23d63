"""Opens the logs of this broker's partitions, and finds out which of them may lack records.

    what the checkpoint knows -> opened, off the loop -> names durable -> listed in the checkpoint -> used

See `replica_checkpoint`. A log that is missing, or ends below what was on the disk, is not opened: its partition is
offline until the log is recreated.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from typing import NamedTuple, TypeVar

from conveyor.broker.broker_ports import BrokerPorts
from conveyor.broker.partitions.log_directories import LogDirectories
from conveyor.broker.partitions.partition_table import PartitionTable
from conveyor.broker.partitions.replica_checkpoint import ReplicaCheckpoint
from conveyor.broker.services import Services
from conveyor.broker.slices import in_slices
from conveyor.cluster.assignment_diff import Close
from conveyor.cluster.controller.registrations import Doubt
from conveyor.cluster.image import ClusterImage, TopicImage
from conveyor.kernel.errors import LogDamaged, LogIncomplete, Remedy, StorageFailure, TransientFailure, remedy_of
from conveyor.kernel.ids import LeaderEpoch, NodeId, TopicId, TopicPartition
from conveyor.log.log import Log
from conveyor.log.log_parts import ExpectedLog
from conveyor.log.log_probe import LogProbe
from conveyor.replication.replica_facts import ReplicaKey
from conveyor.settings.tree import TopicSettings, topic_settings

log = logging.getLogger(__name__)

Result = TypeVar("Result")


class _Plan(NamedTuple):
    """A log to open."""

    topic: TopicImage
    number: int
    settings: TopicSettings
    expected: ExpectedLog

    @property
    def key(self) -> ReplicaKey:
        return ReplicaKey(self.topic.topic_id, self.number)


class _Unusable(NamedTuple):
    """A log that cannot be opened. found_epoch: the leader epoch at that time. is_damaged: otherwise it, or its end, is
    missing.
    """

    topic_id: TopicId
    found_epoch: LeaderEpoch
    is_damaged: bool


class LogOpening:
    """See the module's docstring. doubts: about the logs that were opened or are missing."""

    def __init__(self, directories: LogDirectories, checkpoint: ReplicaCheckpoint, threads: Executor) -> None:
        self.directories = directories
        self.checkpoint = checkpoint
        self.doubts: dict[TopicPartition, Doubt] = {}
        self._threads = threads
        self._unusable: dict[TopicPartition, _Unusable] = {}

    async def open(
        self, opening: Sequence[tuple[TopicImage, int]], defaults: TopicSettings, partitions: PartitionTable
    ) -> list[Log | StorageFailure]:
        """Open logs, or create them. They can be used when this returns. partitions: those that are opened again are
        there, offline.
        """
        topics = {topic.name: topic for topic, _ in opening}
        settings = {name: topic_settings(defaults, topic.config) for name, topic in topics.items()}
        plans = []
        for topic, number in opening:
            image, key = topic.partitions[number], ReplicaKey(topic.topic_id, number)
            expected = self.checkpoint.expected(key, partitions.get(topic.name, number))
            expected = expected._replace(leader_epoch=image.leader_epoch)
            plans.append(_Plan(topic, number, settings[topic.name], expected))
        opened = await self.off_loop(self._open_all, plans)
        async for plan, result in in_slices(zip(plans, opened, strict=True)):
            self._note(plan, result)
        try:
            await self.checkpoint.ensure_listed(
                plan.key for plan, result in zip(plans, opened, strict=True) if isinstance(result, Log)
            )
        except TransientFailure as failure:
            return [self._unlisted(plan, result, failure) for plan, result in zip(plans, opened, strict=True)]
        return opened

    async def close(self, steps: Sequence[Close], kept: Sequence[Close]) -> list[str]:
        """Free the names of closed partitions. Returns the directories to remove.

        kept: not removed, also if they cannot be renamed.
        """
        for step in steps:
            self.checkpoint.forget(ReplicaKey(step.topic.topic_id, step.number))
            self._unusable.pop(TopicPartition(step.topic.name, step.number), None)
        for step in kept:
            await self.off_loop(self.directories.keep, step.topic, step.number)
        retired = [(step.topic, step.number) for step in steps if step not in kept]
        return await self.off_loop(self.directories.retire, retired)

    async def recreate(self, topic: TopicImage, number: int, *, is_given_up: bool) -> StorageFailure | None:
        """Let a log be created again, empty, when it is opened next; is_given_up: as the rest of it, if that is sound
        and has a segment.

        Its directory is set aside. Returns the failure, if any; after a TransientFailure call it again.
        """
        identity = TopicPartition(topic.name, number)
        unusable = self._unusable.get(identity)
        keeps_rest = is_given_up and unusable is not None and not unusable.is_damaged
        if not keeps_rest or not await self.off_loop(self.directories.has_segments, topic, number):
            kept = await self.off_loop(self.directories.set_aside, topic, number)
            if kept is not None:
                return kept
        self.checkpoint.forget(ReplicaKey(topic.topic_id, number))
        try:
            await self.checkpoint.write()
        except TransientFailure as failure:
            log.warning("log not recreated partition=%s-%d reason=%s", topic.name, number, failure)
            return failure
        self._unusable.pop(identity, None)
        return None

    def given_up(self, image: ClusterImage, node_id: NodeId) -> set[TopicPartition]:
        """Return the partitions whose lost records an unclean election of this broker has given up since."""
        return {
            identity
            for identity, unusable in self._unusable.items()
            if (topic := image.topic_by_id(unusable.topic_id)) is not None
            and (partition := topic.partitions[identity.partition]).leader == node_id
            and partition.unclean_epoch > unusable.found_epoch
        }

    async def off_loop(self, work: Callable[..., Result], *arguments: object) -> Result:
        return await asyncio.get_running_loop().run_in_executor(self._threads, work, *arguments)

    def _open_all(self, plans: Sequence[_Plan]) -> list[Log | StorageFailure]:
        """Blocks. The checkpoint must not list a log whose directory a power cut removes again."""
        are_new = [not self.directories.has(plan.topic, plan.number) for plan in plans]
        opened = [self.directories.open(plan.topic, plan.number, plan.settings, plan.expected) for plan in plans]
        if any(are_new):
            try:
                self.directories.sync()
            except StorageFailure as reason:
                failure = TransientFailure(str(reason))
                return [
                    _abandoned(result, failure) if is_new else result
                    for result, is_new in zip(opened, are_new, strict=True)
                ]
        return opened

    def _note(self, plan: _Plan, result: Log | StorageFailure) -> None:
        key, identity = plan.key, TopicPartition(plan.topic.name, plan.number)
        if isinstance(result, StorageFailure) and remedy_of(result) is Remedy.COPY:
            is_damaged, found = not isinstance(result, LogIncomplete), self._unusable.get(identity)
            if found is None or found.topic_id != key.topic_id:
                found_epoch = plan.topic.partitions[plan.number].leader_epoch
                self._unusable[identity] = _Unusable(key.topic_id, found_epoch, is_damaged)
        if isinstance(result, LogIncomplete):
            self.doubts[identity] = Doubt.LOST
            return self.checkpoint.add(key, None)
        opened = result if isinstance(result, Log) else None
        if self.checkpoint.is_unproven(key, opened):
            self.doubts[identity] = Doubt.UNPROVEN
        if opened is not None or isinstance(result, LogDamaged):  # The next start knows whose directory it is.
            self.checkpoint.add(key, opened)

    def _unlisted(self, plan: _Plan, result: Log | StorageFailure, failure: StorageFailure) -> Log | StorageFailure:
        is_listed = not isinstance(result, Log) or self.checkpoint.lists(plan.key)
        return result if is_listed else _abandoned(result, failure)


def _abandoned(result: Log | StorageFailure, failure: StorageFailure) -> StorageFailure:
    if isinstance(result, Log):
        result.abandon()
        return failure
    return result


def make_log_opening(services: Services, partitions: PartitionTable, ports: BrokerPorts, probe: LogProbe) -> LogOpening:
    """Assemble the parts."""
    is_alone = services.metadata.session.is_embedded
    checkpoint = ReplicaCheckpoint(services, partitions, ports.disk, cache_id=ports.cache_id, is_alone=is_alone)
    producers = services.settings.producers
    directories = LogDirectories(disk=ports.disk, clock=ports.clock, producers=producers, probe=probe)
    return LogOpening(directories, checkpoint, ports.threads)
