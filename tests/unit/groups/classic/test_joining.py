"""JoinGroup: member ids, and immediate refusals."""

from collections.abc import Callable
from typing import Any

import pytest

from conveyor.groups.classic.classic_member import Member
from conveyor.groups.classic.joining import MAX_PROTOCOLS
from conveyor.groups.replies import Joined, JoinRefused
from conveyor.kernel.errors import ErrorKind
from tests.unit.groups.coordinator import GROUP, SESSION_MS, Coordinator, kind_of

NOT_SHARED = ErrorKind.INCONSISTENT_GROUP_PROTOCOL


def test_new_member_is_told_its_id_first_and_joins_with_it() -> None:
    coordinator = Coordinator()
    refused = coordinator.reply(coordinator.start_join(new_member_id="a-1", requires_known_id=True))
    assert isinstance(refused, JoinRefused)
    assert kind_of(refused) is ErrorKind.MEMBER_ID_REQUIRED
    joined = coordinator.join(refused.member_id, requires_known_id=True)
    assert (joined.member_id, joined.leader, joined.generation_id) == ("a-1", "a-1", 1)


def test_new_member_of_an_old_client_joins_at_once() -> None:
    joined = Coordinator().join(new_member_id="a-1")
    assert (joined.member_id, joined.protocol_type, joined.protocol_name) == ("a-1", "consumer", "range")
    assert [member.member_id for member in joined.members] == ["a-1"]


def test_id_that_was_given_is_forgotten_after_the_session_timeout() -> None:
    coordinator = Coordinator()
    refused = coordinator.reply(coordinator.start_join(requires_known_id=True))
    coordinator.advance(SESSION_MS)
    assert kind_of(coordinator.reply(coordinator.start_join(refused.member_id))) is ErrorKind.UNKNOWN_MEMBER_ID


def test_id_that_was_given_holds_the_others_back_until_it_joins() -> None:
    coordinator = Coordinator()
    refused = coordinator.reply(coordinator.start_join(requires_known_id=True))
    other = coordinator.start_join()
    assert coordinator.is_parked(other)
    coordinator.join(refused.member_id)
    assert len(coordinator.reply(other).members) == 2


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"group_id": ""}, ErrorKind.INVALID_GROUP_ID),
        ({"session_timeout_ms": 5_999}, ErrorKind.INVALID_SESSION_TIMEOUT),
        ({"session_timeout_ms": 1_800_001}, ErrorKind.INVALID_SESSION_TIMEOUT),
        ({"protocol_type": ""}, ErrorKind.INCONSISTENT_GROUP_PROTOCOL),
        ({"protocols": ()}, ErrorKind.INCONSISTENT_GROUP_PROTOCOL),
        ({"protocols": ((("range", b""),) * 101)}, ErrorKind.INCONSISTENT_GROUP_PROTOCOL),
        ({"member_id": "stranger"}, ErrorKind.UNKNOWN_MEMBER_ID),
    ],
)
def test_join_of_a_new_group_is_refused(fields: dict[str, Any], expected: ErrorKind) -> None:
    coordinator = Coordinator()
    assert kind_of(coordinator.reply(coordinator.start_join(**fields))) is expected
    assert coordinator.machine.next_deadline_ms() is None


def test_stranger_does_not_leave_a_group_behind() -> None:
    coordinator = Coordinator()
    coordinator.start_join("stranger")
    assert coordinator.machine._classic.group_ids() == set()


@pytest.mark.parametrize(
    "fields", [{"protocol_type": "connect"}, {"protocols": (("sticky", b""),)}, {"protocols": (("", b"topics"),)}]
)
def test_member_that_shares_no_protocol_is_refused(fields: dict[str, Any]) -> None:
    coordinator = Coordinator()
    coordinator.stable_group(2)
    assert kind_of(coordinator.reply(coordinator.start_join(**fields))) is ErrorKind.INCONSISTENT_GROUP_PROTOCOL


def test_lone_member_cannot_change_the_protocol_type() -> None:
    coordinator = Coordinator()
    [member], _ = coordinator.stable_group(1)
    refused = coordinator.reply(coordinator.start_join(member, protocol_type="connect"))
    assert kind_of(refused) is ErrorKind.INCONSISTENT_GROUP_PROTOCOL


def test_empty_group_takes_another_protocol_type() -> None:
    coordinator = Coordinator()
    [member], _ = coordinator.stable_group(1)
    coordinator.leave(member)
    assert coordinator.join(protocol_type="connect").protocol_type == "connect"


def test_group_uses_the_protocol_that_most_members_prefer_of_those_all_share() -> None:
    coordinator = Coordinator()
    first = coordinator.join(protocols=(("a", b"1"), ("b", b"1"), ("c", b"1"))).member_id
    others = [coordinator.start_join(protocols=(("b", b"2"), ("a", b"2"))) for _ in range(2)]
    coordinator.start_join(first, protocols=(("a", b"1"), ("b", b"1"), ("c", b"1")))
    joined = coordinator.reply(others[0])
    assert joined.protocol_name == "b"


