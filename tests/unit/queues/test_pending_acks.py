"""Acknowledgements in transactions: settled by a commit, taken back by an abort, kept over restarts until then."""

from typing import Any

import pytest

from conveyor.kernel.errors import ErrorKind
from conveyor.kernel.ids import ProducerEpoch, ProducerId, ProducerIdentity
from conveyor.queues.queue_commands import Extend, ForgetSubscription, SeekSubscription, Target
from conveyor.queues.subscription.pending_acks import PendingAcks
from conveyor.queues.subscription.queue_records import cut
from tests.unit.queues.model import kinds
from tests.unit.queues.stage import SUBSCRIPTION, VISIBILITY_MS, Stage, header, subscription, target

LOST = ErrorKind.LEASE_LOST
MINE = ProducerIdentity(ProducerId(7), ProducerEpoch(0))
OTHER = ProducerIdentity(ProducerId(8), ProducerEpoch(2))


def stage_with(count: int = 1, **document: Any) -> Stage:
    stage = Stage(subscription(**document))
    stage.publish_plain(count)
    return stage


def acked(stage: Stage, count: int = 1, producer: ProducerIdentity = MINE) -> tuple[Target, ...]:
    """Lease messages and acknowledge them in a transaction."""
    targets = tuple(map(target, stage.lease(count)))
    assert stage.ack_in_transaction(producer, *targets) == (None,) * count
    return targets


def test_commit_settles_what_was_acknowledged() -> None:
    stage = stage_with(3)
    acked(stage, 2)
    assert (stage.counts().unsettled, stage.counts().pending, stage.counts().in_flight) == (3, 2, 0)
    assert stage.queue.progress.start_offset == 0
    stage.end_transaction(MINE, commits=True)
    assert (stage.counts().unsettled, stage.counts().pending) == (1, 0)
    assert stage.probes[SUBSCRIPTION].acknowledged == 2
    assert stage.lease_offsets() == [2]


def test_aborted_messages_are_delivered_again_at_once() -> None:
    stage = stage_with(2)
    acked(stage, 2)
    stage.end_transaction(MINE, commits=False)
    stage.runner.expire()
    assert [(leased.message.offset, leased.delivery_count) for leased in stage.lease(5)] == [(0, 2), (1, 2)]


def test_message_whose_transactions_abort_becomes_a_dead_letter() -> None:
    stage = stage_with(max_deliveries=2)
    for _ in range(2):
        acked(stage)
        stage.end_transaction(MINE, commits=False)
        stage.runner.expire()
    assert [offset for offset, _ in stage.queue.deliveries.dead_lettering.first(5)] == [0]


def test_lease_of_a_pending_message_does_not_end() -> None:
    stage = stage_with()
    acked(stage)
    stage.pass_time(10 * VISIBILITY_MS)
    assert stage.lease_offsets() == []


def test_pending_message_is_settled_by_its_transaction_only() -> None:
    stage = stage_with()
    (lease,) = acked(stage)
    extend = Extend(subscription=SUBSCRIPTION, targets=(lease,), visibility_ms=1)
    assert [kinds(stage.ack(lease)), kinds(stage.nack(lease)), kinds(stage.ask(extend))] == [[LOST]] * 3
    assert kinds(stage.ack_in_transaction(OTHER, lease)) == [LOST]
    assert stage.ack_in_transaction(MINE, lease) == (None,)
    stage.end_transaction(OTHER, commits=False)
    stage.end_transaction(MINE, commits=True)
    assert stage.counts().unsettled == 0


def test_ack_of_a_lost_lease_refuses_the_others() -> None:
    stage = stage_with(2)
    first, second = map(target, stage.lease(2))
    stage.nack(second)
    assert kinds(stage.ack_in_transaction(MINE, first, second)) == [None, LOST]
    assert stage.counts().pending == 0
    assert stage.ack(first) == (None,)


def test_repeated_ack_of_a_settled_message_is_refused() -> None:
    """It belongs to no transaction any more, and its producer must not believe that it does."""
    stage = stage_with()
    (lease,) = acked(stage)
    stage.end_transaction(MINE, commits=True)
    assert kinds(stage.ack_in_transaction(MINE, lease)) == [LOST]


def test_exactly_once_remembers_the_lease_of_a_commit() -> None:
    stage = stage_with(delivery="exactly_once")
    (lease,) = acked(stage)
    stage.end_transaction(MINE, commits=True)
    assert stage.ack(lease) == (None,)
    assert kinds(stage.ack(Target(0, (99, 99)))) == [LOST]


def test_pending_messages_count_as_in_flight() -> None:
    stage = stage_with(3, max_in_flight=2)
    acked(stage, 2)
    assert stage.lease_offsets() == []
    assert not stage.queue.has_messages
    stage.end_transaction(MINE, commits=True)
    assert stage.lease_offsets() == [2]


