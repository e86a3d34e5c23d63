"""The consumer protocol: partitions move between members step by step."""

import pytest

from conveyor.groups.known_topics import Assigned
from conveyor.groups.records.consumer_member import Current, MemberState
from conveyor.groups.replies import HeartbeatAnswer
from conveyor.kernel.errors import ErrorKind
from tests.unit.groups.consumers import ConsumerMember, coordinator_with, described, joined, place, settle, tell_topics
from tests.unit.groups.coordinator import REBALANCE_MS, kind_of


def test_new_member_gets_what_the_others_have_given_up() -> None:
    coordinator = coordinator_with(partition_count=4)
    [first] = joined(coordinator, "a")
    second = ConsumerMember(coordinator, "b")
    assert second.join().assignment == frozenset(), "all partitions are still taken"
    assert described(coordinator).state == "Reconciling"
    reply = first.beat()
    assert (reply.member_epoch, reply.assignment) == (1, place("topic", 0, 1)), (
        "its epoch rises once it has revoked them"
    )
    assert second.beat().assignment is None
    assert first.beat().member_epoch == 2
    assert second.beat().assignment == place("topic", 2, 3)
    assert described(coordinator).state == "Stable"


def test_member_that_owns_what_it_must_give_up_is_not_let_on() -> None:
    coordinator = coordinator_with(partition_count=4)
    [first] = joined(coordinator, "a")
    everything = first.owned
    second = ConsumerMember(coordinator, "b")
    second.join()
    first.beat()
    for fields in ({}, {"owned": everything}, {"owned": place("topic", 0, 1, 2)}):
        assert first.send(**fields).member_epoch == 1
        assert second.send().assignment is None
    assert first.send(owned=place("topic", 0)).member_epoch == 2, "it may read fewer partitions than assigned"


def test_members_with_nothing_to_give_up_go_on() -> None:
    coordinator = coordinator_with(partition_count=3)
    first, second, third = joined(coordinator, "a", "b", "c")
    kept = [first.owned, second.owned]
    third.leave()
    settle(first, second)
    assert all(before <= member.owned for before, member in zip(kept, (first, second), strict=True))
    assert len(first.owned | second.owned) == 3


def test_partitions_of_one_who_left_are_free_at_once() -> None:
    coordinator = coordinator_with(partition_count=2)
    first, second = joined(coordinator, "a", "b")
    second.leave()
    assert described(coordinator).state == "Assigning"
    assert first.beat().assignment == place("topic", 0, 1)


def test_target_may_change_while_a_member_gives_up_partitions() -> None:
    coordinator = coordinator_with(partition_count=4)
    [first] = joined(coordinator, "a")
    second = ConsumerMember(coordinator, "b")
    second.join()
    assert first.beat().assignment == place("topic", 0, 1)
    second.leave()
    assert first.beat().assignment == place("topic", 0, 1, 2, 3), "it gets back the partitions without another reader"
    assert described(coordinator).members[0].current.state is MemberState.STABLE


def test_member_that_never_gives_up_is_taken_out() -> None:
    coordinator = coordinator_with(partition_count=2)
    [first] = joined(coordinator, "a")
    second = ConsumerMember(coordinator, "b")
    second.join()
    first.beat()
    for _ in range(4):
        coordinator.advance(REBALANCE_MS // 4 - 1)
        assert isinstance(first.send(), HeartbeatAnswer)
        second.beat()
    coordinator.advance(4)
    assert kind_of(first.send()) is ErrorKind.UNKNOWN_MEMBER_ID
    assert second.beat().assignment == place("topic", 0, 1)


def test_member_that_gave_up_in_time_stays() -> None:
    coordinator = coordinator_with(partition_count=2)
    [first] = joined(coordinator, "a")
    second = ConsumerMember(coordinator, "b")
    second.join()
    settle(first, second)
    for _ in range(8):
        coordinator.advance(REBALANCE_MS // 4)
        settle(first, second)


def test_no_partition_has_two_readers_while_members_come_and_go() -> None:
    coordinator = coordinator_with(partition_count=7)
    members: list[ConsumerMember] = []
    for number in range(5):
        members.append(ConsumerMember(coordinator, f"member-{number}"))
        members[-1].join()
        for member in members:
            member.beat()
            owned = [partition for one in members for partition in one.owned]
            assert len(owned) == len(set(owned))
    settle(*members)
    assert sorted(len(member.owned) for member in members) == [1, 1, 1, 2, 2]


def test_subscription_change_moves_partitions() -> None:
    coordinator = coordinator_with()
    tell_topics(coordinator, topic=2, other=2)
    [member] = joined(coordinator, "a")
    answer = member.beat(topics=("other",))
    assert answer.assignment == frozenset()
    assert member.beat().assignment == place("other", 0, 1)
    assert member.beat(topics=()).assignment == frozenset()


def test_partitions_of_an_owner_are_looked_up_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    owned_in_all: list[Current] = []

    def counted(current: Current) -> Assigned:
        owned_in_all.append(current)
        return current.assigned | current.revoking

    coordinator = coordinator_with(partition_count=100)
    joined(coordinator, "a")
    monkeypatch.setattr(Current, "owned", property(counted))
    ConsumerMember(coordinator, "b").join()
    assert len(owned_in_all) < 10
