"""Settlement: the effect of each lease on acks, nacks and rejects, and when they are answered."""

from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec
import pytest

from conveyor.kernel.errors import ErrorKind, RequestError, StorageFailure
from conveyor.queues.delivery import subscription_queue as queue_module
from conveyor.queues.delivery.memory_budget import MemoryBudget
from conveyor.queues.queue_commands import (
    MAX_REASON_CHARACTERS,
    Acknowledge,
    Extend,
    LeaseMessages,
    NackMessages,
    QueueCommand,
    Reject,
    Release,
    SeekSubscription,
    Target,
)
from tests.unit.queues.model import kinds
from tests.unit.queues.stage import SUBSCRIPTION, VISIBILITY_MS, Stage, header, subscription, target

LOST = ErrorKind.LEASE_LOST


def stage_with(count: int = 1, **document: Any) -> Stage:
    stage = Stage(subscription(**document))
    stage.publish_plain(count)
    return stage


def acknowledge(*targets: Target) -> Acknowledge:
    return Acknowledge(subscription=SUBSCRIPTION, targets=targets)


def extend(stage: Stage, at: Target, visibility_ms: int) -> list[ErrorKind | None]:
    return kinds(stage.ask(Extend(subscription=SUBSCRIPTION, targets=(at,), visibility_ms=visibility_ms)))


def test_acknowledgement_is_told_when_it_is_safe() -> None:
    stage = stage_with()
    lease = target(stage.lease()[0])
    replies: list[object] = []
    stage.submit(acknowledge(lease), replies.append)
    assert replies == []
    stage.settle()
    assert replies == [(None,)]


def test_second_acknowledgement_is_not_told_before_the_first_is_safe() -> None:
    stage = stage_with()
    lease = target(stage.lease()[0])
    replies: list[object] = []
    stage.submit(acknowledge(lease))
    stage.submit(acknowledge(lease), replies.append)
    assert replies == []


def test_lease_is_told_at_once_unless_keys_are_ordered() -> None:
    command = LeaseMessages(subscription=SUBSCRIPTION, count=1, max_bytes=1, visibility_ms=1_000)
    for ordering, is_told in (("none", True), ("key", False)):
        stage = stage_with(2, ordering=ordering)
        stage.submit(acknowledge(target(stage.lease()[0])))
        replies: list[object] = []
        stage.submit(command, replies.append)
        assert bool(replies) is is_told


def test_stale_lease_is_refused() -> None:
    stage = stage_with()
    old = target(stage.lease(visibility_ms=100)[0])
    stage.pass_time(100)
    assert kinds(stage.ack(old)) == [LOST]
    new = stage.lease()[0]
    assert new.delivery_count == 2
    assert kinds(stage.ack(old)) == [LOST]
    assert kinds(stage.ack(target(new))) == [None]


def test_lease_given_before_a_seek_is_refused_after_it() -> None:
    stage = stage_with()
    old = target(stage.lease()[0])
    stage.ask(SeekSubscription(subscription=SUBSCRIPTION, offset=0))
    assert kinds(stage.ack(old)) == [LOST]
    new = target(stage.lease()[0])
    assert old != new
    assert kinds(stage.ack(old)) == [LOST]
    assert kinds(stage.ack(new)) == [None]


def test_lease_given_before_a_crash_is_refused_after_it() -> None:
    stage = stage_with()
    old = target(stage.lease()[0])
    stage.crash()
    stage.lease()
    assert kinds(stage.ack(old)) == [LOST]


def test_message_id_settles_the_current_lease() -> None:
    stage = stage_with(2)
    stage.lease(2)
    assert kinds(stage.ack(Target(1), Target(1))) == [None, None]
    assert stage.counts().unsettled == 1


def test_message_that_is_not_leased_cannot_be_acknowledged_by_its_id() -> None:
    assert kinds(stage_with(2).ack(Target(0), Target(7))) == [LOST, ErrorKind.UNKNOWN_MESSAGE]