@pytest.mark.parametrize("commits", [False, True])
def test_pending_messages_that_retention_removed_count_as_in_flight_until_their_transaction_ends(commits: bool) -> None:
    stage = stage_with(4, max_in_flight=2)
    acked(stage, 2)
    stage.delete_below(3)
    assert stage.lease_offsets() == []
    stage.end_transaction(MINE, commits=commits)
    stage.runner.expire()
    assert stage.lease_offsets() == [3]


@pytest.mark.parametrize("restarts", [False, True])
def test_message_past_its_time_to_live_expires_after_an_abort(restarts: bool) -> None:
    stage = Stage(subscription())
    stage.publish((None, b"", [header("ttl-ms", 1_000)]))
    acked(stage)
    if restarts:
        stage.restart()
    stage.pass_time(2_000)
    assert stage.counts().unsettled == 1
    stage.end_transaction(MINE, commits=False)
    stage.runner.expire()
    stage.pass_time(1)
    assert stage.counts().unsettled == 0


@pytest.mark.parametrize("commits", [False, True])
@pytest.mark.parametrize("restarts", [False, True])
def test_later_messages_of_a_key_wait_for_the_transaction(restarts: bool, commits: bool) -> None:
    stage = Stage(subscription(ordering="key"))
    stage.publish((b"k", b"", ()), (b"k", b"", ()), (b"other", b"", ()))
    acked(stage)
    if restarts:
        stage.restart()
    assert stage.lease_offsets() == [2]
    stage.end_transaction(MINE, commits=commits)
    stage.runner.expire()
    assert stage.lease_offsets() == ([1] if commits else [0])


def test_redelivered_message_waits_for_a_pending_one_of_its_key() -> None:
    """Also after a restart, when the log is scanned from its start."""
    stage = Stage(subscription(ordering="key"))
    stage.publish((b"k", b"", ()), (b"k", b"", ()))
    stage.ask(SeekSubscription(subscription=SUBSCRIPTION, offset=1))
    acked(stage)
    stage.queue.progress.start_offset = 0  # As after a redelivered dead letter.
    stage.snapshot()
    stage.restart()
    assert stage.lease_offsets() == []
    stage.end_transaction(MINE, commits=True)
    assert stage.lease_offsets() == [0]


@pytest.mark.parametrize("snapshots", [False, True])
@pytest.mark.parametrize("commits", [False, True])
def test_pending_messages_survive_a_restart(snapshots: bool, commits: bool) -> None:
    stage = stage_with(4)
    acked(stage, 2)
    acked(stage, 1, OTHER)
    if snapshots:
        stage.snapshot()
        stage.snapshot()
    stage.restart()
    assert stage.counts().pending == 3
    assert stage.lease_offsets() == [3]
    stage.end_transaction(MINE, commits=commits)
    stage.runner.expire()
    assert stage.lease_offsets() == ([] if commits else [0, 1])
    stage.restart()
    assert stage.counts().pending == 1


def test_messages_are_pending_after_a_change_of_the_order() -> None:
    stage = stage_with(2)
    acked(stage)
    stage.set_subscriptions(subscription(ordering="key"))
    assert stage.lease_offsets() == [1]
    stage.end_transaction(MINE, commits=True)
    assert stage.counts().unsettled == 1


def test_seek_a_cut_and_a_deletion_drop_what_is_pending() -> None:
    stage = stage_with(2)
    acked(stage)
    stage.ask(SeekSubscription(subscription=SUBSCRIPTION, offset=0))
    assert stage.counts().pending == 0
    stage.end_transaction(MINE, commits=True)
    assert stage.lease_offsets() == [0, 1]
    stage.ask(SeekSubscription(subscription=SUBSCRIPTION, offset=0))
    acked(stage, 2)
    assert stage.machine.reaches_beyond(1)
    stage.machine.apply(cut(1))
    assert stage.counts().pending == 1
    assert not stage.machine.reaches_beyond(1)
    stage.ask(ForgetSubscription(subscription=SUBSCRIPTION))
    stage.end_transaction(MINE, commits=True)


def test_pending_ranges() -> None:
    pending = PendingAcks()
    pending.add(MINE, [(0, 3), (5, 6)])
    pending.add(OTHER, [(3, 4)])
    pending.remove(1, 2)
    assert dict(pending.ranges()) == {MINE: [(0, 1), (2, 3), (5, 6)], OTHER: [(3, 4)]}
    assert (len(pending), 5 in pending, pending.producer_of(3), pending.reaches(6)) == (4, True, OTHER, False)
    pending.remove(4, 1 << 62)
    assert pending.take(MINE.producer_id) == [0, 2]
    assert pending.take(MINE.producer_id) == []
    pending.remove(0, 1 << 62)
    assert not pending
