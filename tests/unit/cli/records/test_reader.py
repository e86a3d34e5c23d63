"""The condition for having read everything."""

from conveyor.cli.records.reader import LogEnds


def test_end_is_reached_when_every_partition_was_read_to_its_end() -> None:
    ends = LogEnds({0: 2, 1: 0}, assigned=[0, 1])
    ends.note(1, 0)
    assert not ends.all_reached()
    ends.note(0, 1)
    assert not ends.all_reached()
    ends.note(0, 2)
    assert ends.all_reached()


def test_only_assigned_partitions_count() -> None:
    ends = LogEnds({0: 5, 1: 5})
    assert not ends.all_reached(), "no partition is assigned yet"
    ends.assign([1])
    ends.note(1, 9)
    assert ends.all_reached()
    ends.assign([0, 1])
    assert not ends.all_reached()


def test_member_without_partitions_has_reached_the_end() -> None:
    ends = LogEnds({0: 5})
    ends.assign([])
    assert ends.all_reached()
