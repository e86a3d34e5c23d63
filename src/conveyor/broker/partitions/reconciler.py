"""Opens, configures and closes this broker's partitions by the newest image. No other code opens or closes them.

    image -> steps (`assignment_steps`) -> close -> open, off the loop -> configure -> assume roles -> tell listeners

One task applies the images in order, so steps for one name never overlap: a topic that is deleted and created again is
closed and its directory renamed before the name is opened. A step that fails leaves its partition offline with the
reason; `reopen` retries it in the same task.

This broker leads only by an image that shows its present registration (`BrokerSession.may_lead`). When it loses the
registration it resigns all leaderships at once; its next registration begins new leader epochs.

A log that was not stopped cleanly may have lost records that a consumer has read. Its leader therefore needs a new
leader epoch. In a cluster the controller begins one when the broker registers. With an embedded store the broker
proposes it, and in a cluster for a log that is opened again and has no other replica to be copied from. While the epoch
cannot be stored, the leader is read-only in the previous epoch, and `raise_epochs` retries the proposal.
"""

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from conveyor.broker.answers import answered
from conveyor.broker.metadata.applied_image import broker_stops
from conveyor.broker.partitions.leadership_changes import LeadershipChanges
from conveyor.broker.partitions.log_opening import LogOpening
from conveyor.broker.partitions.log_task_runner import LogTaskRunner
from conveyor.broker.partitions.partition_table import PartitionTable
from conveyor.broker.services import Services
from conveyor.broker.slices import in_slices
from conveyor.broker.timed_signal import Pauses
from conveyor.cluster.assignment_diff import Assume, Close, Configure, Open, assignment_steps
from conveyor.cluster.cluster_defaults import min_insync_replicas
from conveyor.cluster.controller.damaged_replicas import is_withdrawn
from conveyor.cluster.controller.image_draft import MOST_BUNDLES
from conveyor.cluster.controller.partition_transition import effective_min_insync
from conveyor.cluster.image import NO_LEADER, ClusterImage, PartitionImage, TopicImage
from conveyor.cluster.topic_decisions import EpochsSeen, raised_epochs
from conveyor.kernel.errors import RequestError, StorageFailure, TransientFailure
from conveyor.kernel.ids import LeaderEpoch, TopicId, TopicPartition
from conveyor.kernel.signal import Signal
from conveyor.log.log import Log
from conveyor.replication.leader_term import LeaderTerm
from conveyor.replication.partition import Partition
from conveyor.replication.roles import Follower, Leader, Role
from conveyor.replication.term_context import OwnerCalls
from conveyor.settings.tree import Settings, TopicSettings, topic_settings

log = logging.getLogger(__name__)


class Assumed(NamedTuple):
    """A partition was opened, or its role or its replicas may have changed."""

    topic: TopicImage
    partition: Partition


