"""The coordinator of groups on a broker that may have lost its leadership."""

from collections.abc import Sequence
from dataclasses import replace
from uuid import uuid4

from conveyor.broker.coordinators.group_coordinators import GroupCoordinator, SettingsOfGroups
from conveyor.groups.group_commands import FetchOffsets, GroupCommand, OneGroupCommand, UpdateTopics
from conveyor.groups.group_machine import GroupMachine
from conveyor.groups.known_topics import KnownTopic, KnownTopics
from conveyor.groups.replies import FetchedOffsets
from conveyor.kernel.errors import ErrorKind, RequestError
from conveyor.kernel.ids import NodeId
from conveyor.kernel.state_machine import Outcome, Token
from conveyor.replication.roles import Leader
from conveyor.settings.tree import GroupsSettings
from conveyor.testing import ManualClock
from tests.unit.broker.room_services import Session, room_services
from tests.unit.replication.parts import EPOCH, NODE, Owner

FETCH = FetchOffsets(group_id="readers", partitions=None)


class NotingMachine(GroupMachine):
    """Notes the commands."""

    def __init__(self, settings: SettingsOfGroups) -> None:
        super().__init__(*settings)
        self.handled: list[GroupCommand[object]] = []

    def handle(self, command: GroupCommand[object], token: Token, now_ms: int) -> Outcome:
        self.handled.append(command)
        return super().handle(command, token, now_ms)


class Stage:
    """A coordinator on a partition in memory. isr: the brokers of which one may become the next leader."""

    def __init__(self, isr: Sequence[NodeId]) -> None:
        settings: SettingsOfGroups = (GroupsSettings(), {})
        self.session = Session()
        self.partition = partition = Owner().partition
        partition.assume(Leader(leader=NODE, epoch=EPOCH, isr=tuple(isr)))
        self.machine = NotingMachine(settings)
        services = room_services(ManualClock(), session=self.session)
        self.coordinator = GroupCoordinator(partition, self.machine, services, settings)
        self._settings = settings

    def ask(self, command: OneGroupCommand[FetchedOffsets]) -> FetchedOffsets | RequestError:
        answers: list[FetchedOffsets | RequestError] = []
        self.coordinator.submit(command, answers.append)
        [answer] = answers
        return answer

    def update(self, topics: KnownTopics) -> None:
        self.coordinator.update(topics, self._settings)


def test_committed_offsets_are_given_by_a_broker_that_surely_leads() -> None:
    stage = Stage(isr=(NODE, NodeId(2)))
    assert isinstance(stage.ask(FETCH), FetchedOffsets)
    stage.session.has_lease = False
    refusal = stage.ask(FETCH)
    assert isinstance(refusal, RequestError)
    assert refusal.kind is ErrorKind.COORDINATOR_NOT_AVAILABLE
    stage.session.has_lease = True
    assert isinstance(stage.ask(FETCH), FetchedOffsets)


def test_the_only_replica_in_sync_surely_leads() -> None:
    stage = Stage(isr=(NODE,))
    stage.session.has_lease = False
    assert isinstance(stage.ask(FETCH), FetchedOffsets)


def test_requests_and_topics_are_refused_while_too_few_replicas_are_in_sync() -> None:
    """A refused set of topics is passed again before the next command."""
    stage = Stage(isr=(NODE,))
    role = stage.partition.term.role
    assert isinstance(role, Leader)
    stage.partition.assume(replace(role, min_isr=2))
    topics = KnownTopics([KnownTopic(name="t", topic_id=uuid4(), partition_count=1, is_internal=False)])
    stage.update(topics)
    refusal = stage.ask(FETCH)
    assert isinstance(refusal, RequestError)
    assert refusal.kind is ErrorKind.COORDINATOR_NOT_AVAILABLE
    stage.partition.assume(role)
    stage.update(topics)
    stage.update(topics)
    assert [command for command in stage.machine.handled if command != FETCH] == [UpdateTopics(topics=topics)]
