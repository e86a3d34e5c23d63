"""Consumer groups: which partition of `__consumer_offsets` looks after a group, and its state machine there.

A machine is loaded when its partition is first asked for; whoever asks meanwhile waits, and is not sent away. Before
the first command that comes after a change of the cluster's topics, the machine is told of it.
"""

import asyncio
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Executor
from contextlib import contextmanager
from uuid import UUID

from conveyor.broker.partitions.partition_table import PartitionTable
from conveyor.broker.tasks import Tasks
from conveyor.broker.topics.topics import Topics
from conveyor.cluster.image import OFFSETS_TOPIC, BrokerImage, ClusterImage, TopicImage
from conveyor.groups.coordinator_partition import partition_for_group
from conveyor.groups.group_commands import GroupCommand, ListGroups, OneGroupCommand, UpdateSettings, UpdateTopics
from conveyor.groups.group_machine import GroupMachine
from conveyor.groups.known_topics import KnownTopic, KnownTopics
from conveyor.groups.replies import ListedGroup, ListedGroups
from conveyor.kernel.errors import ErrorKind, RequestError, StorageFailure
from conveyor.kernel.ports import Clock
from conveyor.replication.machine_runner import MachineRunner, Respond, replay
from conveyor.replication.partition import Partition
from conveyor.settings.tree import GroupsSettings

GroupRunner = MachineRunner[GroupCommand]

_MEMBER_NAME_LENGTH = 255


class Groups:
    """See the module's docstring."""

    def __init__(
        self, *, topics: Topics, partitions: PartitionTable, settings: GroupsSettings,
        own_settings: Mapping[str, GroupsSettings], clock: Clock, threads: Executor,
        tasks: Tasks, new_id: Callable[[], UUID],
    ) -> None:  # fmt: skip
        self._topics = topics
        self._partitions = partitions
        self._settings = (settings, own_settings)
        self._clock = clock
        self._threads = threads
        self._tasks = tasks
        self._new_id = new_id
        self._runners: dict[int, GroupRunner] = {}
        self._loading: dict[int, asyncio.Future[GroupRunner]] = {}
        self._told: dict[int, KnownTopics] = {}
        self._known = (topics.image, _known_topics(topics.image))

    def new_member_id(self, client_id: str) -> str:
        """A member id that nobody has had. A long client id is cut: what comes of it must still be a Kafka string."""
        return f"{client_id[:_MEMBER_NAME_LENGTH]}-{self._new_id()}"

    def new_consumer_id(self) -> str:
        """The id of a member of the consumer protocol that has chosen none."""
        return str(self._new_id())

    async def find_coordinator(self, group_id: str) -> BrokerImage:
        """The broker that looks after a group; its topic is made if it is not there. Raises RequestError."""
        topic = await self._offsets_topic()
        number = partition_for_group(group_id, len(topic.partitions))
        return self._topics.image.brokers[topic.partitions[number].leader]

    def submit(self, command: OneGroupCommand, respond: Respond) -> Callable[[], None] | None:
        """Hand a command to a group's coordinator; `respond` gets a reply of `conveyor.groups.replies`, or a
        RequestError, once, now or later. Returns what forgets the caller, if it has to wait."""
        number = self._partition_number(command.group_id)
        runner = self._runners.get(number)
        if runner is None:
            self._tasks.start(self._submit_when_loaded(command, respond))
            return None
        self._tell_topics(number, runner)
        token = runner.submit(command, respond)
        return lambda: runner.forget(token)

    async def list_groups(self, command: ListGroups) -> list[ListedGroup]:
        """The groups that this broker looks after, of all its coordinator partitions. Raises RequestError."""
        topic = self._topics.image.topics.get(OFFSETS_TOPIC)
        found: list[ListedGroup] = []
        for number in range(len(topic.partitions) if topic is not None else 0):
            try:
                runner = await self._loaded(number)
            except RequestError as error:
                if error.kind is ErrorKind.NOT_LEADER:
                    continue
                raise
            found += (await _ask(runner, command)).groups
        return sorted(found, key=lambda each: each.group_id)

    def use(self, settings: GroupsSettings, own: Mapping[str, GroupsSettings]) -> None:
        """Let these settings hold from now on. own: all that holds for a group with something of its own, by group."""
        if (settings, own) != self._settings:
            self._settings = (settings, own)
            for runner in self._runners.values():
                self._tell_settings(runner)

    def partition_replaced(self, partition: Partition) -> None:
        """A partition is served again, as another one: what its coordinator knew is read anew when it is asked for."""
        if partition.identity.topic == OFFSETS_TOPIC:
            runner = self._runners.pop(partition.identity.partition, None)
            if runner is not None:
                runner.stop()

    def stop(self) -> None:
        """Answer everybody who waits."""
        for runner in self._runners.values():
            runner.stop()

    def _partition_number(self, group_id: str) -> int:
        topic = self._topics.image.topics.get(OFFSETS_TOPIC)
        return -1 if topic is None else partition_for_group(group_id, len(topic.partitions))

    def _tell_topics(self, number: int, runner: GroupRunner) -> None:
        """What a machine needs to know of the cluster; the same topics are told once."""
        image = self._topics.image
        if self._known[0] is not image:
            known = _known_topics(image)
            self._known = (image, self._known[1] if known.by_name == self._known[1].by_name else known)
        if self._told.get(number) is not self._known[1]:
            self._told[number] = self._known[1]
            runner.submit(UpdateTopics(topics=self._known[1]), _ignore)

    def _tell_settings(self, runner: GroupRunner) -> None:
        defaults, own = self._settings
        runner.submit(UpdateSettings(defaults=defaults, own=own), _ignore)

    async def _submit_when_loaded(self, command: OneGroupCommand, respond: Respond) -> None:
        try:
            topic = await self._offsets_topic()
            number = partition_for_group(command.group_id, len(topic.partitions))
            runner = await self._loaded(number)
        except RequestError as error:
            return respond(error)
        self._tell_topics(number, runner)
        runner.submit(command, respond)

    async def _offsets_topic(self) -> TopicImage:
        with _as_coordinator():
            return await self._topics.ensure_offsets_topic()

    async def _loaded(self, number: int) -> GroupRunner:
        if number in self._runners:
            return self._runners[number]
        loading = self._loading.get(number)
        if loading is None:
            loading = self._loading[number] = asyncio.ensure_future(self._load(number))
            loading.add_done_callback(lambda _: self._loading.pop(number))
        return await asyncio.shield(loading)

    async def _load(self, number: int) -> GroupRunner:
        settings = self._settings
        machine = GroupMachine(*settings)
        with _as_coordinator():
            partition = self._partitions.find(OFFSETS_TOPIC, number)
            partition.check_online()
            await asyncio.get_running_loop().run_in_executor(self._threads, _replay, partition, machine)
            partition.check_online()  # It may be another one by now.
        machine.loaded(self._clock.now_ms())
        self._told.pop(number, None)
        runner = self._runners[number] = MachineRunner(partition, machine, self._clock)
        if settings is not self._settings:
            self._tell_settings(runner)
        return runner


