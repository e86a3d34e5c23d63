"""The coordinator of groups on a broker that may have lost its leadership."""

from collections.abc import Sequence

from conveyor.broker.hosts.group_coordinators import Coordinator, SettingsOfGroups
from conveyor.groups.group_commands import FetchOffsets, OneGroupCommand
from conveyor.groups.group_machine import GroupMachine
from conveyor.groups.replies import FetchedOffsets
from conveyor.kernel.errors import ErrorKind, RequestError
from conveyor.kernel.ids import NodeId
from conveyor.replication.machine_runner import MachineRunner
from conveyor.replication.roles import Leader
from conveyor.settings.tree import GroupsSettings
from conveyor.testing import ManualClock
from tests.unit.replication.parts import EPOCH, NODE, Owner

FETCH = FetchOffsets(group_id="readers", partitions=None)


class Stage:
    """A coordinator on a partition in memory. isr: the brokers of which one may become the next leader."""

    def __init__(self, isr: Sequence[NodeId]) -> None:
        self.is_sure = True
        settings: SettingsOfGroups = (GroupsSettings(), {})
        clock, partition = ManualClock(), Owner().partition
        partition.assume(Leader(leader=NODE, epoch=EPOCH, isr=tuple(isr)))
        runner = MachineRunner(partition, GroupMachine(*settings), clock)
        self.coordinator = Coordinator(partition, runner, settings, lambda: self.is_sure)

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
