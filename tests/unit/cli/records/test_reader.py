"""When reading has reached the end."""

from conveyor.cli.records.reader import LogEnds


def test_end_is_reached_when_every_partition_was_read_as_far() -> None:
    ends = LogEnds({0: 2, 1: 0}, assigned=[0, 1])
    ends.note(1, 0)
    assert not ends.are_reached()
    ends.note(0, 1)
    assert not ends.are_reached()
    ends.note(0, 2)
    assert ends.are_reached()


def test_only_partitions_of_ours_count() -> None:
    ends = LogEnds({0: 5, 1: 5})
    assert not ends.are_reached(), "nothing is ours yet"
    ends.assign([1])
    ends.note(1, 9)
    assert ends.are_reached()
    ends.assign([0, 1])
    assert not ends.are_reached()


def test_member_without_partitions_has_reached_the_end() -> None:
    ends = LogEnds({0: 5})
    ends.assign([])
    assert ends.are_reached()
