"""What a state says of a log is about the records that the log had then: the end of those that a later log still has.

A log is the list of its records' epochs, as in `test_truncation_point_model`: records of one epoch and offset are the
same. Three replicas lead in turn, in a new epoch each time. Others follow, lose their ends, begin again, or delete old
records. PROPERTY_EXAMPLES says how many stories are tried; 500 by default.
"""

import os

from hypothesis import given, settings
from hypothesis import strategies as st

from conveyor.log.leader_epochs import shared_end
from conveyor.replication.stated_epochs import epochs_header, read_epochs
from tests.properties.test_truncation_point_model import Replica, common_prefix

EXAMPLES = int(os.environ.get("PROPERTY_EXAMPLES", "500"))
REPLICAS = 3
SHARES = st.floats(0, 1)
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["lead", "lead", "lead", "follow", "follow", "lose", "trim"]),
        st.integers(0, REPLICAS - 1),
        st.integers(0, 4),
        SHARES,
    ),
    max_size=12,
)


class Story:
    """The replicas, of which any may lead next, whatever it has."""

    def __init__(self) -> None:
        self.replicas = [Replica() for _ in range(REPLICAS)]
        self.epoch = 0
        self.leader = self.lead(0, 0)

    def lead(self, number: int, count: int) -> Replica:
        self.leader = self.replicas[number]
        self.leader.lead(self.epoch, count)
        self.epoch += 1
        return self.leader

    def play(self, steps: list[tuple[str, int, int, float]]) -> None:
        for action, number, count, share in steps:
            replica = self.replicas[number]
            if action == "lead":
                self.lead(number, count)
            elif action == "follow" and replica is not self.leader:
                replica.truncate(common_prefix(self.leader.records, replica.records))
                replica.copy(self.leader.records[len(replica.records) :])
            elif action == "lose":  # Nobody appends before the next epoch begins.
                replica.truncate(round(share * len(replica.records)))
                self.lead(number, 0)
            elif action == "trim":
                replica.epochs.cut_start(round(share * len(replica.records)))


@settings(max_examples=EXAMPLES, deadline=None)
@given(before=STEPS, count=st.integers(0, 4), after=STEPS, last=st.integers(0, REPLICAS - 1))
def test_shared_end_is_the_end_of_the_longest_common_prefix(
    before: list[tuple[str, int, int, float]], count: int, after: list[tuple[str, int, int, float]], last: int
) -> None:
    story = Story()
    story.play(before)
    header = epochs_header(story.leader.epochs)
    story.leader.records += [story.leader.epochs.latest] * count
    known = list(story.leader.records)
    story.play(after)
    leader = story.lead(last, 0)
    stated = read_epochs([header])
    assert stated is not None
    end = shared_end(stated, 1 << 62, leader.epochs, len(leader.records))
    expected = common_prefix(known, leader.records)
    deleted_below = max(stated[0][1], leader.epochs.entries[0][1])
    assert min(end, len(known)) <= max(expected, deleted_below), "other records would be taken for known ones"
    if not any(action == "trim" for action, *_ in (*before, *after)):
        assert min(end, len(known)) == expected
