"""Rebalances: the join barrier, the leader's assignment, and the deadlines of each phase."""

from conveyor.groups.replies import Alive, Synced
from conveyor.kernel.errors import ErrorKind
from tests.unit.groups.coordinator import GROUP, REBALANCE_MS, SESSION_MS, Coordinator, kind_of


def test_joins_wait_until_all_members_are_in() -> None:
    coordinator = Coordinator()
    first = coordinator.join().member_id
    second = coordinator.start_join()
    assert coordinator.is_parked(second)
    joined = coordinator.join(first)
    assert coordinator.reply(second).generation_id == joined.generation_id == 2


def test_only_the_leader_gets_the_list_of_members() -> None:
    coordinator = Coordinator()
    first = coordinator.join(protocols=(("range", b"one"),)).member_id
    second = coordinator.start_join(protocols=(("range", b"two"),))
    leader, follower = coordinator.join(first, protocols=(("range", b"one"),)), coordinator.reply(second)
    assert leader.leader == follower.leader == first
    assert {member.member_id: member.metadata for member in leader.members} == {
        first: b"one",
        follower.member_id: b"two",
    }
    assert follower.members == ()


def test_members_get_what_the_leader_assigned_and_strangers_are_left_out() -> None:
    coordinator = Coordinator()
    first = coordinator.join().member_id
    token = coordinator.start_join()
    coordinator.join(first)
    second = coordinator.reply(token).member_id
    waiting = coordinator.start_sync(second, 2)
    assert coordinator.is_parked(waiting)
    lead = coordinator.start_sync(first, 2, assignments={first: b"one", "stranger": b"three"})
    assert coordinator.reply(lead) == Synced(protocol_type="consumer", protocol_name="range", assignment=b"one")
    assert coordinator.reply(waiting).assignment == b""


def test_follower_that_syncs_after_the_leader_is_answered_at_once() -> None:
    coordinator = Coordinator()
    members, generation_id = coordinator.stable_group(2)
    assert coordinator.reply(coordinator.start_sync(members[1], generation_id)).assignment == members[1].encode()


def test_assignment_of_a_stable_group_cannot_be_changed_by_syncing_again() -> None:
    coordinator = Coordinator()
    [member], generation_id = coordinator.stable_group(1)
    again = coordinator.start_sync(member, generation_id, assignments={member: b"other"})
    assert coordinator.reply(again).assignment == member.encode()


def test_sync_is_refused_for_strangers_other_generations_and_other_protocols() -> None:
    coordinator = Coordinator()
    [member], generation_id = coordinator.stable_group(1)
    sync, reply = coordinator.start_sync, coordinator.reply
    assert kind_of(reply(sync("stranger", generation_id))) is ErrorKind.UNKNOWN_MEMBER_ID
    assert kind_of(reply(sync(member, generation_id, group_id="no-group"))) is ErrorKind.UNKNOWN_MEMBER_ID
    assert kind_of(reply(sync(member, generation_id, group_id=""))) is ErrorKind.INVALID_GROUP_ID
    assert kind_of(reply(sync(member, generation_id - 1))) is ErrorKind.ILLEGAL_GENERATION
    for wrong in ({"protocol_type": "connect"}, {"protocol_name": "sticky"}):
        assert kind_of(reply(sync(member, generation_id, **wrong))) is ErrorKind.INCONSISTENT_GROUP_PROTOCOL


def test_rebalance_sends_those_who_sync_back_to_join() -> None:
    coordinator = Coordinator()
    first = coordinator.join().member_id
    token = coordinator.start_join()
    coordinator.join(first)
    second = coordinator.reply(token).member_id
    waiting = coordinator.start_sync(second, 2)
    coordinator.start_join()
    assert kind_of(coordinator.reply(waiting)) is ErrorKind.REBALANCE_IN_PROGRESS
    assert kind_of(coordinator.reply(coordinator.start_sync(first, 2))) is ErrorKind.REBALANCE_IN_PROGRESS


def test_rebalance_goes_on_without_those_who_do_not_join_in_time() -> None:
    coordinator = Coordinator()
    members, generation_id = coordinator.stable_group(2, session_timeout_ms=2 * REBALANCE_MS)
    token = coordinator.start_join()
    coordinator.advance(REBALANCE_MS - 1)
    assert coordinator.is_parked(token)
    coordinator.advance(1)
    joined = coordinator.reply(token)
    assert (joined.leader, len(joined.members)) == (joined.member_id, 1)
    assert kind_of(coordinator.heartbeat(members[0], generation_id)) is ErrorKind.UNKNOWN_MEMBER_ID


def test_rebalance_waits_for_the_longest_rebalance_timeout_of_its_members() -> None:
    coordinator = Coordinator()
    coordinator.stable_group(1, session_timeout_ms=3 * REBALANCE_MS, rebalance_timeout_ms=2 * REBALANCE_MS)
    token = coordinator.start_join()
    coordinator.advance(2 * REBALANCE_MS - 1)
    assert coordinator.is_parked(token)


