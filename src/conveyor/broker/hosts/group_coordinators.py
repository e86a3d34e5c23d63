"""Coordinators of consumer groups: a partition of `__consumer_offsets` and its state machine coordinate a group.

A coordinator is loaded on the first request; requests wait until it is loaded. A changed set of topics is passed to a
coordinator before its next command.

A broker that has lost its session may not know yet that another one coordinates its groups. Replies to commands that
write records wait for replicas, which no longer follow such a broker; committed offsets are given only by a broker that
is sure, because an older offset would make a consumer read again what its group has committed.
"""

import asyncio
from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from functools import partial
from typing import Any
from uuid import UUID

from conveyor.broker.answers import Answer, answered
from conveyor.broker.hosts.coordinator_topic import CoordinatorTopic, as_coordinator, coordinator_error
from conveyor.broker.hosts.host import MARKER_PATIENCE_MS, Host
from conveyor.broker.metadata.metadata import Metadata
from conveyor.broker.partitions.partition_table import PartitionTable
from conveyor.broker.tasks import Tasks
from conveyor.broker.topics.topics import Topics
from conveyor.cluster.image import OFFSETS_TOPIC, BrokerImage, ClusterImage
from conveyor.groups.group_commands import (
    FetchOffsets,
    GroupCommand,
    ListGroups,
    OneGroupCommand,
    UpdateSettings,
    UpdateTopics,
)
from conveyor.groups.group_machine import GroupMachine
from conveyor.groups.known_topics import KnownTopic, KnownTopics
from conveyor.groups.replies import ListedGroup
from conveyor.kernel.coordinator_partition import partition_for_key
from conveyor.kernel.errors import ErrorKind, RequestError, StorageFailure
from conveyor.kernel.ids import TopicPartition
from conveyor.kernel.ports import Clock
from conveyor.kernel.state_machine import Token
from conveyor.records.transaction_marker import TransactionMarker
from conveyor.replication.machine_runner import TransactionalRunner, lease_expired, replay_transactions
from conveyor.replication.partition import Partition
from conveyor.replication.roles import Leader
from conveyor.settings.tree import GroupsSettings

GroupRunner = TransactionalRunner[GroupCommand[object]]
SettingsOfGroups = tuple[GroupsSettings, Mapping[str, GroupsSettings]]
"""The defaults, and the complete settings of groups that override some, by group id."""

_MEMBER_NAME_LENGTH = 255


class Coordinator:
    """The machine of one partition, with its current settings and topics.

    is_sure: whether this broker certainly still leads what the newest image says.
    """

    def __init__(
        self, partition: Partition, runner: GroupRunner, settings: SettingsOfGroups, is_sure: Callable[[], bool]
    ) -> None:
        self.partition = partition
        self.runner = runner
        self._settings: SettingsOfGroups | None = settings
        self._is_sure = is_sure
        self._topics: KnownTopics | None = None

    def submit(self, command: GroupCommand[Answer], respond: Callable[[Answer | RequestError], None]) -> Token:
        """See `MachineRunner.submit`."""
        needs_sureness = isinstance(command, FetchOffsets)
        return self.runner.submit(command, partial(self._respond_if_sure if needs_sureness else _respond, respond))

    async def ask(self, command: GroupCommand[Answer]) -> Answer:
        """Return the machine's reply, once it is durable. Raises RequestError."""

        def submit(respond: Callable[[Answer | RequestError], None]) -> Callable[[], None]:
            token = self.submit(command, respond)
            return lambda: self.runner.forget(token)

        return await answered(submit)

    def update_topics(self, topics: KnownTopics) -> None:
        """Pass the topics to the machine, unless it has them already. If it refuses them, the next call repeats it."""
        if self._topics is not topics:
            self._topics = topics
            self.runner.submit(UpdateTopics(topics=topics), self._topics_taken)

    def use(self, settings: SettingsOfGroups) -> None:
        """Apply settings from now on. If the machine refuses them, the next call repeats it."""
        if self._settings is not settings:
            self._settings = settings
            self.runner.submit(UpdateSettings(defaults=settings[0], own=settings[1]), self._settings_taken)

    def stop(self) -> None:
        self.runner.stop()

    def _topics_taken(self, reply: object) -> None:
        if isinstance(reply, RequestError):
            self._topics = None

    def _settings_taken(self, reply: object) -> None:
        if isinstance(reply, RequestError):
            self._settings = None

    def _respond_if_sure(self, respond: Callable[[Any], None], reply: object) -> None:
        role = self.partition.term.role
        has_successors = isinstance(role, Leader) and len(role.isr) > 1
        _respond(respond, lease_expired(self.partition) if has_successors and not self._is_sure() else reply)


