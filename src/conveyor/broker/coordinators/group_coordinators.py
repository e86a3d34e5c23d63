"""Coordinators of consumer groups: a partition of `__consumer_offsets` and its state machine coordinate a group.

A coordinator is loaded on the first request; requests wait until it is loaded or their callers leave. A changed set of
topics is passed to a coordinator before its next command.

A broker that has lost its session may not know yet that another one coordinates its groups. Replies to commands that
write records wait for replicas, which no longer follow such a broker; committed offsets are given only by a broker that
is sure, because an older offset would make a consumer read again what its group has committed.
"""

from collections.abc import Mapping
from functools import partial

import msgspec

from conveyor.broker.answers import Answer, answered
from conveyor.broker.coordinators.hosted_machine import HostedMachine
from conveyor.broker.coordinators.keyed_coordinators import KeyedCoordinators, as_coordinator, coordinator_error
from conveyor.broker.metadata.dynamic_settings import DynamicSettings
from conveyor.broker.partitions.partition_table import PartitionTable
from conveyor.broker.services import Services
from conveyor.broker.topics.topics import Topics
from conveyor.cluster.dynamic_config import LayeredSettings
from conveyor.cluster.image import OFFSETS_TOPIC, ClusterImage
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
from conveyor.kernel.access.caller import Caller
from conveyor.kernel.errors import RequestError
from conveyor.replication.machine_runner import Respond, Withdraw, coordinator_uncertain, replay
from conveyor.replication.partition import Partition
from conveyor.replication.roles import Leader
from conveyor.settings.tree import GroupsSettings

SettingsOfGroups = tuple[GroupsSettings, Mapping[str, GroupsSettings]]
"""The defaults, and the complete settings of groups that override some, by group id."""

_MEMBER_NAME_LENGTH = 255


class GroupCoordinator(HostedMachine):
    """The machine of one partition, with its current settings and topics. settings: those that the machine has."""

    def __init__(
        self, partition: Partition, machine: GroupMachine, services: Services, settings: SettingsOfGroups
    ) -> None:
        super().__init__(partition, machine, services.clock)
        self.machine = machine
        self._session = services.metadata.session
        self._settings: SettingsOfGroups | None = settings
        self._topics: KnownTopics | None = None

    def submit(self, command: GroupCommand[Answer], respond: Respond[Answer]) -> Withdraw:
        """See `MachineRunner.submit`. The errors are those of a coordinator."""
        finish = self._respond_if_sure if isinstance(command, FetchOffsets) else _respond
        return super().submit(command, partial(finish, respond))

    def update(self, topics: KnownTopics, settings: SettingsOfGroups) -> None:
        """Pass the present topics and settings to the machine, unless it has them already. If it refuses them, the next
        call repeats it.
        """
        if self._topics is not topics:
            self._topics = topics
            super().submit(UpdateTopics(topics=topics), self._topics_taken)
        self.use(settings)

    def use(self, settings: SettingsOfGroups) -> None:
        """Apply settings from now on; see `update`."""
        if self._settings is not settings:
            self._settings = settings
            super().submit(UpdateSettings(defaults=settings[0], own=settings[1]), self._settings_taken)

    def _topics_taken(self, reply: object) -> None:
        if isinstance(reply, RequestError):
            self._topics = None

    def _settings_taken(self, reply: object) -> None:
        if isinstance(reply, RequestError):
            self._settings = None

    def _respond_if_sure(self, respond: Respond[Answer], reply: Answer | RequestError) -> None:
        role = self.partition.term.role
        has_successors = isinstance(role, Leader) and len(role.isr) > 1
        holds_lease = not has_successors or self._session.holds_lease()
        _respond(respond, reply if holds_lease else coordinator_uncertain(self.partition))