def test_leader_that_brings_no_assignment_is_dropped() -> None:
    coordinator = Coordinator()
    first = coordinator.join(session_timeout_ms=3 * REBALANCE_MS).member_id
    token = coordinator.start_join()
    coordinator.join(first, session_timeout_ms=3 * REBALANCE_MS)
    second = coordinator.reply(token).member_id
    waiting = coordinator.start_sync(second, 2)
    coordinator.advance(REBALANCE_MS)
    assert kind_of(coordinator.reply(waiting)) is ErrorKind.REBALANCE_IN_PROGRESS
    assert kind_of(coordinator.heartbeat(first, 2)) is ErrorKind.UNKNOWN_MEMBER_ID
    assert coordinator.join(second).leader == second


def test_member_that_waits_does_not_lose_its_session() -> None:
    coordinator = Coordinator()
    [member], _ = coordinator.stable_group(1, session_timeout_ms=2 * REBALANCE_MS)
    token = coordinator.start_join()
    coordinator.advance(3 * SESSION_MS)
    coordinator.join(member)
    assert coordinator.heartbeat(coordinator.reply(token).member_id, 2) == Alive()


def test_rebalance_ends_early_when_the_last_missing_member_dies() -> None:
    coordinator = Coordinator()
    coordinator.stable_group(1)
    token = coordinator.start_join()
    coordinator.advance(SESSION_MS)
    assert [member.member_id for member in coordinator.reply(token).members] == [coordinator.reply(token).member_id]


def test_empty_group_waits_for_more_members_as_long_as_it_is_told_to() -> None:
    coordinator = Coordinator(initial_rebalance_delay_ms=3_000)
    tokens = []
    for _ in range(3):
        tokens.append(coordinator.start_join())
        coordinator.advance(900)
    coordinator.advance(3_299)
    assert all(coordinator.is_parked(token) for token in tokens), (
        "members that joined after the start extend the delay once"
    )
    coordinator.advance(1)
    joined = [coordinator.reply(token) for token in tokens]
    assert {reply.generation_id for reply in joined} == {1}
    assert sorted(len(reply.members) for reply in joined) == [0, 0, 3]


def test_initial_delay_is_prolonged_up_to_the_rebalance_timeout() -> None:
    coordinator = Coordinator(initial_rebalance_delay_ms=3_000)
    first = coordinator.start_join(rebalance_timeout_ms=10_000)
    for _ in range(4):
        coordinator.advance(2_400)
        coordinator.start_join(rebalance_timeout_ms=10_000)
    coordinator.advance(399)
    assert coordinator.is_parked(first)
    coordinator.advance(1)
    assert coordinator.reply(first).generation_id == 1


def test_member_that_never_asks_for_its_assignment_is_taken_out_after_the_rebalance_timeout() -> None:
    coordinator = Coordinator()
    leader = coordinator.join()
    silent = coordinator.start_join()
    joined = coordinator.join(leader.member_id)
    silent_id = coordinator.reply(silent).member_id
    coordinator.start_sync(leader.member_id, joined.generation_id, assignments={leader.member_id: b"all"})
    for _ in range(REBALANCE_MS // (SESSION_MS // 2)):
        assert coordinator.heartbeat(silent_id, joined.generation_id) == Alive()
        assert coordinator.heartbeat(leader.member_id, joined.generation_id) == Alive()
        coordinator.advance(SESSION_MS // 2)
    assert kind_of(coordinator.heartbeat(silent_id, joined.generation_id)) is ErrorKind.UNKNOWN_MEMBER_ID
    assert kind_of(coordinator.heartbeat(leader.member_id, joined.generation_id)) is ErrorKind.REBALANCE_IN_PROGRESS


def test_stable_group_whose_members_have_all_synced_stays_stable() -> None:
    coordinator = Coordinator()
    members, generation_id = coordinator.stable_group(2)
    for _ in range(2 * REBALANCE_MS // (SESSION_MS // 2)):
        assert all(coordinator.heartbeat(member_id, generation_id) == Alive() for member_id in members)
        coordinator.advance(SESSION_MS // 2)


def test_static_members_that_are_all_late_do_not_wake_the_coordinator_all_the_time() -> None:
    coordinator = Coordinator()
    coordinator.stable_group(1, group_instance_id="one", rebalance_timeout_ms=0)
    stranger = coordinator.start_join(rebalance_timeout_ms=0)
    coordinator.advance(1)
    coordinator.leave(coordinator.reply(stranger).member_id)
    wakes = 0
    while (
        deadline := coordinator.machine.next_deadline_ms()
    ) is not None and deadline < coordinator.now_ms + SESSION_MS:
        coordinator.advance(deadline - coordinator.now_ms)
        wakes += 1
        assert wakes < 30


def test_generation_rises_with_each_rebalance_also_of_an_empty_group() -> None:
    coordinator = Coordinator()
    [member], generation_id = coordinator.stable_group(1)
    coordinator.leave(member)
    assert coordinator.join().generation_id == generation_id + 2


def test_later_members_of_another_group_do_not_disturb_a_rebalance() -> None:
    coordinator = Coordinator()
    coordinator.stable_group(1)
    token = coordinator.start_join()
    coordinator.join(group_id=f"{GROUP}-2")
    assert coordinator.is_parked(token)