class CoordinatorKind:
    """How coordinators are loaded."""

    name = "group coordinator"

    def __init__(
        self, settings: SettingsOfGroups, clock: Clock, threads: Executor, is_sure: Callable[[], bool]
    ) -> None:
        self.settings = settings
        self._is_sure = is_sure
        self._clock = clock
        self._threads = threads

    def logs(self, partition: Partition) -> tuple[Partition]:
        return (partition,)

    async def load(self, partition: Partition, check_wanted: Callable[[], None]) -> Coordinator:
        settings = self.settings
        machine = GroupMachine(*settings)
        with as_coordinator():
            partition.leading()
            await asyncio.get_running_loop().run_in_executor(self._threads, _replay, partition, machine)
            partition.leading()  # Another broker may lead it by now.
        check_wanted()
        machine.loaded(self._clock.now_ms())
        runner = TransactionalRunner(partition, machine, self._clock)
        coordinator = Coordinator(partition, runner, settings, self._is_sure)
        coordinator.use(self.settings)
        return coordinator

    def try_continue(self, machine: Coordinator, partition: Partition) -> bool:
        return machine.partition is partition


class Groups:
    """See the module's docstring."""

    def __init__(
        self, *, metadata: Metadata, topics: Topics, partitions: PartitionTable, settings: GroupsSettings,
        own_settings: Mapping[str, GroupsSettings], clock: Clock, threads: Executor,
        tasks: Tasks, new_id: Callable[[], UUID],
    ) -> None:  # fmt: skip
        self._metadata = metadata
        self._topic = CoordinatorTopic(OFFSETS_TOPIC, "groups.offsets_replication_factor", metadata, topics)
        self._partitions = partitions
        self._tasks = tasks
        self._new_id = new_id
        self._kind = CoordinatorKind((settings, own_settings), clock, threads, metadata.session.holds_lease)
        self._host: Host[Coordinator] = Host(self._kind, clock, tasks, retry_ms=None)
        self._known = (metadata.image.topics, _known_topics(metadata.image))

    def new_member_id(self, client_id: str) -> str:
        """Return a new member id. A long client id is cut, so that the result fits a Kafka string."""
        return f"{client_id[:_MEMBER_NAME_LENGTH]}-{self._new_id()}"

    def new_consumer_id(self) -> str:
        """Return an id for a member of the consumer protocol that has not chosen one."""
        return str(self._new_id())

    async def find_coordinator(self, group_id: str) -> BrokerImage:
        """Return the coordinator of a group. Creates the offsets topic if it is missing. Raises RequestError."""
        return await self._topic.coordinator_of(group_id)

    def submit(
        self, command: OneGroupCommand[Answer], respond: Callable[[Answer | RequestError], None]
    ) -> Callable[[], None] | None:
        """Send a command to a group's coordinator. `respond` is called once with its reply or a RequestError.

        Returns a function that withdraws the caller, unless the coordinator must be loaded first.
        """
        coordinator = self._host.running(TopicPartition(OFFSETS_TOPIC, self._topic.partition_number(command.group_id)))
        if coordinator is None:
            self._tasks.start(self._submit_when_loaded(command, respond))
            return None
        self._update(coordinator)
        token = coordinator.submit(command, respond)
        return lambda: coordinator.runner.forget(token)

    async def ask(self, command: OneGroupCommand[Answer]) -> Answer:
        """Return the reply of a group's coordinator. Raises RequestError."""
        return await answered(lambda respond: self.submit(command, respond))

    async def coordinator(self, group_id: str) -> Coordinator:
        """Return a group's coordinator, once it is loaded. Raises RequestError."""
        coordinator = await self._loaded((await self.offsets_partition(group_id)).partition)
        self._update(coordinator)
        return coordinator

    def is_running(self, coordinator: Coordinator) -> bool:
        """Return whether a coordinator still has its partition."""
        return self._host.running(coordinator.partition.identity) is coordinator

    async def offsets_partition(self, group_id: str) -> TopicPartition:
        """Return the partition of a group's offsets. Creates the topic if it is missing. Raises RequestError."""
        topic = await self._topic.ensured()
        return TopicPartition(OFFSETS_TOPIC, partition_for_key(group_id, len(topic.partitions)))

    async def append_marker(self, partition: Partition, marker: TransactionMarker, transaction_version: int) -> None:
        """End a producer's transaction in the coordinator of a partition; see `TransactionalRunner.append_marker`."""
        coordinator = await self._host.loaded(partition, MARKER_PATIENCE_MS)
        coordinator.runner.append_marker(marker, transaction_version)

    async def list_groups(self, command: ListGroups) -> list[ListedGroup]:
        """Return the groups that this broker coordinates. Raises RequestError."""
        groups: list[ListedGroup] = []
        for number in range(self._topic.partition_count()):
            try:
                coordinator = await self._loaded(number)
            except RequestError as error:
                if error.kind is ErrorKind.NOT_COORDINATOR:
                    continue
                raise
            groups += (await coordinator.ask(command)).groups
        return sorted(groups, key=lambda group: group.group_id)

    def use(self, settings: GroupsSettings, own: Mapping[str, GroupsSettings]) -> None:
        """Apply settings from now on. own: the complete settings of groups that override some, by group id."""
        if (settings, own) != self._kind.settings:
            self._kind.settings = (settings, own)
            for coordinator in self._host.all_running():
                coordinator.use(self._kind.settings)

    def gained(self, partition: Partition) -> None:
        """Load the coordinator of a reopened partition again, if it was loaded before."""
        if partition.identity in {hosted.identity for hosted in self._host.partitions()}:
            self._host.gained(partition)

    def lost(self, partition: Partition) -> None:
        """Stop coordinating the groups of a partition."""
        self._host.lost(partition)

    def stop(self) -> None:
        """Answer every waiting request."""
        self._host.stop()

    def _update(self, coordinator: Coordinator) -> None:
        """Pass the present topics and settings to a coordinator, unless it has them already."""
        coordinator.update_topics(self._known_topics())
        coordinator.use(self._kind.settings)

    def _known_topics(self) -> KnownTopics:
        image = self._metadata.image
        if self._known[0] is not image.topics:
            topics = _known_topics(image)
            self._known = (image.topics, self._known[1] if topics.by_name == self._known[1].by_name else topics)
        return self._known[1]

    async def _submit_when_loaded(
        self, command: OneGroupCommand[Answer], respond: Callable[[Answer | RequestError], None]
    ) -> None:
        try:
            coordinator = await self.coordinator(command.group_id)
        except RequestError as error:
            return respond(error)
        coordinator.submit(command, respond)

    async def _loaded(self, number: int) -> Coordinator:
        with as_coordinator():
            return await self._host.loaded(self._partitions.find(OFFSETS_TOPIC, number))


def _known_topics(image: ClusterImage) -> KnownTopics:
    return KnownTopics(
        KnownTopic(
            name=topic.name,
            topic_id=topic.topic_id,
            partition_count=len(topic.partitions),
            is_internal=topic.is_internal,
        )
        for topic in image.topics.values()
    )


def _respond(respond: Callable[[Any], None], reply: object) -> None:
    respond(coordinator_error(reply) if isinstance(reply, RequestError) else reply)


def _replay(partition: Partition, machine: GroupMachine) -> None:
    try:
        replay_transactions(partition.log, machine)
    except StorageFailure as failure:
        raise RequestError(ErrorKind.COORDINATOR_NOT_AVAILABLE, f"the coordinator's log: {failure}") from failure
