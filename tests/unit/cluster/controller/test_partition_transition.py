"""The transitions of one partition, row by row of the table."""

from collections.abc import Sequence
from typing import Any

import pytest
from msgspec.structs import replace

from conveyor.cluster.controller.liveness import Liveness
from conveyor.cluster.controller.partition_transition import Election, Rules, settled
from conveyor.cluster.image import NO_LEADER, PartitionImage
from tests.unit.cluster.controller.clusters import leadership, nodes, partition


def settle(
    before: PartitionImage,
    *,
    live: Sequence[int] = (1, 2, 3, 4),
    stopping: Sequence[int] = (),
    min_insync: int = 1,
    election: Election = Election.CLEAN,
    lost: Sequence[int] = (),
    wiped: Sequence[int] = (),
    **wanted: Any,
) -> PartitionImage:
    ready = frozenset(nodes(*live)) - frozenset(nodes(*stopping))
    rules = Rules(
        liveness=Liveness(frozenset(nodes(*live)), ready),
        min_insync=min_insync,
        election=election,
        lost=frozenset(nodes(*lost)) | frozenset(nodes(*wiped)),
        wiped=frozenset(nodes(*wiped)),
    )
    fields: dict[str, Any] = {name: nodes(*ids) for name, ids in wanted.items()}
    after = settled(before, replace(before, **fields), rules)
    assert settled(after, after, rules) == after
    return after


def test_partition_with_live_replicas_stays() -> None:
    before = partition([1, 2, 3])
    assert settle(before) is not before
    assert settle(before) == before


@pytest.mark.parametrize(
    ("live", "expected"),
    [
        ([1, 3], (1, 5, (1, 3), ())),  # A shrink of the ISR alone begins no epoch.
        ([2, 3], (2, 6, (2, 3), ())),
        ([3], (3, 6, (3,), ())),
        ([], (NO_LEADER, 6, (1, 2, 3), ())),  # Each of them has every committed record.
    ],
)
def test_fenced_brokers_leave_the_isr_and_the_first_live_member_leads(
    live: list[int], expected: tuple[int, int, tuple[int, ...], tuple[int, ...]]
) -> None:
    assert leadership(settle(partition([1, 2, 3]), live=live)) == expected


def test_last_member_of_the_isr_stays_and_leads_when_it_returns() -> None:
    gone = settle(partition([1, 2], [2]), live=[1])
    assert leadership(gone) == (NO_LEADER, 6, (2,), ())
    assert gone.last_known_leader == 2
    back = settle(gone, live=[1, 2])
    assert leadership(back) == (2, 7, (2,), ())
    assert back.last_known_leader == NO_LEADER


@pytest.mark.parametrize(
    ("isr", "elr"), [([1, 2], ()), ([1], (2, 3)), ([2], (1, 3))], ids=["enough", "follower", "leader"]
)
def test_replicas_that_leave_an_isr_below_its_minimum_are_eligible(isr: list[int], elr: tuple[int, ...]) -> None:
    after = settle(partition([1, 2, 3]), min_insync=2, live=isr)
    assert (after.isr, after.elr) == (tuple(isr), elr)


def test_minimum_is_not_above_the_number_of_replicas() -> None:
    assert settle(partition([1, 2]), min_insync=3, live=[1]).elr == (2,)
    assert settle(partition([1]), min_insync=3).elr == ()


def test_eligible_replica_leads_and_the_last_member_of_the_isr_becomes_eligible() -> None:
    before = partition([1, 2, 3], [1], elr=[3])
    after = settle(before, live=[2, 3], min_insync=2)
    assert leadership(after) == (3, 6, (3,), (1,))
    assert after.unclean_epoch == before.unclean_epoch


def test_isr_that_suffices_ends_the_elr() -> None:
    assert settle(partition([1, 2, 3], [1], elr=[3]), min_insync=2, isr=[1, 2]).elr == ()


def test_replica_outside_of_isr_and_elr_is_not_elected_in_a_clean_election() -> None:
    assert settle(partition([1, 2, 3], [1], elr=[3]), live=[2], min_insync=2).leader == NO_LEADER


def test_unclean_election_leaves_a_mark_and_takes_the_last_known_leader_first() -> None:
    leaderless = partition([1, 2, 3], [1], leader=-1, last_known_leader=3)
    after = settle(leaderless, live=[2, 3], election=Election.UNCLEAN, min_insync=2)
    assert leadership(after) == (3, 6, (3,), ())
    assert (after.unclean_epoch, after.last_known_leader) == (6, NO_LEADER)
    assert settle(leaderless, live=[2], election=Election.UNCLEAN).leader == 2
    assert settle(leaderless, live=[], election=Election.UNCLEAN).leader == NO_LEADER


def test_unclean_election_prefers_a_clean_leader() -> None:
    after = settle(partition([1, 2, 3], [1, 3]), live=[2, 3], election=Election.UNCLEAN)
    assert (after.leader, after.unclean_epoch) == (3, -1)


