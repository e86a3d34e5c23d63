"""LeaveGroup: one member, several members, and unknown members."""

from conveyor.groups.group_commands import LeaveGroup, LeavingMember
from conveyor.groups.replies import Alive, Left
from conveyor.kernel.errors import ErrorKind
from tests.unit.groups.coordinator import GROUP, Coordinator, kind_of


def test_leaving_starts_a_rebalance_of_the_rest() -> None:
    coordinator = Coordinator()
    members, generation_id = coordinator.stable_group(2)
    assert coordinator.leave(members[0]) == Left(errors=(None,))
    assert kind_of(coordinator.heartbeat(members[1], generation_id)) is ErrorKind.REBALANCE_IN_PROGRESS
    assert coordinator.join(members[1]).leader == members[1]


def test_leaving_member_that_waits_is_told_that_it_is_gone() -> None:
    coordinator = Coordinator()
    coordinator.stable_group(1)
    token = coordinator.start_join(new_member_id="late")
    coordinator.leave("late")
    assert kind_of(coordinator.reply(token)) is ErrorKind.UNKNOWN_MEMBER_ID


def test_last_missing_member_that_leaves_ends_the_join() -> None:
    coordinator = Coordinator()
    [member], _ = coordinator.stable_group(1)
    token = coordinator.start_join()
    coordinator.leave(member)
    assert len(coordinator.reply(token).members) == 1


def test_member_that_was_only_given_an_id_may_leave() -> None:
    coordinator = Coordinator()
    refused = coordinator.reply(coordinator.start_join(requires_known_id=True))
    token = coordinator.start_join()
    assert coordinator.leave(refused.member_id) == Left(errors=(None,))
    assert len(coordinator.reply(token).members) == 1


def test_member_that_was_only_given_an_id_leaves_a_stable_group_in_peace() -> None:
    coordinator = Coordinator()
    [member], generation_id = coordinator.stable_group(1)
    refused = coordinator.reply(coordinator.start_join(requires_known_id=True))
    coordinator.leave(refused.member_id)
    assert coordinator.heartbeat(member, generation_id) == Alive()


def test_several_leave_at_once_with_one_rebalance() -> None:
    coordinator = Coordinator()
    members, generation_id = coordinator.stable_group(3)
    staying = coordinator.start_join(members[2], protocols=(("range", b"more"),))
    parked = coordinator.start_join(members[1])
    left = coordinator.leave(members[0], members[1])
    assert left == Left(errors=(None, None))
    assert kind_of(coordinator.reply(parked)) is ErrorKind.UNKNOWN_MEMBER_ID
    joined = coordinator.reply(staying)
    assert [member.member_id for member in joined.members] == [members[2]]
    assert joined.generation_id == generation_id + 1


def test_each_of_several_is_answered_for_itself() -> None:
    coordinator = Coordinator()
    [member], _ = coordinator.stable_group(1)
    errors = coordinator.leave("stranger", member).errors
    assert kind_of(errors[0]) is ErrorKind.UNKNOWN_MEMBER_ID
    assert errors[1] is None


def test_whoever_leaves_an_unknown_group_is_an_unknown_member_of_it() -> None:
    left = Coordinator().leave("stranger", "other", group_id="no-group")
    assert [kind_of(error) for error in left.errors] == [ErrorKind.UNKNOWN_MEMBER_ID] * 2


def test_leaving_without_a_group_id_is_refused_as_a_whole() -> None:
    assert kind_of(Coordinator().leave("stranger", group_id="")) is ErrorKind.INVALID_GROUP_ID


def test_static_member_is_taken_out_by_its_instance_id_alone() -> None:
    coordinator = Coordinator()
    joined = coordinator.join(group_instance_id="one")
    leaving = (
        LeavingMember(member_id="", group_instance_id="one"),
        LeavingMember(member_id="", group_instance_id="two"),
    )
    errors = coordinator.ask(LeaveGroup(group_id=GROUP, members=leaving)).errors
    assert errors[0] is None
    assert kind_of(errors[1]) is ErrorKind.UNKNOWN_MEMBER_ID
    assert kind_of(coordinator.heartbeat(joined.member_id, 1)) is ErrorKind.UNKNOWN_MEMBER_ID


def test_member_that_names_an_instance_it_is_not_stays() -> None:
    coordinator = Coordinator()
    [member], generation_id = coordinator.stable_group(1)
    leaving = (LeavingMember(member_id=member, group_instance_id="one"),)
    errors = coordinator.ask(LeaveGroup(group_id=GROUP, members=leaving)).errors
    assert kind_of(errors[0]) is ErrorKind.UNKNOWN_MEMBER_ID
    assert coordinator.heartbeat(member, generation_id) == Alive()