class Reconciler:
    """See the module's docstring. calls: those that the partitions make.

    closed: a partition was closed, or another one takes its place. will_lead: this broker leads a partition as soon as
    a change of its files has ended.
    """

    def __init__(
        self,
        services: Services,
        partitions: PartitionTable,
        logs: LogOpening,
        log_tasks: LogTaskRunner,
        calls: OwnerCalls[Partition],
    ) -> None:
        self.leadership = LeadershipChanges(partitions)
        self.assumed: Signal[Assumed] = Signal()
        self.closed: Signal[Partition] = Signal()
        self.will_lead: Signal[Partition] = Signal()
        self._services = services
        self._metadata = services.metadata
        self.partitions = partitions
        self._logs = logs
        logs.checkpoint.softened.listen(self._configure_again)
        self._log_tasks = log_tasks
        log_tasks.ended.listen(self._log_task_ended)
        self._calls = calls
        self._node_id = services.me
        self._configured = services.settings.topics
        """The settings of open partitions whose topics have none of their own."""
        services.settings_changed.listen(self._settings_changed)
        self._applied = ClusterImage(seq=-1)
        self._may_lead = False
        """True if this broker may lead by the applied image."""
        self._is_running = False
        self._is_stopped = False
        self._reopening: dict[TopicPartition, Signal[RequestError | None]] = {}
        self._recreating: set[TopicPartition] = set()
        """The partitions to reopen whose damaged logs are recreated."""
        self._removing: set[asyncio.Event] = set()
        self._preparing: set[Partition] = set()
        """The partitions that this broker is to lead when a change of their files has ended."""
        self._late: set[TopicPartition] = set()
        """The partitions whose roles are to be assumed, because their files are not being changed any more."""
        self._epochs_due: dict[tuple[TopicId, int], LeaderEpoch] = {}
        """The leader epochs, by topic id and partition, in which appends are not allowed; see the module's docstring.
        """
        self._raising = Pauses()
        """How often the leader epochs could not be stored; the disk watch determines when it is tried again."""

    async def start(self) -> None:
        """Open all partitions assigned to this broker. Raises StorageFailure."""
        set_aside, used = self._logs.directories.set_strays_aside, self._logs.checkpoint.used
        await self._logs.off_loop(set_aside, self._metadata.image, self._node_id, used)
        self._metadata.listen(self._observe)
        self._metadata.session.lost.listen(self._registration_lost)
        self._metadata.session.lease_renewed.listen(self._lease_renewed)
        self._wake()
        await self._metadata.applied.settled(self._metadata.image.seq)

    async def opened(self, topic: TopicImage) -> None:
        """Return once this broker has applied this image of a topic, or a later one."""
        if not self.has_applied(topic):
            await self._metadata.applied.settled(self._metadata.image.seq)

    def has_applied(self, topic: TopicImage) -> bool:
        """Return whether this broker has opened, followed and closed partitions as this image of a topic says."""
        return self._applied.topics.get(topic.name) is topic

    async def removed(self) -> None:
        """Return once the directories of all partitions closed so far are removed."""
        for removed in list(self._removing):
            await removed.wait()

    async def reopen(self, identity: TopicPartition) -> None:
        """Reopen a partition whose failure may have passed. Returns once that has succeeded or failed."""
        self._metadata.applied.check_running()
        reopened = self._reopening.setdefault(identity, Signal())
        self._wake()
        await answered(reopened.next)

    async def recreate(self, identity: TopicPartition) -> None:
        """Set a damaged log aside and begin a new one, to be copied from the leader. Only for a replica that is not
        expected to have any record; see `damaged_replicas`. Returns once that has succeeded or failed.
        """
        self._recreating.add(identity)
        await self.reopen(identity)

    async def raise_epochs(self) -> None:
        """Store the leader epochs that are due, in portions that fit in an entry, if the store has space now."""
        due = list(self._epochs_due.items())
        try:
            for start in range(0, len(due), MOST_BUNDLES):
                await self._raise(dict(due[start : start + MOST_BUNDLES]))
        except RequestError as error:
            log.log(
                self._raising.log_level, "leader epochs not stored partitions=%d: read-only until they are; reason=%s",
                len(self._epochs_due), error,
            )  # fmt: skip
            self._raising.next_ms()
        else:
            self._raising.reset()

    async def _raise(self, due: EpochsSeen) -> None:
        await self._metadata.propose(lambda image: raised_epochs(image, due, self._node_id))
        for key, epoch in due.items():
            if self._epochs_due.get(key) == epoch:  # Otherwise the log has lost records in the raised epoch, too.
                del self._epochs_due[key]

    def _settings_changed(self, before: Settings) -> None:
        if before.topics != self._services.settings.topics and self._applied.seq >= 0:
            self._wake()

    def _configure_again(self, _: None) -> None:
        """A setting that had to wait may take effect."""
        self._configured = replace(self._configured)
        self._wake()

    def stop(self) -> None:
        """Open and close no more partitions, and release all waiting callers. The next start continues."""
        self._is_stopped = True
        self._give_up()
        for removed in self._removing:
            removed.set()

    def resign(self) -> None:
        """Stop leading. All waiters get NOT_LEADER."""
        for partition in self.partitions:
            if partition.leader_term is not None:
                self._resign(partition, partition.leader_term)

    def resign_lost(self) -> None:
        """Stop leading what other brokers lead by the newest image, although the disk may keep this task busy."""
        image = self._metadata.image
        for partition in self.partitions:
            stored, term = image.partition(*partition.identity), partition.leader_term
            if term is not None and stored is not None and stored.leader_epoch > term.epoch:
                self._resign(partition, term)
        self.leadership.notify()

    def _resign(self, partition: Partition, term: LeaderTerm) -> None:
        partition.assume(term.role.resigned())
        self.leadership.changed(partition.identity)

    def _log_task_ended(self, partition: Partition) -> None:
        if partition in self._preparing:
            self._preparing.remove(partition)
            self._late.add(partition.identity)
            self._wake()

    def _observe(self, old: ClusterImage, new: ClusterImage) -> None:
        """Take deleted partitions offline at once, even while the task is busy: another topic may get their name."""
        if old.names_by_id is not new.names_by_id:
            for topic_id in old.names_by_id.keys() - new.names_by_id.keys():
                topic = old.topics[old.names_by_id[topic_id]]
                for number in range(len(topic.partitions)):
                    self._end(TopicPartition(topic.name, number), "its topic was deleted")
        self._wake()

    def _lease_renewed(self, _: None) -> None:
        for partition in self.partitions:
            term = partition.leader_term
            if term is not None and term.role.needs_lease:
                term.advance()

    def _registration_lost(self, _: None) -> None:
        self.resign()
        self._wake()

    def _wake(self) -> None:
        if not self._is_running and not self._is_stopped:
            self._is_running = True
            self._services.tasks.start(self._run())

    async def _run(self) -> None:
        try:
            while self._is_behind or self._reopening or self._late:
                await self._apply(self._metadata.image)
        except BaseException:
            self._give_up()
            raise
        finally:
            self._is_running = False

    def _give_up(self) -> None:
        """Release all waiting callers, because the broker stops or has met a bug."""
        self._metadata.applied.stop()
        reopening, self._reopening = self._reopening, {}
        for reopened in reopening.values():
            reopened.emit(broker_stops())

    @property
    def _is_behind(self) -> bool:
        image = self._metadata.image
        may_lead = self._metadata.session.may_lead(image)
        is_configured = self._configured is self._services.settings.topics
        return self._applied is not image or not is_configured or self._may_lead != may_lead

    async def _apply(self, image: ClusterImage) -> None:
        """Apply this image and the newest defaults, and reopen the requested partitions."""
        defaults, may_lead = self._services.settings.topics, self._metadata.session.may_lead(image)
        steps = assignment_steps(self._applied, image, self._node_id)
        reopening = list(self._reopening)
        await self._close([step for step in steps if isinstance(step, Close)])
        to_open = [(step.topic, step.number) for step in steps if isinstance(step, Open)]
        to_open += await self._set_aside(image, reopening)
        await self._open(to_open + self._to_reopen(image, reopening), defaults)
        for step in steps:
            if isinstance(step, Configure):
                self._configure(image, step.topic, defaults)
            elif isinstance(step, Assume):
                self._assume(image, step.topic, step.number)
        late, self._late = self._late, set()
        for identity in late:
            self._assume_known(image, identity)
        if may_lead != self._may_lead:
            self._assume_all(image)
        if self._configured is not defaults:
            for topic in image.topics.values():
                self._configure(image, topic, defaults)
        self._applied, self._configured, self._may_lead = image, defaults, may_lead
        lost = self.leadership.notify()
        self._metadata.applied.advance(image.seq)
        for identity in reopening:
            self._reopening.pop(identity).emit(None)
        async for _ in in_slices(range(len(lost))):
            lost.pop()  # The last reference to a partition closes its files.

    async def _close(self, steps: Sequence[Close]) -> None:
        """End partitions, rename their directories, and remove those directories in a separate task."""
        if not steps:
            return
        kept = []
        for step in steps:
            identity = TopicPartition(step.topic.name, step.number)
            if not step.is_deleted and self.partitions.is_diverged(*identity):
                kept.append(step)
            self._end(identity, "its topic was deleted" if step.is_deleted else "other brokers hold it")
        retired = await self._logs.close(steps, kept)
        removed = asyncio.Event()
        self._removing.add(removed)
        self._services.tasks.start(self._remove(retired, removed))

    def _end(self, identity: TopicPartition, reason: str) -> None:
        partition = self.partitions.remove(identity)
        if partition is not None:
            partition.log.place.end()
            partition.end(reason)
            self.leadership.closed(identity)
            self.closed.emit(partition)

    async def _remove(self, directories: Sequence[str], removed: asyncio.Event) -> None:
        for directory in directories:
            await self._logs.off_loop(self._logs.directories.remove, directory)
        self._removing.discard(removed)
        removed.set()

    def _to_reopen(self, image: ClusterImage, identities: Sequence[TopicPartition]) -> list[tuple[TopicImage, int]]:
        """Return the requested partitions that still exist and may still be reopened."""
        return [
            (image.topics[name], number)
            for name, number in identities
            if image.partition(name, number) is not None and self.partitions.may_return(name, number)
        ]

    async def _set_aside(
        self, image: ClusterImage, identities: Sequence[TopicPartition]
    ) -> list[tuple[TopicImage, int]]:
        """Rename the directories of the damaged logs that are recreated. Returns those to open."""
        chosen, self._recreating = self._recreating.intersection(identities), self._recreating.difference(identities)
        given_up = self._logs.given_up(image, self._node_id)
        to_open = []
        for name, number in chosen | given_up:
            stored = image.partition(name, number)
            if stored is None or not self.partitions.may_recreate(name, number):
                continue
            is_given_up = (name, number) in given_up
            if not is_given_up and not is_withdrawn(stored, self._node_id):
                continue
            topic = image.topics[name]
            failure = await self._logs.recreate(topic, number, is_given_up=is_given_up)
            if failure is None:
                to_open.append((topic, number))
            elif not isinstance(failure, TransientFailure):
                self.partitions.put_unopened(TopicPartition(name, number), failure)
        return to_open

    async def _open(self, opening: Sequence[tuple[TopicImage, int]], defaults: TopicSettings) -> None:
        """Open logs off the loop, raise the leader epochs where required, then serve the partitions."""
        if not opening:
            return
        logs = await self._logs.open(opening, defaults, self.partitions)
        for (topic, number), opened in zip(opening, logs, strict=True):
            if not isinstance(opened, Log) or opened.recovered.was_stopped_cleanly:
                continue
            before = self.partitions.get(topic.name, number)
            if self._metadata.session.is_embedded if before is None else _has_lost_records(before, opened):
                self._epochs_due[topic.topic_id, number] = topic.partitions[number].leader_epoch
        await self.raise_epochs()
        async for (topic, number), opened in in_slices(zip(opening, logs, strict=True)):
            self._put(self._newest(topic), number, opened)

    def _newest(self, topic: TopicImage) -> TopicImage:
        """Return the topic's newest image, or the given one if the topic was deleted."""
        return self._metadata.image.topic_by_id(topic.topic_id) or topic

    def _put(self, topic: TopicImage, number: int, opened: Log | StorageFailure) -> None:
        identity = TopicPartition(topic.name, number)
        is_again = self.partitions.get(*identity) is not None or self.partitions.unopened(*identity) is not None
        if isinstance(opened, StorageFailure):
            return self.partitions.put_unopened(identity, opened)
        before, role = self.partitions.get(*identity), self._role(self._metadata.image, topic, number)
        # The image may show a join that this leader has asked for before the failure.
        term = None if before is None else before.leader_term
        joining = {} if term is None or term.epoch < role.epoch else term.replicas.joining
        partition = Partition(identity, opened, role, self._calls, joining)
        self.partitions.put(partition)
        if before is not None:
            self.closed.emit(before)
        self.assumed.emit(Assumed(topic, partition))
        self.leadership.changed(identity)
        if is_again:
            log.info("partition online again partition=%s log_end_offset=%d", identity, opened.log_end_offset)

    def _assume_all(self, image: ClusterImage) -> None:
        for partition in list(self.partitions):
            self._assume_known(image, partition.identity)

    def _assume_known(self, image: ClusterImage, identity: TopicPartition) -> None:
        if image.partition(*identity) is not None:
            self._assume(image, image.topics[identity.topic], identity.partition)

    def _assume(self, image: ClusterImage, topic: TopicImage, number: int) -> None:
        partition = self.partitions.get(topic.name, number)
        if partition is None:
            return
        before, role = partition.term.role, self._role(image, topic, number)
        if isinstance(role, Leader) and partition.leader_term is None and not self._is_ready_to_lead(partition):
            return
        is_late = image.seq < self._metadata.image.seq
        if not _is_older(role, before, is_late=is_late):  # Otherwise a newer image has opened it, or let it resign.
            partition.assume(role)
            self.assumed.emit(Assumed(topic, partition))
        if partition.term.epoch > before.epoch or type(partition.term.role) is not type(before):
            self.leadership.changed(partition.identity)

    def _is_ready_to_lead(self, partition: Partition) -> bool:
        """Other partitions do not wait for one whose files are being changed: the disk may take long."""
        if not self._log_tasks.is_busy(partition):
            return True
        self._preparing.add(partition)
        self.will_lead.emit(partition)
        return False

    def _role(self, image: ClusterImage, topic: TopicImage, number: int) -> Role:
        """Return the role by an image. The topic is that of the image, or was deleted."""
        partition = topic.partitions[number]
        is_led_here = partition.leader == self._node_id
        if not is_led_here or not self._metadata.session.may_lead(image):
            leader = None if is_led_here or partition.leader == NO_LEADER else partition.leader
            has_all_committed = self._node_id in (*partition.isr, *partition.elr)
            return Follower(
                leader=leader, epoch=partition.leader_epoch, unclean_epoch=partition.unclean_epoch,
                has_all_committed=has_all_committed,
            )  # fmt: skip
        is_read_only = self._epochs_due.get((topic.topic_id, number)) == partition.leader_epoch
        return Leader(
            leader=partition.leader,
            epoch=partition.leader_epoch,
            isr=partition.isr,
            is_read_only=is_read_only,
            partition_epoch=partition.partition_epoch,
            min_isr=_min_isr(image, topic, partition),
            replicas=partition.replicas,
        )

    def _configure(self, image: ClusterImage, topic: TopicImage, defaults: TopicSettings) -> None:
        settings = topic_settings(defaults, topic.config)
        for number in range(len(topic.partitions)):
            partition = self.partitions.get(topic.name, number)
            if partition is not None:
                partition.use(self._logs.checkpoint.allowed(partition.log, number, settings))
                self._assume_bundle(image, topic, number)

    def _assume_bundle(self, image: ClusterImage, topic: TopicImage, number: int) -> None:
        """The minimum ISR of a topic is also that of its companions."""
        if len(topic.partitions[number].replicas) == 1:
            return
        for member in (topic, *image.companions(topic.name)):
            self._assume_known(image, TopicPartition(member.name, number))


def _is_older(role: Role, before: Role, *, is_late: bool) -> bool:
    """Return whether a role is of an older image than the previous role. Leaders of one epoch have partition epochs; a
    leader that has resigned does not lead again in its epoch. is_late: the role's image is not the newest.
    """
    if isinstance(role, Leader) and role.epoch == before.epoch:
        return is_late if isinstance(before, Follower) else role.partition_epoch < before.partition_epoch
    return role.epoch < before.epoch


def _min_isr(image: ClusterImage, topic: TopicImage, partition: PartitionImage) -> int:
    """Return the size of the ISR below which the controller makes other replicas eligible leaders.

    The ISR and its minimum are of one image: a later minimum might be lower because an ELR of this image was elected.
    """
    if len(partition.replicas) == 1:
        return 1
    owner = image.topics.get(image.bundle_owner(topic.name), topic)
    return effective_min_insync(partition, min_insync_replicas(image, owner))


def _has_lost_records(before: Partition, opened: Log) -> bool:
    """Return whether a log that was opened again lacks records that followers, and so clients, may have."""
    return before.leader_term is not None and opened.log_end_offset < before.log.written_offset
