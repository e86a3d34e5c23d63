"""Roles: which may follow which, and what a partition answers in each."""

from collections.abc import Callable

import pytest

from conveyor.kernel.errors import ErrorKind, NotLeader, RequestError, StorageFailure
from conveyor.kernel.ids import LeaderEpoch, NodeId
from conveyor.replication.partition import Partition
from conveyor.replication.reads import check_leader_epoch, read_available
from conveyor.replication.roles import Follower, Leader, Role, check_succession
from conveyor.settings.tree import TopicSettings
from tests.unit.log.logs import NOW_MS
from tests.unit.replication.parts import EPOCH, NODE, Calls, Owner, batch, leader, led

NEXT = LeaderEpoch(EPOCH + 1)
OTHER = NodeId(2)
LED_ELSEWHERE = Follower(leader=OTHER, epoch=NEXT)
NOT_LEADER = ErrorKind.NOT_LEADER


def following(epoch: int, node: int | None = OTHER) -> Follower:
    return Follower(leader=None if node is None else NodeId(node), epoch=LeaderEpoch(epoch))


def leading(epoch: int, *others: int, is_read_only: bool = False) -> Leader:
    isr = (NODE, *(NodeId(each) for each in others))
    return Leader(leader=NODE, epoch=LeaderEpoch(epoch), isr=isr, is_read_only=is_read_only)


SOUND = [
    (leading(3), leading(4)),
    (leading(3), leading(3, 2)),
    (leading(3, is_read_only=True), leading(4)),
    (leading(3), following(4)),
    (leading(3), following(3, None)),
    (following(3), leading(4)),
    (following(3), following(4)),
    (following(3, None), following(3)),
]
UNSOUND = [
    (leading(3), leading(2)),
    (leading(3), following(3)),
    (leading(3), following(2)),
    (following(3), leading(3)),
    (following(3, None), leading(3)),
    (following(3), following(2)),
]


@pytest.mark.parametrize(("before", "after"), SOUND)
def test_a_role_that_may_follow(before: Role, after: Role) -> None:
    check_succession(before, after)


@pytest.mark.parametrize(("before", "after"), UNSOUND)
def test_a_role_that_must_not_follow_is_a_bug(before: Role, after: Role) -> None:
    with pytest.raises(AssertionError, match="cannot follow"):
        check_succession(before, after)


def test_a_leader_outside_of_its_isr_is_a_bug() -> None:
    with pytest.raises(AssertionError, match="not in the ISR"):
        Leader(leader=NODE, epoch=EPOCH, isr=(OTHER,))


def test_a_leader_that_hands_over_answers_everybody_who_waits_with_the_new_leader() -> None:
    owner, errors, calls = Owner(), list[RequestError | None](), Calls()
    owner.partition.append(batch(b"a"), NOW_MS)
    owner.partition.term.when_written(1, errors.append)
    owner.partition.term.when_committed(1, errors.append)
    owner.partition.changed.listen(lambda _: calls.named("listener")(None))
    owner.partition.assume(LED_ELSEWHERE)
    assert [type(each) for each in errors] == [NotLeader, NotLeader]
    assert all(isinstance(each, NotLeader) and (each.leader, each.leader_epoch) == (2, NEXT) for each in errors)
    assert calls.seen == [("listener", None)]
    owner.settle()
    assert len(errors) == 2
    assert owner.partition.term.high_watermark == 0


ASKED: list[Callable[[Partition], object]] = [
    lambda partition: partition.append(batch(b"a"), NOW_MS),
    lambda partition: partition.leading(),
    lambda partition: partition.term.check_replicas(),
    lambda partition: check_leader_epoch(partition, -1),
    lambda partition: check_leader_epoch(partition, NEXT),
]


@pytest.mark.parametrize("ask", ASKED)
def test_a_partition_that_is_led_elsewhere_refuses(ask: Callable[[Partition], object]) -> None:
    partition = Owner().partition
    partition.assume(LED_ELSEWHERE)
    with pytest.raises(NotLeader, match="t-0 is led by broker 2 in epoch 4") as refused:
        ask(partition)
    assert (refused.value.kind, refused.value.leader, refused.value.leader_epoch) == (NOT_LEADER, OTHER, NEXT)


