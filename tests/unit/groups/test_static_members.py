"""Static members (KIP-345) return under a new id and keep their place; the old id is fenced."""

from conveyor.groups.replies import Alive, Joined
from conveyor.kernel.errors import ErrorKind
from tests.unit.groups.coordinator import RANGE, REBALANCE_MS, SESSION_MS, Coordinator, kind_of


def two_static_members() -> tuple[Coordinator, Joined, Joined]:
    """Return a stable group of `one`, the leader, and `two`."""
    coordinator = Coordinator()
    one = coordinator.join(group_instance_id="one")
    token = coordinator.start_join(group_instance_id="two")
    one = coordinator.join(one.member_id, group_instance_id="one")
    two: Joined = coordinator.reply(token)
    coordinator.assign(one.member_id, one.generation_id, one.member_id, two.member_id)
    return coordinator, one, two


def test_static_member_joins_without_being_told_an_id_first() -> None:
    joined = Coordinator().join(group_instance_id="one", requires_known_id=True)
    assert [member.group_instance_id for member in joined.members] == ["one"]


def test_static_member_that_is_back_keeps_its_assignment_without_a_rebalance() -> None:
    coordinator, one, two = two_static_members()
    back = coordinator.join(group_instance_id="two")
    assert back.member_id != two.member_id
    assert (back.generation_id, back.leader) == (two.generation_id, one.member_id)
    synced = coordinator.reply(coordinator.start_sync(back.member_id, back.generation_id, group_instance_id="two"))
    assert synced.assignment == two.member_id.encode()
    assert coordinator.heartbeat(one.member_id, one.generation_id) == Alive()


def test_static_member_that_is_back_may_own_nothing_yet() -> None:
    coordinator, one, _ = two_static_members()
    coordinator.join(group_instance_id="two", protocols=(("range", b"topics, and that it owns nothing"),))
    assert coordinator.heartbeat(one.member_id, one.generation_id) == Alive()


def test_static_member_that_is_back_with_another_protocol_starts_a_rebalance() -> None:
    coordinator = Coordinator()
    both = (("a", b""), ("b", b""))
    one = coordinator.join(group_instance_id="one", protocols=both)
    coordinator.assign(one.member_id, one.generation_id, one.member_id)
    back = coordinator.join(group_instance_id="one", protocols=both[::-1])
    assert (back.generation_id, back.protocol_name) == (one.generation_id + 1, "b")


def test_static_leader_that_is_back_need_not_assign_again() -> None:
    coordinator, one, _ = two_static_members()
    back = coordinator.join(group_instance_id="one", skips_assignment=True)
    assert (back.generation_id, back.leader, back.skip_assignment) == (one.generation_id, back.member_id, True)
    assert len(back.members) == 2


def test_static_follower_that_is_back_is_not_told_to_skip_what_it_never_does() -> None:
    coordinator, _, _ = two_static_members()
    assert not coordinator.join(group_instance_id="two", skips_assignment=True).skip_assignment


def test_old_id_of_a_static_member_is_fenced() -> None:
    coordinator, _, two = two_static_members()
    coordinator.join(group_instance_id="two")
    old = {"group_instance_id": "two"}
    replies = [
        coordinator.heartbeat(two.member_id, two.generation_id, **old),
        coordinator.reply(coordinator.start_sync(two.member_id, two.generation_id, **old)),
        coordinator.commit(1, two.member_id, two.generation_id, **old),
        coordinator.reply(coordinator.start_join(two.member_id, **old)),
    ]
    assert [kind_of(reply) for reply in replies] == [ErrorKind.FENCED_INSTANCE_ID] * 4


def test_parked_request_of_the_old_id_is_answered_as_fenced() -> None:
    coordinator, one, two = two_static_members()
    parked = coordinator.start_join(one.member_id, group_instance_id="one")
    again = coordinator.start_join(group_instance_id="one")
    assert kind_of(coordinator.reply(parked)) is ErrorKind.FENCED_INSTANCE_ID
    assert coordinator.is_parked(again)
    coordinator.join(two.member_id, group_instance_id="two")
    assert coordinator.reply(again).leader == coordinator.reply(again).member_id


def test_static_member_that_is_back_between_join_and_sync_starts_a_rebalance() -> None:
    coordinator = Coordinator()
    one = coordinator.join(group_instance_id="one")
    back = coordinator.join(group_instance_id="one")
    assert back.generation_id == one.generation_id + 1


def test_instance_that_nobody_is_makes_an_unknown_member() -> None:
    coordinator = Coordinator()
    [member], generation_id = coordinator.stable_group(1)
    refused = coordinator.heartbeat(member, generation_id, group_instance_id="one")
    assert kind_of(refused) is ErrorKind.UNKNOWN_MEMBER_ID


def test_late_static_member_stays_in_the_next_generation_until_its_session_ends() -> None:
    coordinator = Coordinator()
    long = 2 * REBALANCE_MS
    one = coordinator.join(group_instance_id="one", session_timeout_ms=long)
    coordinator.assign(one.member_id, 1, one.member_id)
    token = coordinator.start_join()
    coordinator.advance(REBALANCE_MS)
    joined = coordinator.reply(token)
    assert (joined.leader, len(joined.members)) == (joined.member_id, 2)


def test_rebalance_that_no_static_member_joined_goes_on_in_the_same_generation() -> None:
    coordinator = Coordinator()
    one = coordinator.join(group_instance_id="one", session_timeout_ms=4 * REBALANCE_MS)
    coordinator.assign(one.member_id, 1, one.member_id)
    coordinator.start_join(new_member_id="short")
    coordinator.leave("short")
    coordinator.advance(3 * REBALANCE_MS)
    assert kind_of(coordinator.heartbeat(one.member_id, 1)) is ErrorKind.REBALANCE_IN_PROGRESS
    back = coordinator.join(one.member_id, group_instance_id="one")
    assert (back.generation_id, back.leader) == (2, one.member_id)


def test_static_member_that_does_not_come_back_is_taken_out() -> None:
    coordinator, one, _ = two_static_members()
    coordinator.advance(SESSION_MS - 1)
    coordinator.heartbeat(one.member_id, one.generation_id, group_instance_id="one")
    coordinator.advance(1)
    assert len(coordinator.join(one.member_id, group_instance_id="one").members) == 1
    assert coordinator.is_parked(coordinator.start_join(group_instance_id="two", protocols=RANGE))


def test_static_member_that_is_back_counts_once_in_a_full_group() -> None:
    coordinator = Coordinator(max_size=1)
    one = coordinator.join(group_instance_id="one")
    coordinator.assign(one.member_id, 1, one.member_id)
    assert coordinator.join(group_instance_id="one").generation_id == 1
    refused = coordinator.reply(coordinator.start_join(group_instance_id="two"))
    assert kind_of(refused) is ErrorKind.GROUP_MAX_SIZE_REACHED


def test_dynamic_member_does_not_replace_a_member_with_an_empty_instance_id() -> None:
    coordinator = Coordinator()
    first = coordinator.join(group_instance_id="")
    second = coordinator.start_join()
    coordinator.join(first.member_id, group_instance_id="")
    assert len({first.member_id, coordinator.reply(second).member_id}) == 2
