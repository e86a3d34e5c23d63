"""Heartbeats and session timeouts: the coordinator detects dead members, and tells the others to rejoin."""

from typing import Any

import pytest

from conveyor.groups.classic.classic_group import ClassicGroup
from conveyor.groups.replies import Alive
from conveyor.kernel.errors import ErrorKind
from tests.unit.groups.coordinator import SESSION_MS, Coordinator, kind_of


def test_heartbeat_of_a_stable_group_is_heard() -> None:
    coordinator = Coordinator()
    members, generation_id = coordinator.stable_group(2)
    assert all(coordinator.heartbeat(member_id, generation_id) == Alive() for member_id in members)


def test_heartbeat_before_the_assignment_is_heard() -> None:
    coordinator = Coordinator()
    joined = coordinator.join()
    assert coordinator.heartbeat(joined.member_id, joined.generation_id) == Alive()


def test_heartbeat_during_a_rebalance_says_so_and_counts() -> None:
    coordinator = Coordinator()
    [member], generation_id = coordinator.stable_group(1)
    token = coordinator.start_join()
    for _ in range(5):
        coordinator.advance(SESSION_MS - 1)
        assert kind_of(coordinator.heartbeat(member, generation_id)) is ErrorKind.REBALANCE_IN_PROGRESS
    assert coordinator.is_parked(token)


def test_heartbeat_is_refused_for_strangers_and_other_generations() -> None:
    coordinator = Coordinator()
    [member], generation_id = coordinator.stable_group(1)
    assert kind_of(coordinator.heartbeat("stranger", generation_id)) is ErrorKind.UNKNOWN_MEMBER_ID
    assert kind_of(coordinator.heartbeat(member, generation_id + 1)) is ErrorKind.ILLEGAL_GENERATION
    assert kind_of(coordinator.heartbeat(member, generation_id, group_id="none")) is ErrorKind.UNKNOWN_MEMBER_ID
    assert kind_of(coordinator.heartbeat(member, generation_id, group_id="")) is ErrorKind.INVALID_GROUP_ID


def test_member_is_taken_out_when_its_session_ends() -> None:
    coordinator = Coordinator()
    members, generation_id = coordinator.stable_group(2)
    coordinator.advance(SESSION_MS - 1)
    assert coordinator.heartbeat(members[0], generation_id) == Alive()
    coordinator.advance(1)
    assert kind_of(coordinator.heartbeat(members[1], generation_id)) is ErrorKind.UNKNOWN_MEMBER_ID
    assert kind_of(coordinator.heartbeat(members[0], generation_id)) is ErrorKind.REBALANCE_IN_PROGRESS


def test_members_whose_sessions_end_at_once_are_taken_out_before_the_group_looks_at_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    coordinator, changes = Coordinator(), []
    changed = ClassicGroup.membership_changed
    coordinator.stable_group(5)

    def counted(group: ClassicGroup, *arguments: Any) -> None:
        changes.append(len(group.members))
        changed(group, *arguments)

    monkeypatch.setattr(ClassicGroup, "membership_changed", counted)
    coordinator.advance(SESSION_MS)
    assert changes == [0]


def test_heartbeats_keep_a_session_for_ever() -> None:
    coordinator = Coordinator()
    [member], generation_id = coordinator.stable_group(1)
    for _ in range(20):
        coordinator.advance(SESSION_MS - 1)
        assert coordinator.heartbeat(member, generation_id) == Alive()


def test_commit_keeps_a_session_too() -> None:
    coordinator = Coordinator()
    [member], generation_id = coordinator.stable_group(1)
    coordinator.advance(SESSION_MS - 1)
    coordinator.commit(5, member, generation_id)
    coordinator.advance(SESSION_MS - 1)
    assert coordinator.heartbeat(member, generation_id) == Alive()


def test_silent_group_becomes_empty_and_says_so_in_the_log() -> None:
    coordinator = Coordinator()
    members, generation_id = coordinator.stable_group(3)
    coordinator.advance(SESSION_MS)
    assert kind_of(coordinator.heartbeat(members[0], generation_id)) is ErrorKind.UNKNOWN_MEMBER_ID
    coordinator.crash()
    assert coordinator.join().generation_id == generation_id + 2


def test_group_that_dies_before_its_first_assignment_does_not_count_anew() -> None:
    coordinator = Coordinator()
    generation_id = coordinator.join().generation_id
    coordinator.advance(SESSION_MS)
    assert coordinator.join().generation_id == generation_id + 2


def test_next_deadline_is_the_end_of_the_first_session() -> None:
    coordinator = Coordinator()
    coordinator.stable_group(1)
    assert coordinator.machine.next_deadline_ms() == coordinator.now_ms + SESSION_MS


def test_expire_before_the_deadline_changes_nothing() -> None:
    coordinator = Coordinator()
    coordinator.stable_group(2)
    outcome = coordinator.machine.expire(coordinator.now_ms)
    assert (outcome.records, outcome.replies) == ((), ())
