"""The consumer protocol: static members return to their partitions."""

from conveyor.kernel.errors import ErrorKind
from tests.unit.groups.consumers import (
    CONSUMER_SESSION_MS,
    ConsumerMember,
    coordinator_with,
    described,
    place,
    settle,
)
from tests.unit.groups.coordinator import REBALANCE_MS, Coordinator, kind_of

SUBSCRIPTION = {"rebalance_timeout_ms": REBALANCE_MS, "topics": ("topic",), "owned": frozenset[object]()}


def static_and_dynamic() -> tuple[Coordinator, ConsumerMember, ConsumerMember]:
    coordinator = coordinator_with(partition_count=2)
    static = ConsumerMember(coordinator, "a", instance_id="one")
    dynamic = ConsumerMember(coordinator, "b")
    static.join()
    dynamic.join()
    settle(static, dynamic)
    return coordinator, static, dynamic


def test_static_member_that_left_for_a_while_finds_its_partitions() -> None:
    coordinator, static, dynamic = static_and_dynamic()
    kept, epoch = static.owned, described(coordinator).epoch
    assert static.leave(-2).member_epoch == -2
    assert dynamic.beat().assignment is None, "no other member gets its partitions"
    back = ConsumerMember(coordinator, "c", instance_id="one")
    answer = back.join()
    assert (answer.assignment, answer.member_epoch) == (kept, epoch)
    assert described(coordinator).epoch == epoch
    assert {member.member_id for member in described(coordinator).members} == {"b", "c"}


def test_old_self_of_a_static_member_is_fenced() -> None:
    coordinator, static, _ = static_and_dynamic()
    static.leave(-2)
    ConsumerMember(coordinator, "c", instance_id="one").join()
    assert kind_of(static.send(member_epoch=2)) is ErrorKind.FENCED_INSTANCE_ID
    assert kind_of(static.send(member_epoch=-1)) is ErrorKind.FENCED_INSTANCE_ID


def test_instance_id_that_is_in_use_is_refused() -> None:
    coordinator, static, _ = static_and_dynamic()
    twin = ConsumerMember(coordinator, "c", instance_id="one")
    assert kind_of(twin.send(member_epoch=0, **SUBSCRIPTION)) is ErrorKind.UNRELEASED_INSTANCE_ID
    assert len(static.join().assignment or ()) == 1, "the member itself may join again"


def test_unknown_instance_id_is_an_unknown_member() -> None:
    _, _, dynamic = static_and_dynamic()
    assert kind_of(dynamic.send(instance_id="two")) is ErrorKind.UNKNOWN_MEMBER_ID


def test_static_member_that_does_not_come_back_is_taken_out() -> None:
    coordinator, static, dynamic = static_and_dynamic()
    static.leave(-2)
    coordinator.advance(CONSUMER_SESSION_MS - 1)
    assert dynamic.beat().assignment is None
    coordinator.advance(1)
    assert dynamic.beat().assignment == place("topic", 0, 1)
    assert ConsumerMember(coordinator, "c", instance_id="one").join().assignment == frozenset()


def test_static_member_may_leave_for_good() -> None:
    _, static, dynamic = static_and_dynamic()
    static.leave(-1)
    assert dynamic.beat().assignment == place("topic", 0, 1)


def test_static_member_comes_back_with_another_subscription() -> None:
    coordinator, static, _ = static_and_dynamic()
    epoch = described(coordinator).epoch
    static.leave(-2)
    back = ConsumerMember(coordinator, "c", instance_id="one", topics=("other",))
    assert back.join().assignment == frozenset()
    assert described(coordinator).epoch == epoch + 1


def test_static_member_comes_back_after_a_crash() -> None:
    coordinator, static, _ = static_and_dynamic()
    kept = static.owned
    static.leave(-2)
    coordinator.crash()
    assert kind_of(static.send(member_epoch=2)) is ErrorKind.FENCED_MEMBER_EPOCH
    assert described(coordinator).members[0].current.assigned == kept
