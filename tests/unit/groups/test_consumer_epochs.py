"""The consumer protocol: epochs fence members whose state is out of date."""

import pytest

from conveyor.groups.group_commands import FetchOffsets
from conveyor.groups.replies import Committed, FetchedOffsets
from conveyor.kernel.errors import ErrorKind
from tests.unit.groups.consumers import ConsumerMember, coordinator_with, described, joined, place, settle, tell_topics
from tests.unit.groups.coordinator import GROUP, Coordinator, kind_of


def reconciled_twice() -> tuple[Coordinator, ConsumerMember]:
    """Return a member at epoch 3 whose previous epoch was 2."""
    coordinator = coordinator_with(partition_count=2)
    first, second = joined(coordinator, "a", "b")
    second.leave()
    settle(first)
    assert (first.epoch, first.owned) == (3, place("topic", 0, 1))
    return coordinator, first


@pytest.mark.parametrize("epoch", [1, 4])
def test_member_with_another_epoch_is_fenced(epoch: int) -> None:
    _, member = reconciled_twice()
    refused = member.send(member_epoch=epoch, owned=member.owned)
    assert kind_of(refused) is ErrorKind.FENCED_MEMBER_EPOCH


def test_member_that_missed_an_answer_goes_on() -> None:
    _, member = reconciled_twice()
    answer = member.send(member_epoch=2, owned=place("topic", 0))
    assert answer.member_epoch == 3


def test_member_that_missed_an_answer_and_reads_too_much_is_fenced() -> None:
    _, member = reconciled_twice()
    too_much = member.owned | place("topic", 5)
    for fields in ({}, {"owned": too_much}):
        assert kind_of(member.send(member_epoch=2, **fields)) is ErrorKind.FENCED_MEMBER_EPOCH


def test_fenced_member_joins_again_and_gets_its_partitions_back() -> None:
    _, member = reconciled_twice()
    assert kind_of(member.send(member_epoch=1)) is ErrorKind.FENCED_MEMBER_EPOCH
    assert member.join().assignment == place("topic", 0, 1)


def test_member_commits_with_its_epoch() -> None:
    coordinator, _ = reconciled_twice()
    assert isinstance(coordinator.commit(5, "a", 3), Committed)
    for epoch in (2, 4, -1):
        assert kind_of(coordinator.commit(6, "a", epoch)) is ErrorKind.STALE_MEMBER_EPOCH
    assert kind_of(coordinator.commit(6, "stranger", 3)) is ErrorKind.UNKNOWN_MEMBER_ID
    assert kind_of(coordinator.commit(6)) is ErrorKind.UNKNOWN_MEMBER_ID
    assert kind_of(coordinator.commit(6, "a", 3, knows_member_epochs=False)) is ErrorKind.UNSUPPORTED_VERSION
    assert [committed.offset for committed in coordinator.committed()] == [5]


def test_anybody_commits_to_an_empty_group() -> None:
    coordinator, member = reconciled_twice()
    member.leave()
    assert isinstance(coordinator.commit(7), Committed)
    assert kind_of(coordinator.commit(8, "a", 3)) is ErrorKind.UNKNOWN_MEMBER_ID


def test_member_fetches_with_its_epoch() -> None:
    coordinator, _ = reconciled_twice()

    def fetch(member_id: str | None, epoch: int) -> object:
        return coordinator.ask(FetchOffsets(group_id=GROUP, partitions=None, member_id=member_id, member_epoch=epoch))

    assert isinstance(fetch("a", 3), FetchedOffsets)
    assert isinstance(fetch(None, -1), FetchedOffsets)
    assert kind_of(fetch("a", 2)) is ErrorKind.STALE_MEMBER_EPOCH
    assert kind_of(fetch("stranger", 3)) is ErrorKind.UNKNOWN_MEMBER_ID


def test_group_epoch_rises_with_what_concerns_all() -> None:
    coordinator = coordinator_with(partition_count=2)
    [member] = joined(coordinator, "a")
    assert described(coordinator).epoch == 1
    member.beat(rebalance_timeout_ms=5, assignor="range", rack_id="rack")
    assert described(coordinator).epoch == 1
    tell_topics(coordinator, topic=2, unrelated=1)
    member.beat()
    assert described(coordinator).epoch == 1
    tell_topics(coordinator, topic=3)
    member.beat()
    assert described(coordinator).epoch == 2