def test_unclean_election_takes_an_added_replica_last() -> None:
    moving = partition([4, 1, 2], [2], leader=-1, origin=[1, 2], target=[4, 2])
    assert settle(moving, live=[1, 4], election=Election.UNCLEAN).leader == 1
    assert settle(moving, live=[4], election=Election.UNCLEAN).leader == 4


def test_preferred_election_needs_the_first_replica_in_the_isr() -> None:
    assert settle(partition([1, 2], [1, 2], leader=2), election=Election.PREFERRED).leader == 1
    assert settle(partition([1, 2], [2]), election=Election.PREFERRED).leader == 2
    assert settle(partition([1, 2], [2]), election=Election.CLEAN).leader == 2


def test_stopping_leader_hands_over_and_leaves_the_isr() -> None:
    assert leadership(settle(partition([1, 2, 3]), stopping=[1])) == (2, 6, (2, 3), ())
    assert leadership(settle(partition([1, 2, 3]), stopping=[1, 2])) == (3, 6, (3,), ())


def test_stopping_leader_stays_while_it_is_the_last() -> None:
    alone = settle(partition([1, 2], [1]), stopping=[1])
    assert leadership(alone) == (1, 5, (1,), ())
    assert leadership(settle(alone, stopping=[1], isr=[1, 2])) == (2, 6, (2,), ())


def test_lost_records_empty_the_isr_and_the_elr() -> None:
    before = partition([1, 2, 3], [1], leader=-1, elr=[3], last_known_leader=1)
    after = settle(before, live=[2], lost=[1, 3], min_insync=2)
    assert leadership(after) == (NO_LEADER, 5, (), ())
    assert after.last_known_leader == 1


def test_unclean_election_prefers_the_replica_after_those_that_have_lost_all_records() -> None:
    before = partition([1, 2, 3], [1], leader=-1, last_known_leader=1)
    first = settle(before, live=[], wiped=[1])
    assert first.last_known_leader == 2
    assert settle(first, live=[], wiped=[2]).last_known_leader == 3
    assert settle(before, live=[], wiped=[1, 2]).last_known_leader == 3
    assert settle(before, live=[], wiped=[1, 2, 3]).last_known_leader == NO_LEADER
    assert settle(first, live=[1, 2, 3], election=Election.UNCLEAN).leader == 2
    moving = partition([4, 1], [1], leader=-1, origin=[1], target=[4], last_known_leader=1)
    assert settle(moving, live=[], wiped=[1]).last_known_leader == NO_LEADER


def test_lost_target_does_not_complete_a_reassignment() -> None:
    moving = partition([4, 1, 2], [1, 2], origin=[1, 2], target=[4, 1])
    after = settle(moving, isr=[4, 1, 2], lost=[4])
    assert (after.replicas, after.isr, after.target) == (moving.replicas, (1, 2), moving.target)


def test_reassignment_completes_when_all_targets_are_in_the_isr() -> None:
    moving = partition([4, 3, 1, 2], [1, 2], origin=[1, 2], target=[4, 3])
    assert settle(moving, isr=[4, 1, 2]).target == nodes(4, 3)
    after = settle(moving, isr=[4, 3, 1])
    assert leadership(after) == (4, 6, (4, 3), ())
    assert (after.replicas, after.origin, after.target) == (nodes(4, 3), (), ())


def test_reassignment_completes_with_the_election_of_its_only_target() -> None:
    """No later change of the ISR would complete it."""
    moving = partition([4, 3], [3], leader=-1, origin=[3], target=[4])
    after = settle(moving, live=[4], election=Election.UNCLEAN)
    assert leadership(after) == (4, 6, (4,), ())
    assert (after.replicas, after.origin, after.target, after.unclean_epoch) == (nodes(4), (), (), 6)
    eligible = partition([4, 3], [3], leader=-1, elr=[4], origin=[3], target=[4])
    after = settle(eligible, live=[4], min_insync=2)
    assert leadership(after) == (4, 6, (4,), ())
    assert (after.replicas, after.target, after.unclean_epoch) == (nodes(4), (), -1)


def test_reassignment_that_drops_a_replica_for_another_begins_an_epoch_though_the_leader_stays() -> None:
    moving = partition([1, 3, 2], [1, 2], origin=[1, 2], target=[1, 3])
    assert leadership(settle(moving, isr=[1, 2, 3])) == (1, 6, (1, 3), ())


def test_growth_begins_no_epoch() -> None:
    moving = partition([1, 2, 3], [1], origin=[1, 2], target=[1, 2, 3])
    after = settle(moving, isr=[1, 2, 3])
    assert (after.replicas, after.leader_epoch) == (nodes(1, 2, 3), 5)


def test_plain_shrink_begins_an_epoch() -> None:
    """What the dropped replica has reported must not count if it is added again, with an empty log."""
    moving = partition([1, 2, 3], [1], origin=[1, 2, 3], target=[1, 2])
    after = settle(moving, isr=[1, 2, 3])
    assert (after.replicas, after.leader_epoch) == (nodes(1, 2), 6)
