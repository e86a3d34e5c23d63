"""The consumer protocol: permitted joins, and their replies."""

import pytest

from conveyor.groups.replies import HeartbeatAnswer
from conveyor.kernel.errors import ErrorKind
from tests.unit.groups.consumers import (
    INTERVAL_MS,
    ConsumerMember,
    coordinator_with,
    described,
    joined,
    place,
    settle,
)
from tests.unit.groups.coordinator import GROUP, kind_of


def test_first_member_gets_everything_at_once() -> None:
    coordinator = coordinator_with(partition_count=2)
    answer = ConsumerMember(coordinator, "a").join()
    assert answer == HeartbeatAnswer(
        member_id="a", member_epoch=1, heartbeat_interval_ms=INTERVAL_MS, assignment=place("topic", 0, 1)
    )


def test_member_without_an_id_is_given_one_where_it_may() -> None:
    coordinator = coordinator_with()
    member = ConsumerMember(coordinator, "")
    fields = {"rebalance_timeout_ms": 1000, "owned": frozenset[object](), "topics": ("topic",)}
    assert kind_of(member.send(**fields)) is ErrorKind.INVALID_REQUEST
    assert member.send(requires_member_id=False, **fields).member_id == "made-for-"


def test_heartbeat_without_news_is_answered_without_an_assignment() -> None:
    coordinator = coordinator_with()
    [member] = joined(coordinator, "a")
    records = len(coordinator.log)
    assert member.beat().assignment is None
    assert len(coordinator.log) == records, "nothing has changed"


def test_full_heartbeat_is_answered_with_the_assignment() -> None:
    coordinator = coordinator_with(partition_count=2)
    [member] = joined(coordinator, "a")
    answer = member.send(rebalance_timeout_ms=1000, topics=("topic",), owned=member.owned)
    assert answer.assignment == place("topic", 0, 1)


def test_subscription_to_a_topic_that_is_not_there_gives_nothing() -> None:
    coordinator = coordinator_with()
    answer = ConsumerMember(coordinator, "a", topics=("later",)).join()
    assert (answer.member_epoch, answer.assignment) == (1, frozenset())


def test_member_that_joins_again_keeps_its_place() -> None:
    coordinator = coordinator_with()
    first, second = joined(coordinator, "a", "b")
    epoch = described(coordinator).epoch
    answer = first.join()
    assert answer.member_epoch == epoch
    assert answer.assignment is not None
    assert len(answer.assignment) == 2
    settle(first, second)
    assert described(coordinator).epoch == epoch


@pytest.mark.parametrize(
    "fields",
    [
        {"group_id": ""},
        {"member_id": ""},
        {"instance_id": ""},
        {"rack_id": ""},
        {"member_epoch": -3},
        {"member_epoch": -2},
        {"member_epoch": 0, "topics": ("topic",), "owned": frozenset()},
        {"member_epoch": 0, "topics": ("topic",), "rebalance_timeout_ms": 1},
        {"member_epoch": 0, "topics": ("topic",), "rebalance_timeout_ms": 1, "owned": place("topic", 0)},
        {"member_epoch": 0, "rebalance_timeout_ms": 1, "owned": frozenset()},
    ],
)
def test_senseless_request_is_refused(fields: dict[str, object]) -> None:
    coordinator = coordinator_with()
    [member] = joined(coordinator, "a")
    records = len(coordinator.log)
    assert kind_of(member.send(**fields)) is ErrorKind.INVALID_REQUEST
    assert len(coordinator.log) == records


def test_unknown_members_are_told_so() -> None:
    coordinator = coordinator_with()
    stranger = ConsumerMember(coordinator, "stranger")
    assert kind_of(stranger.send(member_epoch=1)) is ErrorKind.GROUP_ID_NOT_FOUND
    joined(coordinator, "a")
    assert kind_of(stranger.send(member_epoch=1)) is ErrorKind.UNKNOWN_MEMBER_ID
    assert kind_of(stranger.send(member_epoch=-1)) is ErrorKind.UNKNOWN_MEMBER_ID


def test_group_may_be_full() -> None:
    coordinator = coordinator_with(consumer_max_size=1)
    [member] = joined(coordinator, "a")
    late = ConsumerMember(coordinator, "b")
    refused = late.send(rebalance_timeout_ms=1, topics=(), owned=frozenset())
    assert kind_of(refused) is ErrorKind.GROUP_MAX_SIZE_REACHED
    assert member.join().assignment is not None


def test_assignor_is_the_one_that_most_members_ask_for() -> None:
    coordinator = coordinator_with(consumer_assignors="uniform,range")
    joined(coordinator, "a")
    assert described(coordinator).assignor == "uniform"
    joined(coordinator, "b", assignor="range")
    assert described(coordinator).assignor == "range"
    refused = ConsumerMember(coordinator, "c").send(
        rebalance_timeout_ms=1, topics=(), owned=frozenset(), assignor="sticky"
    )
    assert kind_of(refused) is ErrorKind.UNSUPPORTED_ASSIGNOR


def test_group_is_described() -> None:
    coordinator = coordinator_with(partition_count=2)
    joined(coordinator, "a", rack_id="rack", instance_id="one")
    group = described(coordinator)
    assert (group.state, group.epoch, group.target_epoch) == ("Stable", 1, 1)
    [member] = group.members
    assert (member.member_id, member.current.epoch, member.current.assigned) == ("a", 1, place("topic", 0, 1))
    assert (member.subscription.rack_id, member.subscription.instance_id) == ("rack", "one")
    assert member.target == member.current.assigned


def test_last_member_leaves_an_empty_group() -> None:
    coordinator = coordinator_with()
    [member] = joined(coordinator, "a")
    answer = member.leave()
    assert (answer.member_id, answer.member_epoch, answer.assignment) == ("a", -1, None)
    group = described(coordinator)
    assert (group.state, group.members) == ("Empty", ())
    assert kind_of(member.send(member_epoch=1)) is ErrorKind.UNKNOWN_MEMBER_ID
    assert GROUP in coordinator.machine._consumers.group_ids()
