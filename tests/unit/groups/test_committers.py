"""A commit over an older connection than its committer's last one is late, and undoes nothing."""

import pytest

from conveyor.groups import committers
from conveyor.kernel.errors import ErrorKind
from conveyor.kernel.ids import ProducerEpoch, ProducerId, ProducerIdentity
from tests.unit.groups.coordinator import Coordinator, kind_of

PRODUCER = ProducerIdentity(ProducerId(7), ProducerEpoch(0))


def offset(coordinator: Coordinator) -> int:
    [committed] = coordinator.committed()
    return committed.offset


def test_late_commit_of_a_member_is_refused_and_may_be_repeated() -> None:
    coordinator = Coordinator()
    [member], generation_id = coordinator.stable_group(1)
    coordinator.commit(10, member, generation_id, connection=2)
    assert kind_of(coordinator.commit(5, member, generation_id, connection=1)) is ErrorKind.COORDINATOR_LOADING
    assert offset(coordinator) == 10
    assert coordinator.commit(5, member, generation_id, connection=2).errors == (None,)
    assert coordinator.commit(6, member, generation_id, connection=3).errors == (None,)
    assert offset(coordinator) == 6


def test_late_commit_of_an_earlier_transaction_does_not_change_the_next_one() -> None:
    coordinator = Coordinator()
    coordinator.commit(10, producer=PRODUCER, connection=2)
    coordinator.end_transaction(PRODUCER, commit=True)
    coordinator.commit(20, producer=PRODUCER, connection=2)
    late = coordinator.commit(10, producer=PRODUCER, connection=1)
    assert kind_of(late) is ErrorKind.COORDINATOR_LOADING
    coordinator.end_transaction(PRODUCER, commit=True)
    assert offset(coordinator) == 20


def test_producer_that_has_taken_over_may_have_been_connected_for_longer() -> None:
    coordinator = Coordinator()
    coordinator.commit(10, producer=PRODUCER, connection=2)
    coordinator.end_transaction(PRODUCER, commit=True)
    successor = PRODUCER._replace(producer_epoch=ProducerEpoch(1))
    assert coordinator.commit(20, producer=successor, connection=1).errors == (None,)


def test_members_and_producers_have_connections_of_their_own() -> None:
    coordinator = Coordinator()
    members, generation_id = coordinator.stable_group(2)
    for connection, member in zip((2, 1), members, strict=True):
        assert coordinator.commit(5, member, generation_id, connection=connection).errors == (None,)
    assert coordinator.commit(5, producer=PRODUCER, group_id="other", connection=1).errors == (None,)


def test_commit_of_no_member_is_taken_as_it_comes() -> None:
    coordinator = Coordinator()
    coordinator.commit(10, connection=2)
    assert coordinator.commit(5, connection=1).errors == (None,)


def test_refused_commit_makes_no_other_one_late() -> None:
    coordinator = Coordinator()
    [member], generation_id = coordinator.stable_group(1)
    assert kind_of(coordinator.commit(5, member, generation_id + 1, connection=2)) is ErrorKind.ILLEGAL_GENERATION
    assert coordinator.commit(5, member, generation_id, connection=1).errors == (None,)


def test_the_committer_that_was_not_heard_for_longest_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(committers, "_MOST_COMMITTERS", 2)
    coordinator = Coordinator()
    members, generation_id = coordinator.stable_group(3)
    for member in (members[0], members[1], members[0], members[2]):
        coordinator.commit(5, member, generation_id, connection=2)
    late = [coordinator.commit(4, member, generation_id, connection=1) for member in members]
    assert [kind_of(answer) for answer in (late[0], late[2])] == [ErrorKind.COORDINATOR_LOADING] * 2
    assert late[1].errors == (None,)
