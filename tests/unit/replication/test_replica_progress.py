"""The progress of the replicas that a leader waits for: the lowest of theirs and of its own."""

from collections.abc import Mapping

from conveyor.kernel.ids import NodeId
from conveyor.kernel.signal import Signal
from conveyor.replication.offline_state import OfflineState
from conveyor.replication.replica_progress import ReplicaProgress, ReplicaReport
from conveyor.replication.roles import Leader
from conveyor.replication.term_context import TermContext
from conveyor.settings.tree import TopicSettings
from conveyor.testing import MemoryDisk
from tests.unit.log.logs import NOW_MS, open_topic_log
from tests.unit.replication.parts import EPOCH, IDENTITY, batch

ONE, TWO, THREE = NodeId(1), NodeId(2), NodeId(3)


class Stage:
    """A leader with nine written records, and what its replicas report."""

    def __init__(self, *isr: NodeId, joining: Mapping[NodeId, int] | None = None) -> None:
        log = open_topic_log(MemoryDisk(), TopicSettings(flush_policy="os"))
        for _ in range(9):
            log.append(batch(b"a"), EPOCH, NOW_MS)
        log.write()
        self.calls = 0
        self.context = TermContext(
            identity=IDENTITY, log=log, offline=OfflineState(IDENTITY), changed=Signal(),
            wants_checks=lambda _: None, holds_lease=lambda: True,
        )  # fmt: skip
        self.progress = ReplicaProgress(self.context, self.role(*isr), joining or {}, self.progressed)

    def progressed(self) -> None:
        self.calls += 1

    def role(self, *isr: NodeId, partition_epoch: int = 0) -> Leader:
        return Leader(leader=ONE, epoch=EPOCH, isr=isr, partition_epoch=partition_epoch)

    def report(self, node: NodeId, offset: int) -> int:
        self.progress.reported(node, ReplicaReport(offset, offset))
        return self.progress.lowest()


def test_the_only_replica_decides() -> None:
    assert Stage(ONE).progress.lowest() == 9


def test_it_waits_for_the_slowest_and_for_those_that_have_reported_nothing() -> None:
    stage = Stage(ONE, TWO, THREE)
    assert stage.progress.lowest() == -1
    assert stage.report(TWO, 4) == -1
    assert stage.report(THREE, 6) == 4
    assert stage.report(TWO, 8) == 6
    assert stage.calls == 3


def test_a_replica_outside_of_the_isr_decides_nothing() -> None:
    assert Stage(ONE).report(TWO, 3) == 9


def test_it_no_longer_waits_for_a_replica_that_has_left_the_isr() -> None:
    stage = Stage(ONE, TWO, THREE)
    stage.report(TWO, 7)
    stage.progress.wait_for(stage.role(ONE, TWO))
    assert stage.progress.lowest() == 7


def test_an_earlier_report_of_a_replica_counts_once_it_is_waited_for() -> None:
    stage = Stage(ONE)
    stage.report(TWO, 7)
    stage.progress.wait_for(stage.role(ONE, TWO))
    assert stage.progress.lowest() == 7


def test_a_join_counts_until_a_later_partition_epoch_or_a_refusal() -> None:
    stage = Stage(ONE, joining={THREE: 0})
    assert stage.progress.lowest() == -1
    stage.progress.wait_for(stage.role(ONE, partition_epoch=1))
    assert stage.progress.lowest() == 9
    stage.progress.join(TWO, 1)
    assert stage.progress.lowest() == -1
    stage.progress.end_join(TWO)
    assert (stage.progress.lowest(), stage.calls) == (9, 2)
    stage.progress.end_join(TWO)
    assert stage.calls == 2


def test_the_policy_of_the_topic_decides_what_counts() -> None:
    stage = Stage(ONE, TWO)
    stage.progress.reported(TWO, ReplicaReport(9, 5))
    assert (stage.progress.lowest(), stage.progress.durable_offset_of(TWO)) == (9, 9)
    stage.context.log.use(TopicSettings(flush_policy="ack"))
    assert (stage.progress.lowest(), stage.progress.durable_offset_of(TWO)) == (0, 5)


def test_a_report_to_an_offline_partition_does_not_count() -> None:
    stage = Stage(ONE, TWO)
    stage.context.offline.reason = "the disk has failed"
    assert (stage.report(TWO, 3), stage.calls) == (-1, 0)