def test_full_group_refuses_new_members_and_keeps_its_own() -> None:
    coordinator = Coordinator(max_size=2)
    members, generation_id = coordinator.stable_group(2)
    refused = coordinator.reply(coordinator.start_join())
    assert kind_of(refused) is ErrorKind.GROUP_MAX_SIZE_REACHED
    assert coordinator.join(members[1]).generation_id == generation_id


def test_follower_that_joins_again_unchanged_is_told_the_same_generation() -> None:
    coordinator = Coordinator()
    members, generation_id = coordinator.stable_group(2)
    joined = coordinator.join(members[1])
    assert (joined.generation_id, joined.leader, joined.members) == (generation_id, members[0], ())


@pytest.mark.parametrize("position", [0, 1])
def test_leader_or_changed_member_that_joins_again_starts_a_rebalance(position: int) -> None:
    coordinator = Coordinator()
    members, generation_id = coordinator.stable_group(2)
    changed = (("range", b"topics" if position == 0 else b"others"),)
    token = coordinator.start_join(members[position], protocols=changed)
    assert coordinator.is_parked(token)
    assert kind_of(coordinator.heartbeat(members[1 - position], generation_id)) is ErrorKind.REBALANCE_IN_PROGRESS


def test_member_that_joins_twice_is_answered_on_its_later_request() -> None:
    coordinator = Coordinator()
    members, _ = coordinator.stable_group(2)
    first = coordinator.start_join(members[0])
    second = coordinator.start_join(members[0])
    assert kind_of(coordinator.reply(first)) is ErrorKind.REBALANCE_IN_PROGRESS
    coordinator.join(members[1])
    assert isinstance(coordinator.reply(second), Joined)


def test_groups_do_not_see_each_other() -> None:
    coordinator = Coordinator()
    coordinator.stable_group(2)
    assert coordinator.join(group_id=f"{GROUP}-2", protocol_type="connect").generation_id == 1


class CountedName(str):
    """A name that counts how often one is compared."""

    __slots__ = ()
    compared = 0

    def __eq__(self, other: object) -> bool:
        CountedName.compared += 1
        return super().__eq__(other)

    __hash__ = str.__hash__


def test_protocols_of_members_are_not_compared_one_by_one() -> None:
    coordinator = Coordinator()
    protocols = tuple((CountedName(f"p{number}"), b"") for number in range(MAX_PROTOCOLS))
    first = coordinator.join(new_member_id="a-1", protocols=protocols)
    second = coordinator.start_join(new_member_id="b-1", protocols=protocols[::-1])
    rejoined = coordinator.start_join(first.member_id, protocols=protocols)
    assert len(coordinator.reply(rejoined).members) == 2
    assert coordinator.reply(second).protocol_name in dict(protocols)
    assert CountedName.compared < 20 * MAX_PROTOCOLS


def protocols(*names: str) -> dict[str, Any]:
    return {"protocols": tuple((name, b"") for name in names)}


@pytest.mark.parametrize("is_static", [False, True])
def test_join_looks_at_no_protocols_of_the_other_members(monkeypatch: pytest.MonkeyPatch, is_static: bool) -> None:
    """A group may have thousands of members with 100 protocols each."""
    coordinator, looked = Coordinator(), list[str]()
    fields = {"group_instance_id": "desk"} if is_static else {}
    [first], _ = coordinator.stable_group(1, **protocols("range", "sticky"), **fields)
    for _ in range(50):
        coordinator.start_join(**protocols("sticky", "other"))
    names_of: Callable[[Member], set[str]] = vars(Member)["protocol_names"].fget

    def look(member: Member) -> set[str]:
        looked.append(member.member_id)
        return names_of(member)

    monkeypatch.setattr(Member, "protocol_names", property(look))
    coordinator.start_join("" if is_static else first, **protocols("sticky"), **fields)
    assert len(looked) < 10


def test_protocols_that_members_share_follow_joins_and_leaves() -> None:
    coordinator = Coordinator()
    first = coordinator.join(**protocols("a", "b", "b")).member_id
    second = coordinator.start_join(**protocols("b", "c"))
    assert kind_of(coordinator.reply(coordinator.start_join(**protocols("a", "c")))) is NOT_SHARED
    joined = coordinator.join(first, **protocols("c", "b"))
    assert joined.protocol_name in {"b", "c"}
    assert coordinator.is_parked(coordinator.start_join(**protocols("c", "d")))
    coordinator.leave(first, coordinator.reply(second).member_id)
    coordinator.start_join(**protocols("d"))
    assert kind_of(coordinator.reply(coordinator.start_join(**protocols("b", "c")))) is NOT_SHARED