def _known_topics(image: ClusterImage) -> KnownTopics:
    return KnownTopics(
        KnownTopic(
            name=each.name,
            topic_id=each.topic_id,
            partition_count=len(each.partitions),
            is_internal=each.is_internal,
        )
        for each in image.topics.values()
    )


@contextmanager
def _as_coordinator() -> Iterator[None]:
    """Clients of groups ask again after COORDINATOR_NOT_AVAILABLE, and give up after a failure of a disk."""
    try:
        yield
    except RequestError as error:
        if error.kind not in (ErrorKind.PARTITION_OFFLINE, ErrorKind.DISK_FULL):
            raise
        raise RequestError(ErrorKind.COORDINATOR_NOT_AVAILABLE, error.message) from error


def _ignore(reply: object) -> None:
    """The machine has been told; nobody waits for that."""


async def _ask(runner: GroupRunner, command: ListGroups) -> ListedGroups:
    answered: asyncio.Future[object] = asyncio.get_running_loop().create_future()
    runner.submit(command, lambda reply: None if answered.done() else answered.set_result(reply))
    reply = await answered
    if isinstance(reply, RequestError):
        raise reply
    assert isinstance(reply, ListedGroups)
    return reply


def _replay(partition: Partition, machine: GroupMachine) -> None:
    try:
        replay(partition.log, machine)
    except StorageFailure as failure:
        raise RequestError(ErrorKind.COORDINATOR_NOT_AVAILABLE, f"the coordinator's log: {failure}") from failure
