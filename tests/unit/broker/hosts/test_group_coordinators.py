"""The coordinator of groups on a broker that may have lost its leadership."""

from collections.abc import Sequence
from dataclasses import replace
from uuid import uuid4

from conveyor.broker.hosts.group_coordinators import Coordinator, SettingsOfGroups
from conveyor.groups.group_commands import FetchOffsets, GroupCommand, OneGroupCommand, UpdateTopics
from conveyor.groups.group_machine import GroupMachine
from conveyor.groups.known_topics import KnownTopic, KnownTopics
from conveyor.groups.replies import FetchedOffsets
from conveyor.kernel.errors import ErrorKind, RequestError
from conveyor.kernel.ids import NodeId
from conveyor.kernel.state_machine import Token
from conveyor.replication.machine_runner import Respond, TransactionalRunner
from conveyor.replication.partition import Partition
from conveyor.replication.roles import Leader
from conveyor.settings.tree import GroupsSettings
from conveyor.testing import ManualClock
from tests.unit.replication.parts import EPOCH, NODE, Owner

FETCH = FetchOffsets(group_id="readers", partitions=None)


class NotingRunner(TransactionalRunner[GroupCommand[object]]):
    """Notes the commands."""

    def __init__(self, partition: Partition, machine: GroupMachine) -> None:
        super().__init__(partition, machine, ManualClock())
        self.submitted: list[GroupCommand[object]] = []

    def submit(self, command: GroupCommand[object], respond: Respond) -> Token:
        self.submitted.append(command)
        return super().submit(command, respond)


class Stage:
    """A coordinator on a partition in memory. isr: the brokers of which one may become the next leader."""

    def __init__(self, isr: Sequence[NodeId]) -> None:
        self.is_sure = True
        settings: SettingsOfGroups = (GroupsSettings(), {})
        self.partition = partition = Owner().partition
        partition.assume(Leader(leader=NODE, epoch=EPOCH, isr=tuple(isr)))
        self.runner = NotingRunner(partition, GroupMachine(*settings))
        self.coordinator = Coordinator(partition, self.runner, settings, lambda: self.is_sure)

    def ask(self, command: OneGroupCommand[FetchedOffsets]) -> FetchedOffsets | RequestError:
        answers: list[FetchedOffsets | RequestError] = []
        self.coordinator.submit(command, answers.append)
        [answer] = answers
        return answer


def test_committed_offsets_are_given_by_a_broker_that_surely_leads() -> None:
    stage = Stage(isr=(NODE, NodeId(2)))
    assert isinstance(stage.ask(FETCH), FetchedOffsets)
    stage.is_sure = False
    refusal = stage.ask(FETCH)
    assert isinstance(refusal, RequestError)
    assert refusal.kind is ErrorKind.COORDINATOR_NOT_AVAILABLE
    stage.is_sure = True
    assert isinstance(stage.ask(FETCH), FetchedOffsets)


def test_the_only_replica_in_sync_surely_leads() -> None:
    stage = Stage(isr=(NODE,))
    stage.is_sure = False
    assert isinstance(stage.ask(FETCH), FetchedOffsets)


def test_requests_and_topics_are_refused_while_too_few_replicas_are_in_sync() -> None:
    """A refused set of topics is passed again before the next command."""
    stage = Stage(isr=(NODE,))
    role = stage.partition.term.role
    assert isinstance(role, Leader)
    stage.partition.assume(replace(role, min_isr=2))
    topics = KnownTopics([KnownTopic(name="t", topic_id=uuid4(), partition_count=1, is_internal=False)])
    stage.coordinator.update_topics(topics)
    refusal = stage.ask(FETCH)
    assert isinstance(refusal, RequestError)
    assert refusal.kind is ErrorKind.COORDINATOR_NOT_AVAILABLE
    stage.partition.assume(role)
    stage.coordinator.update_topics(topics)
    stage.coordinator.update_topics(topics)
    assert [command for command in stage.runner.submitted if command != FETCH] == [UpdateTopics(topics=topics)] * 2