def test_a_waiter_is_refused_where_another_broker_leads_whatever_is_reached() -> None:
    owner, calls = Owner(), Calls()
    owner.partition.append(batch(b"a"), NOW_MS)
    owner.settle()
    owner.partition.assume(LED_ELSEWHERE)
    owner.partition.term.when_written(1, calls)
    owner.partition.term.when_committed(1, calls)
    assert calls.seen == [("", NOT_LEADER), ("", NOT_LEADER)]


def test_what_a_leader_has_appended_is_written_and_flushed_after_it_has_resigned() -> None:
    """The records are in its log; whether they stay is the next leader's to say."""
    owner = Owner()
    owner.partition.append(batch(b"a"), NOW_MS)
    owner.partition.assume(led(owner.partition).role.resigned())
    owner.settle()
    assert (owner.partition.log.flushes.flushed_offset, owner.partition.term.high_watermark) == (1, 0)
    owner.partition.assume(leader(NEXT))
    assert owner.partition.term.high_watermark == 1


def test_resigning_names_no_leader() -> None:
    partition = Owner().partition
    partition.assume(led(partition).role.resigned())
    assert partition.term.role == Follower(leader=None, epoch=EPOCH)
    with pytest.raises(NotLeader, match="led by no broker") as refused:
        partition.leading()
    assert refused.value.leader is None


def test_a_leader_of_a_higher_epoch_keeps_those_who_wait_for_an_offset_and_tells_those_who_listen() -> None:
    """A fetch that knows the old epoch must look again, and be fenced."""
    owner, calls = Owner(), Calls()
    owner.partition.append(batch(b"a"), NOW_MS)
    owner.partition.term.when_committed(1, calls.named("committed"))
    owner.partition.changed.listen(lambda _: calls.named("listener")(None))
    owner.partition.assume(leader(NEXT))
    assert calls.seen == [("listener", None)]
    owner.settle()
    assert calls.seen[1:] == [("committed", None), ("listener", None)]


def test_each_epoch_begins_at_the_log_end() -> None:
    owner = Owner()
    owner.partition.append(batch(b"a"), NOW_MS)
    owner.partition.assume(leader(NEXT))
    owner.partition.append(batch(b"b"), NOW_MS)
    assert owner.partition.log.leader_epochs.entries == ((EPOCH, 0), (NEXT, 1))
    owner.partition.assume(Follower(leader=OTHER, epoch=LeaderEpoch(NEXT + 1)))
    assert owner.partition.log.leader_epochs.latest == NEXT, "only a leader notes its epoch"


def test_what_an_earlier_leader_may_have_acknowledged_reads_as_nothing_yet() -> None:
    owner = Owner()
    owner.partition.append(batch(b"a"), NOW_MS)
    owner.partition.write()
    owner.partition.assume(LED_ELSEWHERE)
    owner.partition.assume(leader(LeaderEpoch(NEXT + 1)))
    assert read_available(owner.partition, 1, 1000, at_least_one=True) is None


def test_a_leader_whose_epoch_is_not_stored_may_be_read_and_not_written() -> None:
    owner = Owner()
    owner.partition.append(batch(b"a"), NOW_MS)
    owner.settle()
    owner.partition.assume(leading(EPOCH, is_read_only=True))
    with pytest.raises(RequestError, match="no room to store its leader epoch") as refused:
        owner.partition.append(batch(b"b"), NOW_MS)
    assert refused.value.kind is ErrorKind.DISK_FULL
    assert read_available(owner.partition, 0, 1000, at_least_one=True) is not None
    owner.partition.assume(leader(NEXT))
    assert owner.partition.append(batch(b"b"), NOW_MS).first_offset == 1


def test_in_sync_replicas_are_counted() -> None:
    partition = Owner(TopicSettings(min_insync_replicas=3)).partition
    partition.assume(leading(EPOCH, 2, 3))
    partition.term.check_replicas()
    partition.assume(leading(EPOCH, 2))
    with pytest.raises(RequestError, match="has 2 in-sync replicas") as refused:
        partition.term.check_replicas()
    assert refused.value.kind is ErrorKind.NOT_ENOUGH_REPLICAS


def test_an_offline_partition_stays_offline_in_every_role() -> None:
    owner, calls = Owner(), Calls()
    owner.partition.go_offline(StorageFailure("the reason"))
    owner.partition.assume(LED_ELSEWHERE)
    owner.partition.term.when_committed(1, calls)
    owner.partition.assume(leader(LeaderEpoch(NEXT + 1)))
    owner.partition.term.when_committed(1, calls)
    assert calls.seen == [("", ErrorKind.PARTITION_OFFLINE)] * 2
