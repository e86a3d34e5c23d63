"""The high watermark: the lowest progress of the in-sync replicas."""

from conveyor.kernel.ids import NodeId
from conveyor.replication.high_watermark import HighWatermark

ONE, TWO, THREE = NodeId(1), NodeId(2), NodeId(3)


def test_the_only_replica_moves_it() -> None:
    mark = HighWatermark(5)
    mark.begin((ONE,), is_new_epoch=True)
    assert mark.offset == 5
    assert mark.report(ONE, 7)
    assert not mark.report(ONE, 7)
    assert mark.offset == 7


def test_it_waits_for_the_slowest_and_for_those_that_have_reported_nothing() -> None:
    mark = HighWatermark(0)
    mark.begin((ONE, TWO, THREE), is_new_epoch=True)
    assert not mark.report(ONE, 9)
    assert not mark.report(TWO, 4)
    assert mark.report(THREE, 6)
    assert mark.offset == 4
    assert mark.report(TWO, 8)
    assert mark.offset == 6


def test_it_never_falls() -> None:
    mark = HighWatermark(5)
    mark.begin((ONE, TWO), is_new_epoch=True)
    mark.report(ONE, 9)
    assert not mark.report(TWO, 3)
    assert mark.offset == 5


def test_a_replica_outside_of_the_isr_moves_nothing() -> None:
    mark = HighWatermark(0)
    mark.begin((ONE,), is_new_epoch=True)
    assert not mark.report(TWO, 9)
    mark.begin((), is_new_epoch=False)
    assert not mark.report(ONE, 9)
    assert mark.offset == 0


def test_it_rises_at_the_next_report_after_the_isr_has_shrunk() -> None:
    mark = HighWatermark(0)
    mark.begin((ONE, TWO, THREE), is_new_epoch=True)
    mark.report(TWO, 7)
    mark.begin((ONE, TWO), is_new_epoch=False)
    assert mark.report(ONE, 9)
    assert mark.offset == 7


def test_reports_of_an_earlier_epoch_do_not_count() -> None:
    mark = HighWatermark(0)
    mark.begin((ONE, TWO), is_new_epoch=True)
    mark.report(TWO, 7)
    mark.begin((ONE, TWO), is_new_epoch=True)
    assert not mark.report(ONE, 9)
    assert mark.offset == 0


def test_an_earlier_report_of_a_replica_counts_once_it_is_waited_for() -> None:
    mark = HighWatermark(0)
    mark.begin((ONE,), is_new_epoch=True)
    mark.report(TWO, 7)
    mark.begin((ONE, TWO), is_new_epoch=False)
    assert mark.report(ONE, 9)
    assert mark.offset == 7


def test_it_does_not_advance_while_it_is_frozen() -> None:
    mark = HighWatermark(0)
    mark.begin((ONE,), is_new_epoch=True)
    mark.is_frozen = True
    assert not mark.report(ONE, 9)
    mark.is_frozen = False
    assert mark.report(ONE, 9)
    assert mark.offset == 9


def test_a_follower_takes_over_that_of_its_leader_and_lowers_it_when_it_truncates() -> None:
    mark = HighWatermark(3)
    assert not mark.follow(3)
    assert mark.follow(8)
    mark.restart_at(5)
    assert mark.offset == 5
