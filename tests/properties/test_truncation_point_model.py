"""Two logs that differ in their last epochs: a follower that asks its leader ends at their longest common prefix.

A log is the list of its records' epochs. The logs share a prefix; above it no epoch has records in both, because each
epoch has one leader. Epochs without a record occur in both. PROPERTY_EXAMPLES says how many pairs are tried; 500 by
default.
"""

import os

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conveyor.log.leader_epochs import LeaderEpochs, diverging_end, truncation_point

EXAMPLES = int(os.environ.get("PROPERTY_EXAMPLES", "500"))
RUNS = st.lists(st.integers(0, 4), max_size=5)
"""How many records each epoch has; epochs without any are begun, too."""
TAILS = st.lists(st.tuples(st.booleans(), st.integers(0, 4)), max_size=8)
"""Who leads each epoch, and how many records it has then."""


class Replica:
    """The epochs of a log's records, and its epoch history."""

    def __init__(self) -> None:
        self.records: list[int] = []
        self.epochs = LeaderEpochs()

    def lead(self, epoch: int, count: int) -> None:
        self.epochs.assign(epoch, len(self.records))
        self.records += [epoch] * count

    def truncate(self, offset: int) -> None:
        del self.records[offset:]
        self.epochs.cut_end(len(self.records))

    def copy(self, records: list[int]) -> None:
        for epoch in records:
            self.epochs.assign(epoch, len(self.records))
            self.records.append(epoch)


def common_prefix(first: list[int], second: list[int]) -> int:
    pairs = zip(first, second, strict=False)
    return next((number for number, (one, other) in enumerate(pairs) if one != other), min(len(first), len(second)))


@settings(max_examples=EXAMPLES, deadline=None)
@given(shared=RUNS, tails=TAILS, trimmed=st.floats(0, 1))
def test_follower_ends_at_the_longest_common_prefix(
    shared: list[int], tails: list[tuple[bool, int]], trimmed: float
) -> None:
    leader, follower = Replica(), Replica()
    for epoch, count in enumerate(shared):
        leader.lead(epoch, count)
    follower.copy(leader.records)
    epoch = len(shared)
    for is_leader, count in tails:
        (leader if is_leader else follower).lead(epoch, count)
        epoch += 1
    leader.lead(epoch, 0)
    leader.epochs.cut_start(round(trimmed * sum(shared)))
    expected = common_prefix(leader.records, follower.records)
    rounds = len(follower.epochs.entries)
    while True:
        end = len(follower.records)
        theirs = diverging_end(leader.epochs, len(leader.records), follower.epochs.latest, end)
        if theirs is None:
            break
        rounds -= 1
        assert rounds >= 0, "each round ends at least one epoch"
        point = truncation_point(follower.epochs, end, theirs)
        assert expected <= point <= end, "no shared record is removed"
        follower.truncate(point)
    assert len(follower.records) == expected
    follower.copy(leader.records[expected:])
    assert follower.records == leader.records
    assert diverging_end(leader.epochs, len(leader.records), follower.epochs.latest, len(follower.records)) is None


def test_empty_follower_has_nothing_to_compare() -> None:
    assert diverging_end(LeaderEpochs([(3, 0)]), 9, -1, 0) is None


def test_epoch_above_the_leaders_is_a_bug() -> None:
    with pytest.raises(AssertionError, match="epoch 4 of a follower is above 3"):
        diverging_end(LeaderEpochs([(3, 0)]), 9, 4, 0)


@pytest.mark.parametrize(
    ("leader_end", "point"), [((1, 7), 7), ((1, 12), 10), ((2, 30), 10), ((3, 30), 25), ((4, 40), 30), ((9, 28), 28)]
)
def test_truncation_point_is_the_smaller_end(leader_end: tuple[int, int], point: int) -> None:
    assert truncation_point(LeaderEpochs([(1, 0), (3, 10), (4, 25)]), 30, leader_end) == point