@pytest.mark.parametrize("delivery", ["at_least_once", "exactly_once"])
def test_good_and_stale_lease_in_one_request_are_told_apart(delivery: str) -> None:
    stage = stage_with(1, delivery=delivery)
    old = target(stage.lease(visibility_ms=1)[0])
    stage.pass_time(1)
    new = target(stage.lease()[0])
    assert kinds(stage.ack(new, old, new)) == [None, LOST, None]


def test_exactly_once_knows_who_acknowledged() -> None:
    stage = stage_with(1, delivery="exactly_once")
    old = target(stage.lease(visibility_ms=1)[0])
    stage.pass_time(1)
    new = target(stage.lease()[0])
    stage.ack(new)
    assert kinds(stage.ack(new, old)) == [None, LOST]
    stage.restart()
    assert kinds(stage.ack(new, old)) == [LOST, LOST]
    assert stage.lease_offsets() == []


def test_at_least_once_takes_any_acknowledgement_of_what_is_settled() -> None:
    stage = stage_with()
    old = target(stage.lease(visibility_ms=1)[0])
    stage.pass_time(1)
    stage.ack(target(stage.lease()[0]))
    assert kinds(stage.ack(old)) == [None]


def test_at_most_once_is_settled_when_leased() -> None:
    stage = stage_with(1, delivery="at_most_once")
    lease = target(stage.lease()[0])
    assert stage.counts().unsettled == 0
    assert kinds(stage.ack(lease)) == [None]
    assert kinds(stage.nack(lease)) == [LOST]
    assert extend(stage, lease, 5) == [LOST]
    stage.crash()
    assert stage.lease_offsets() == []


def test_message_named_twice_is_given_back_once() -> None:
    stage = stage_with()
    lease = target(stage.lease()[0])
    stale = Target(0, (lease.lease[0], 99) if lease.lease else None)
    assert kinds(stage.nack(lease, Target(0), stale)) == [None, None, LOST]
    assert stage.lease()[0].delivery_count == 2
    assert stage.lease_offsets() == []


def test_retry_waits_for_the_backoff_or_as_long_as_it_is_told() -> None:
    stage = stage_with(2, retry={"base_ms": 1_000, "factor": 2, "cap_ms": 10_000})
    first, second = stage.lease(2)
    stage.nack(target(first), delay_ms=None)
    stage.nack(target(second), delay_ms=700)
    stage.pass_time(499)
    assert stage.lease_offsets() == []
    stage.pass_time(1)
    assert stage.lease_offsets() == [0]
    stage.pass_time(200)
    assert stage.lease_offsets() == [1]


def test_last_delivery_dooms() -> None:
    stage = stage_with(1, max_deliveries=2)
    for _ in range(2):
        stage.nack(target(stage.lease()[0]))
    [(offset, attempt)] = stage.queue.deliveries.dead_lettering.first(10)
    assert (offset, attempt.deliveries, attempt.dead_letter_reason) == (0, 2, "delivered 2 times")
    assert stage.lease_offsets() == []


def test_rejected_message_is_dead_lettered_at_once_and_stays_so_after_a_crash() -> None:
    stage = stage_with()
    stage.ask(Reject(subscription=SUBSCRIPTION, targets=(target(stage.lease()[0]),), reason="bad"))
    stage.crash()
    [(offset, attempt)] = stage.queue.deliveries.dead_lettering.first(10)
    assert (offset, attempt.deliveries, attempt.dead_letter_reason) == (0, 1, "bad")


def test_rejections_with_the_longest_reason_write_less_than_a_kilobyte_for_each_message() -> None:
    stage = stage_with(100)
    targets = tuple(target(stage.lease()[0]) for _ in range(100))
    _, records = stage.queue.reject(
        Reject(subscription=SUBSCRIPTION, targets=targets, reason=MAX_REASON_CHARACTERS * "\N{COLLISION SYMBOL}"), 0
    )
    assert sum(len(record.value or b"") for record in records) < 100 * 1_000