class GroupCoordinators(KeyedCoordinators[GroupCoordinator]):
    name = "group coordinator"
    retry_ms = None
    topic = OFFSETS_TOPIC
    factor_setting = "groups.offsets_replication_factor"

    def __init__(
        self,
        services: Services,
        table: PartitionTable,
        topics: Topics,
        settings: DynamicSettings,
    ) -> None:
        super().__init__(services, table, topics)
        self._settings: SettingsOfGroups = services.settings.groups, settings.layers.group_settings
        settings.changed.listen(self._use)
        image = services.metadata.image
        self._known = (image.topics, _known_topics(image))

    async def load(self, partition: Partition) -> GroupCoordinator:
        settings = self._settings
        machine = GroupMachine(*settings)
        await self._read(partition, replay, partition.log, machine)
        machine.loaded(self._services.clock.now_ms())
        return GroupCoordinator(partition, machine, self._services, settings)

    async def begin(self, runner: GroupCoordinator) -> None:
        runner.use(self._settings)

    def new_member_id(self, client_id: str) -> str:
        """Return a new member id. A long client id is cut, so that the result fits a Kafka string."""
        return f"{client_id[:_MEMBER_NAME_LENGTH]}-{self._services.new_id()}"

    def new_consumer_id(self) -> str:
        """Return an id for a member of the consumer protocol that has not chosen one."""
        return str(self._services.new_id())

    def submit(self, caller: Caller, command: OneGroupCommand[Answer], respond: Respond[Answer]) -> Withdraw:
        """Send a command to a group's coordinator. `respond` is called once with its reply or a RequestError.

        Returns a function that withdraws the caller. A command that still waits for its coordinator is dropped then: it
        could undo a newer one that its client has sent over another connection since.
        """
        partition = self.partition_of(command.group_id)
        coordinator = None if partition is None else self.find(partition)
        if coordinator is None:
            return self._services.tasks.start(self._submit_when_loaded(command, respond)).cancel
        coordinator.update(self._known_topics(), self._settings)
        return coordinator.submit(command, respond)

    async def ask(self, caller: Caller, command: OneGroupCommand[Answer]) -> Answer:
        """Return the reply of a group's coordinator. Raises RequestError."""
        return await answered(partial(self.submit, caller, command))

    async def of_group(self, group_id: str) -> GroupCoordinator:
        """Return a group's coordinator, once it is loaded. Creates the topic if it is missing. Raises RequestError."""
        number = (await self.ensured_partition(group_id)).partition
        with as_coordinator():
            coordinator = await self.coordinator(number)
        coordinator.update(self._known_topics(), self._settings)
        return coordinator

    async def list_groups(self, caller: Caller, command: ListGroups) -> "list[ListedGroup]":
        """Return the groups that this broker coordinates and that match the command. Raises RequestError."""
        replies = await self.list_keys(
            lambda coordinator: coordinator.machine.group_ids(),
            lambda group_ids: msgspec.structs.replace(command, group_ids=group_ids),
        )
        return [group for reply in replies for group in reply.groups]

    def _use(self, layers: LayeredSettings) -> None:
        settings = layers.in_force.groups, layers.group_settings
        if settings != self._settings:
            self._settings = settings
            for coordinator in self.list():
                coordinator.use(self._settings)

    def gained(self, partition: Partition) -> None:
        """Load the coordinator of a reopened partition again, if it was loaded before."""
        if partition.identity in self._places:
            super().gained(partition)

    def _known_topics(self) -> KnownTopics:
        image = self._services.metadata.image
        if self._known[0] is not image.topics:
            topics = _known_topics(image)
            self._known = (image.topics, self._known[1] if topics.by_name == self._known[1].by_name else topics)
        return self._known[1]

    async def _submit_when_loaded(self, command: OneGroupCommand[Answer], respond: Respond[Answer]) -> None:
        try:
            coordinator = await self.of_group(command.group_id)
        except RequestError as error:
            return respond(error)
        coordinator.submit(command, respond)


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


def _respond(respond: Respond[Answer], reply: Answer | RequestError) -> None:
    respond(coordinator_error(reply) if isinstance(reply, RequestError) else reply)
