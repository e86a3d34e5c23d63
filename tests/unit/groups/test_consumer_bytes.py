"""The consumer protocol: the members of a group have a limited number of bytes, each and in all."""

from typing import Any

import pytest

from conveyor.groups.consumer.subscriptions_draft import MAX_MEMBER_BYTES
from conveyor.kernel.errors import ErrorKind
from tests.unit.groups.consumers import ConsumerMember, coordinator_with, described, joined
from tests.unit.groups.coordinator import GROUP, Coordinator, kind_of
from tests.unit.groups.migration.test_protocol_change import classic_group

LONG_NAMES = tuple(str(number).rjust(30_000, "x") for number in range(MAX_MEMBER_BYTES // 30_000 + 1))
LIMIT = "conveyor.groups.consumer.subscriptions_draft.MAX_MEMBERS_BYTES"


def bytes_in_all(coordinator: Coordinator) -> int:
    group = coordinator.machine._consumers.find(GROUP)
    return 0 if group is None else group.member_bytes_in_all


def size_of(member_id: str) -> int:
    coordinator = coordinator_with()
    joined(coordinator, member_id)
    return bytes_in_all(coordinator)


def join(coordinator: Coordinator, member_id: str, **fields: Any) -> Any:
    return ConsumerMember(coordinator, member_id).send(rebalance_timeout_ms=1, owned=frozenset(), **fields)


def test_member_that_subscribes_to_too_much_is_refused_and_stays() -> None:
    coordinator = coordinator_with()
    [member] = joined(coordinator, "a")
    logged = len(coordinator.log)
    assert kind_of(member.send(topics=LONG_NAMES)) is ErrorKind.GROUP_MAX_SIZE_REACHED
    assert kind_of(join(coordinator, "b", topics=LONG_NAMES)) is ErrorKind.GROUP_MAX_SIZE_REACHED
    assert len(coordinator.log) == logged
    member.beat(topics=LONG_NAMES[1:-1])
    member.leave()


@pytest.mark.parametrize("field", ["client_id", "instance_id", "rack_id", "pattern"])
def test_all_fields_of_a_member_count(monkeypatch: pytest.MonkeyPatch, field: str) -> None:
    coordinator = coordinator_with()
    joined(coordinator, "a")
    monkeypatch.setattr(LIMIT, bytes_in_all(coordinator) + size_of("b") + 40)
    refused = join(coordinator, "b", topics=("topic",), **{field: "x" * 100})
    assert kind_of(refused) is ErrorKind.GROUP_MAX_SIZE_REACHED
    joined(coordinator, "b")


def test_ids_count_once_for_each_record(monkeypatch: pytest.MonkeyPatch) -> None:
    assert size_of("a" * 101) == size_of("a") + 3 * 100
    coordinator = coordinator_with()
    monkeypatch.setattr(LIMIT, 2 * size_of("a") + 3 * 99)
    joined(coordinator, "a")
    assert kind_of(join(coordinator, "b" * 101, topics=("topic",))) is ErrorKind.GROUP_MAX_SIZE_REACHED
    joined(coordinator, "b" * 100)


def test_static_member_that_returns_with_a_longer_id_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    coordinator = coordinator_with()
    [member] = joined(coordinator, "a", instance_id="i")
    monkeypatch.setattr(LIMIT, bytes_in_all(coordinator) + 3 * 10)
    member.leave(epoch=-2)
    fields = {"instance_id": "i", "topics": ("topic",)}
    assert kind_of(join(coordinator, "b" * 20, **fields)) is ErrorKind.GROUP_MAX_SIZE_REACHED
    assert join(coordinator, "b" * 10, **fields).member_epoch > 0
    assert [listed.member_id for listed in described(coordinator).members] == ["b" * 10]


def test_members_of_a_group_that_is_too_large_stay_and_leave(monkeypatch: pytest.MonkeyPatch) -> None:
    coordinator = coordinator_with()
    first, second = joined(coordinator, "a", "b", topics=("topic", "other"))
    monkeypatch.setattr(LIMIT, 10)
    assert kind_of(join(coordinator, "c", topics=("topic",))) is ErrorKind.GROUP_MAX_SIZE_REACHED
    assert kind_of(first.send(topics=("topic", "other", "third"))) is ErrorKind.GROUP_MAX_SIZE_REACHED
    first.beat(topics=("topic",))
    second.beat()
    second.leave()
    assert [listed.member_id for listed in described(coordinator).members] == ["a"]


def test_bytes_are_counted_also_when_members_change_and_leave() -> None:
    coordinator = coordinator_with()
    first, second = joined(coordinator, "a", "b")
    assert bytes_in_all(coordinator) == 2 * size_of("a")
    second.beat(topics=("topic", "other"))
    larger = bytes_in_all(coordinator)
    assert larger > 2 * size_of("a")
    coordinator.crash()
    assert bytes_in_all(coordinator) == larger
    first.leave()
    second.leave()
    assert bytes_in_all(coordinator) == 0


def test_classic_group_whose_members_are_too_large_is_not_converted(monkeypatch: pytest.MonkeyPatch) -> None:
    coordinator = coordinator_with()
    classic_group(coordinator)
    monkeypatch.setattr("conveyor.groups.migration.protocol_change.MAX_MEMBERS_BYTES", 10)
    assert kind_of(join(coordinator, "a", topics=("topic",))) is ErrorKind.GROUP_ID_NOT_FOUND