def test_longer_reason_is_refused_from_a_client_and_from_another_broker() -> None:
    reason = (MAX_REASON_CHARACTERS + 1) * "x"
    with pytest.raises(RequestError, match="a reason of 201 characters: use at most 200"):
        Reject(subscription=SUBSCRIPTION, targets=(), reason=reason)
    received = msgspec.msgpack.encode({"subscription": str(SUBSCRIPTION), "targets": (), "reason": reason})
    with pytest.raises(RequestError, match="a reason of 201 characters: use at most 200"):
        msgspec.msgpack.decode(received, type=Reject)


def test_extended_lease_ends_later() -> None:
    stage = stage_with()
    lease = target(stage.lease(visibility_ms=100)[0])
    assert extend(stage, lease, 1_000) == [None]
    stage.pass_time(999)
    assert stage.counts().in_flight == 1
    stage.pass_time(1)
    assert stage.counts().in_flight == 0


def test_lease_for_no_time_ends_at_once() -> None:
    stage = stage_with()
    stage.lease(visibility_ms=0)
    stage.pass_time(0)
    assert stage.lease()[0].delivery_count == 2


def test_message_that_is_leased_again_at_once_ends_with_the_others() -> None:
    stage = stage_with(3)
    leases = [target(leased) for leased in stage.lease(3)]
    assert stage.nack(leases[1]) == (None,)
    [again] = stage.lease(3)
    assert extend(stage, leases[2], VISIBILITY_MS) == [None]
    stage.pass_time(VISIBILITY_MS)
    assert (again.delivery_count, stage.counts().in_flight) == (2, 0)
    assert [leased.delivery_count for leased in stage.lease(3)] == [2, 3, 2]


def test_released_message_counts_no_delivery() -> None:
    stage = stage_with(2)
    lease = target(stage.lease()[0])
    stage.ask(Release(subscription=SUBSCRIPTION, targets=(lease, Target(0, (9, 9)))))
    assert [(leased.message.offset, leased.delivery_count) for leased in stage.lease(2)] == [(0, 1), (1, 1)]


def test_lease_that_is_released_with_a_delay_counts_no_delivery_and_lets_others_pass() -> None:
    stage = Stage(subscription())
    stage.publish_plain(2)
    stage.ask(Release(subscription=SUBSCRIPTION, targets=(target(stage.lease()[0]),), delay_ms=100))
    assert stage.lease_offsets() == [1]
    stage.pass_time(100)
    assert [(lease.message.offset, lease.delivery_count) for lease in stage.lease(2)] == [(0, 1)]


def check_waits_for_30_s(stage: Stage, seconds: int) -> None:
    """Set the wall clock by some seconds: the only message is available after 30 s."""
    stage.clock.set_wall_clock(by_seconds=seconds)
    stage.pass_time(29_999)
    assert stage.lease_offsets() == []
    stage.pass_time(1)
    assert stage.lease_offsets() == [0]


@pytest.mark.parametrize("seconds", [-3_600, 3_600])
def test_delay_of_a_released_lease_lasts_as_long_when_the_wall_clock_is_set(seconds: int) -> None:
    stage = Stage(subscription())
    stage.publish_plain(1)
    stage.ask(Release(subscription=SUBSCRIPTION, targets=(target(stage.lease()[0]),), delay_ms=30_000))
    check_waits_for_30_s(stage, seconds)


@pytest.mark.parametrize("seconds", [-3_600, 3_600])
def test_backoff_after_a_released_lease_lasts_as_long_when_the_wall_clock_is_set(seconds: int) -> None:
    stage = Stage(subscription())
    stage.publish_plain(1)
    stage.ask(Release(subscription=SUBSCRIPTION, targets=(target(stage.lease()[0]),), delay_ms=100))
    stage.pass_time(100)
    stage.nack(target(stage.lease()[0]), delay_ms=30_000)
    check_waits_for_30_s(stage, seconds)


@pytest.mark.parametrize("seconds", [-3_600, 3_600])
def test_delay_of_a_released_lease_after_a_failure_lasts_as_long_when_the_wall_clock_is_set(seconds: int) -> None:
    stage = Stage(subscription())
    stage.publish_plain(1)
    stage.nack(target(stage.lease()[0]), delay_ms=0)
    stage.ask(Release(subscription=SUBSCRIPTION, targets=(target(stage.lease()[0]),), delay_ms=30_000))
    check_waits_for_30_s(stage, seconds)


def test_many_leases_end_in_several_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue_module, "_EXPIRED_AT_ONCE", 10)
    stage = stage_with(25)
    stage.lease(25, visibility_ms=100)
    ends_ms = stage.now_ms + 100
    stage.machine.expire(ends_ms)
    assert stage.machine.next_deadline_ms() == ends_ms
    stage.pass_time(100)
    assert stage.counts().in_flight == 0


def test_ack_that_is_forgotten_is_refused_when_it_is_repeated() -> None:
    stage = Stage(subscription(delivery="exactly_once"), acks=MemoryBudget(10))
    stage.publish_plain(20)
    leases = [target(leased) for leased in stage.lease(20)]
    stage.ack(*leases)
    assert kinds(stage.ack(leases[9], leases[10], leases[-1])) == [LOST, None, None]
    assert stage.lease_offsets() == []


def test_queues_share_what_is_remembered_and_the_busiest_forgets() -> None:
    budget = MemoryBudget(100)
    quiet, busy = (Stage(subscription(delivery="exactly_once"), acks=budget) for _ in range(2))
    kept: list[Target] = []
    for stage, count in ((quiet, 10), (busy, 500)):
        stage.publish_plain(count)
        kept += [target(leased) for leased in stage.lease(count)]
        stage.ack(*kept[-count:])
    assert budget.total == 100
    assert kinds(quiet.ack(*kept[:10])) == [None] * 10
    assert kinds(busy.ack(kept[10], kept[-90], kept[-1])) == [LOST, None, None]


@pytest.mark.parametrize(
    "end",
    [
        Stage.set_subscriptions,
        lambda stage: stage.set_subscriptions(subscription(delivery="at_least_once")),
        lambda stage: stage.machine.close(),
    ],
    ids=["deleted", "changed", "stopped"],
)
def test_queue_that_goes_gives_its_share_back(end: Callable[[Stage], None]) -> None:
    stage = stage_with(5, delivery="exactly_once")
    stage.ack(*[target(leased) for leased in stage.lease(5)])
    assert stage.acks.total == 5
    end(stage)
    assert stage.acks.total == 0


@pytest.mark.parametrize(
    "verb",
    [
        Acknowledge,
        partial(NackMessages, delay_ms=0),
        partial(Extend, visibility_ms=1),
        partial(Reject, reason="bad"),
    ],
)
def test_exactly_once_takes_no_message_id_for_a_lease(verb: Callable[..., QueueCommand[object]]) -> None:
    """It would settle another worker's lease."""
    stage = stage_with(3, delivery="exactly_once")
    settled, leased = stage.lease(2)
    stage.ack(target(settled))
    command = verb(subscription=SUBSCRIPTION, targets=tuple(map(Target, range(4))))
    assert kinds(stage.ask(command)) == [ErrorKind.INVALID_ACK_ID] * 4
    assert kinds(stage.ack(target(leased))) == [None]


def test_ends_of_extended_leases_are_forgotten() -> None:
    stage = stage_with()
    lease = target(stage.lease()[0])
    for number in range(3_000):
        stage.submit(Extend(subscription=SUBSCRIPTION, targets=(lease,), visibility_ms=1_000 + number))
    assert len(stage.queue.deliveries.leases._ends) < 2_000


def test_disk_that_fails_leaves_messages_where_they_are() -> None:
    stage = Stage(subscription())
    for _ in range(2):
        stage.publish((None, b"v", [header("priority", 4)]))
    stage.restart()
    get = stage.source.get

    def failing(offset: int, limit_bytes: int = 0) -> object:
        if offset == 1:
            raise StorageFailure("cannot be read")
        return get(offset)

    stage.source.get = failing  # type: ignore[method-assign, assignment]
    assert stage.lease_offsets() == [0]
    command = LeaseMessages(subscription=SUBSCRIPTION, count=1, max_bytes=1, visibility_ms=1_000)
    with pytest.raises(StorageFailure):
        stage.ask(command)
    stage.source.get = get  # type: ignore[method-assign]
    assert stage.lease_offsets() == [1]
