"""Delivery order, and messages that are not delivered at all."""

from uuid import UUID

import pytest

from conveyor.kernel.errors import ErrorKind
from conveyor.queues.queue_commands import (
    Cancel,
    DropDeadLetters,
    ForgetSubscription,
    MoveToDeadLetters,
    Redeliver,
    Redelivered,
    Reject,
    Release,
    SeekSubscription,
    Target,
)
from conveyor.queues.queue_machine import SCAN_BYTES
from conveyor.records.checked_batch import own_batch
from conveyor.records.message_attributes import ONLY_FOR
from conveyor.records.record import Header, encode_batch
from conveyor.settings.tree import TopicSettings
from tests.unit.queues.model import kinds
from tests.unit.queues.stage import SUBSCRIPTION, Stage, header, subscription, target

OTHER = UUID(int=8 << 96)
DELAYED = [header("delay-ms", 1_000)]


def keyed(stage: Stage, *keys: bytes | None, headers: list[Header] | None = None) -> None:
    stage.publish(*[(key, b"", headers or []) for key in keys])


def dead_letter(stage: Stage, *offsets: int) -> None:
    """Reject leased messages, and move them to the dead letters."""
    stage.ask(Reject(subscription=SUBSCRIPTION, targets=tuple(map(Target, offsets)), reason="bad"))
    stage.ask(MoveToDeadLetters(subscription=SUBSCRIPTION, offsets=offsets))


def redeliver(stage: Stage, *offsets: int) -> Redelivered:
    return stage.ask(Redeliver(subscription=SUBSCRIPTION, offsets=offsets))


def states(stage: Stage) -> list[str]:
    return [peeked.state.state for peeked in stage.peek()]


def test_next_of_a_key_comes_when_the_last_is_settled() -> None:
    stage = Stage(subscription(ordering="key"))
    keyed(stage, b"a", b"a", b"b", None)
    first = stage.lease(10)
    assert [peeked.message.offset for peeked in first] == [0, 2, 3]
    assert states(stage) == ["leased", "waiting", "leased", "leased"]
    stage.nack(target(first[0]), delay_ms=500)
    assert stage.lease_offsets() == []
    stage.pass_time(500)
    assert stage.lease_offsets() == [0]
    stage.ack(Target(0))
    assert stage.lease_offsets() == [1]


def test_delayed_message_lets_those_of_its_key_wait() -> None:
    stage = Stage(subscription(ordering="key"))
    keyed(stage, b"a", headers=DELAYED)
    keyed(stage, b"a", b"b")
    assert stage.lease_offsets() == [2]
    assert stage.machine.retain_from_offset() == 0
    stage.pass_time(1_000)
    assert stage.lease_offsets() == [0]


def test_delayed_message_holds_the_log_before_anybody_leases_with_key_order() -> None:
    stage = Stage(subscription(ordering="key"))
    keyed(stage, b"a")
    keyed(stage, b"a", headers=DELAYED)
    assert stage.machine.retain_from_offset() == 1
    stage.pass_time(1_000)
    assert stage.machine.retain_from_offset() is None


def test_message_that_is_dead_lettering_does_not_hold_its_key_up() -> None:
    stage = Stage(subscription(ordering="key", max_deliveries=1))
    keyed(stage, b"a", b"a")
    stage.nack(target(stage.lease()[0]))
    assert stage.lease_offsets() == [1]
    stage.restart()
    assert [offset for offset, _ in stage.queue.deliveries.dead_lettering.first(10)] == [0]


def test_key_order_holds_after_a_restart() -> None:
    stage = Stage(subscription(ordering="key"))
    keyed(stage, b"a", b"a", b"b")
    stage.nack(target(stage.lease()[0]), delay_ms=500)
    stage.crash()
    assert stage.lease_offsets() == [2]
    stage.pass_time(500)
    assert stage.lease_offsets() == [0]


def test_full_line_lets_those_go_who_come_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("conveyor.queues.delivery.ordering._MAX_WAITING", 2)
    stage = Stage(subscription(ordering="key"))
    keyed(stage, *[b"a"] * 5)
    [first] = stage.lease(10)
    has_messages = [stage.queue.has_messages]
    stage.nack(target(first))
    has_messages.append(stage.queue.has_messages)
    assert has_messages == [False, True]
    for offset in range(5):
        assert stage.lease_offsets() == [offset]
        stage.ack(Target(offset))


def test_long_line_of_a_key_leaves_other_keys_alone() -> None:
    stage = Stage(subscription(ordering="key", max_in_flight=2))
    keyed(stage, *[b"a"] * 5, b"b")
    assert stage.lease_offsets() == [0, 5]


def test_what_has_no_age_is_not_taken_for_the_oldest() -> None:
    stage = Stage(subscription(priority_ageing_ms=60_000))
    stage.publish((None, b"low", [header("priority", 0)]))
    stage.ask(Release(subscription=SUBSCRIPTION, targets=(target(stage.lease()[0]),)))
    stage.publish((None, b"high", [header("priority", 9)]))
    assert [leased.message.value for leased in stage.lease()] == [b"high"]


def test_log_keeps_what_is_on_its_way_to_the_dead_letters() -> None:
    stage = Stage(subscription(max_deliveries=1))
    stage.publish_plain(2)
    stage.nack(target(stage.lease(2)[1]))
    held = [stage.machine.retain_from_offset()]
    stage.ask(MoveToDeadLetters(subscription=SUBSCRIPTION, offsets=(1,)))
    assert [*held, stage.machine.retain_from_offset()] == [1, None]


def test_nobody_waits_for_one_that_looks_through_the_whole_log() -> None:
    stage = Stage(subscription(), subscription(OTHER))
    for _ in range(4):
        stage.publish((None, bytes(SCAN_BYTES), ()))
    stage.lease(10)
    other = stage.machine.queue(OTHER)
    assert other is not None
    other.restart()
    stage.messages.append(own_batch(encode_batch([(stage.now_ms, None, b"new", ())])), stage.now_ms)
    stage.messages.write()
    job = stage.messages.begin_flush()
    assert job is not None
    job.run()
    stage.messages.complete_flush(job, None)
    assert not stage.machine.advance(stage.messages.term.high_watermark, stage.now_ms)
    assert (stage.queue.has_messages, other.deliveries.scanned_offset) == (True, 1)


def test_other_order_takes_hold_at_once() -> None:
    stage = Stage(subscription())
    keyed(stage, b"a", b"a")
    stage.lease()
    stage.set_subscriptions(subscription(ordering="key"))
    assert stage.lease_offsets() == [0]
    stage.set_subscriptions(subscription(fair_by="tenant"))
    assert stage.lease_offsets() == [0, 1]


def test_other_policy_leaves_leases_as_they_are() -> None:
    stage = Stage(subscription())
    stage.publish_plain(1)
    lease = target(stage.lease()[0])
    stage.set_subscriptions(subscription(max_deliveries=1, visibility_timeout_ms=5, dead_letter_topic="other"))
    assert kinds(stage.nack(lease)) == [None]
    assert len(stage.queue.deliveries.dead_lettering.first(10)) == 1


def test_paused_subscription_hands_nothing_out() -> None:
    stage = Stage(subscription(paused=True))
    stage.publish_plain(1)
    assert (stage.lease_offsets(), stage.queue.has_messages) == ([], False)
    stage.set_subscriptions(subscription())
    assert stage.lease_offsets() == [0]


def test_expired_message_is_settled_or_dead_lettered() -> None:
    for on_expiry, dead_lettering in (("drop", 0), ("dead_letter", 1)):
        stage = Stage(subscription(on_expiry=on_expiry))
        stage.publish((None, b"", [header("ttl-ms", 10)]))
        stage.pass_time(10)
        assert stage.lease_offsets() == []
        assert len(stage.queue.deliveries.dead_lettering.first(10)) == dead_lettering
        assert stage.counts().unsettled == dead_lettering


def test_expired_message_is_settled_or_dead_lettered_though_nobody_asks_for_it() -> None:
    for on_expiry, dead_lettering in (("drop", 0), ("dead_letter", 1)):
        stage = Stage(subscription(on_expiry=on_expiry))
        stage.publish((None, b"", [header("ttl-ms", 10)]), (None, b"", []))
        stage.pass_time(9)
        assert stage.counts().unsettled == 2
        stage.pass_time(1)
        assert len(stage.queue.deliveries.dead_lettering.first(10)) == dead_lettering
        assert stage.counts().unsettled == 1 + dead_lettering
        assert stage.lease_offsets() == [1]


def test_message_that_expires_while_it_is_leased_may_be_settled_until_the_lease_ends() -> None:
    stage = Stage(subscription(on_expiry="dead_letter"))
    stage.publish((None, b"", [header("ttl-ms", 10)]), (None, b"", [header("ttl-ms", 10)]))
    stage.lease(2, visibility_ms=1_000)
    stage.pass_time(500)
    assert stage.queue.deliveries.dead_lettering.first(10) == []
    stage.ack(Target(0))
    stage.pass_time(501)
    assert [offset for offset, _ in stage.queue.deliveries.dead_lettering.first(10)] == [1]


def test_expired_message_that_the_filter_keeps_away_is_no_dead_letter() -> None:
    stage = Stage(subscription(on_expiry="dead_letter", filter="tag == 'wanted'"))
    stage.publish((None, b"", [header("ttl-ms", 10)]))
    stage.pass_time(10)
    assert stage.queue.deliveries.dead_lettering.first(10) == []
    assert stage.counts().unsettled == 0


def test_dead_letter_comes_again_however_old_it_is() -> None:
    stage = Stage(subscription())
    stage.publish((None, b"", [header("ttl-ms", 10)]))
    stage.lease()
    dead_letter(stage, 0)
    stage.pass_time(1_000)
    redeliver(stage, 0)
    stage.snapshot()
    stage.restart()
    assert [leased.delivery_count for leased in stage.lease()] == [1]
    stage.nack(Target(0))
    assert stage.lease_offsets() == [0]


def test_dead_letter_is_delivered_again_once_however_often_it_is_asked_for() -> None:
    stage = Stage(subscription())
    stage.publish_plain(3)
    stage.lease(3)
    stage.ack(Target(0), Target(2))
    dead_letter(stage, 1)
    assert stage.queue.progress.start_offset == 3
    assert redeliver(stage, 1, 1) == Redelivered(2, [])
    assert redeliver(stage, 1) == Redelivered(1, [])
    assert stage.lease_offsets() == [1]
    assert stage.counts().unsettled == 1


@pytest.mark.parametrize("ordering", ["none", "key"])
def test_dead_letter_that_expired_while_it_was_available_is_delivered_again_once(ordering: str) -> None:
    """Its place among the messages to lease is still taken: a second one would be leased, too."""
    stage = Stage(subscription(on_expiry="dead_letter", ordering=ordering))
    stage.publish((b"k", b"", []), (b"k", b"", [header("ttl-ms", 10)]), (b"k", b"", []))
    stage.pass_time(10)
    stage.settle()
    stage.ask(MoveToDeadLetters(subscription=SUBSCRIPTION, offsets=(1,)))
    assert redeliver(stage, 1) == Redelivered(1, [])
    offsets = []
    while messages := stage.lease(10):
        offsets += [leased.message.offset for leased in messages]
        stage.ack(*map(target, messages))
    assert offsets == [0, 1, 2]


def test_dead_letter_that_expired_before_it_was_due_is_delivered_again_once() -> None:
    stage = Stage(subscription(on_expiry="dead_letter"))
    stage.publish((None, b"", [header("ttl-ms", 10)]))
    stage.lease()
    stage.nack(Target(0), delay_ms=1_000)
    stage.pass_time(1_000)
    stage.settle()
    stage.ask(MoveToDeadLetters(subscription=SUBSCRIPTION, offsets=(0,)))
    redeliver(stage, 0)
    assert stage.lease_offsets() == [0]
    assert stage.lease_offsets() == []


def test_dead_letter_whose_record_is_gone_is_told() -> None:
    stage = Stage(subscription())
    stage.publish_plain(2)
    stage.lease(1)
    dead_letter(stage, 0)
    stage.delete_below(1)
    assert redeliver(stage, 0, 5) == Redelivered(2, [0])
    assert stage.counts().dead == 1
    stage.ask(DropDeadLetters(subscription=SUBSCRIPTION, offsets=(0,)))
    assert stage.counts().dead == 0


@pytest.mark.parametrize("ordering", ["none", "key"])
def test_cancelled_message_is_seen_by_nobody(ordering: str) -> None:
    stage = Stage(subscription(ordering=ordering), subscription(OTHER))
    keyed(stage, b"a", b"a", headers=DELAYED)
    assert stage.lease_offsets() == []
    assert stage.ask(Cancel(offset=0)) is None
    assert stage.ask(Cancel(offset=0)) is None
    stage.lease()
    assert (stage.counts().withheld, stage.counts().unsettled) == (1, 1)
    stage.crash()
    stage.pass_time(1_000)
    assert stage.ask(Cancel(offset=0)) is None
    assert stage.lease_offsets() == [1]
    assert [leased.message.offset for leased in stage.lease(10, identity=OTHER)] == [1]
    assert (stage.counts().withheld, stage.counts().in_flight) == (0, 1)


def test_cancelled_message_is_no_dead_letter() -> None:
    stage = Stage(subscription(ordering="key", filter='headers["x"] == "1"', on_filter_error="dead_letter"))
    stage.publish((None, b"", DELAYED))
    stage.lease()
    assert [waiting.subscription.id for waiting in stage.machine.agenda.dead_lettering()] == [SUBSCRIPTION]
    stage.ask(Cancel(offset=0))
    assert stage.machine.agenda.dead_lettering() == []


def test_message_that_is_due_cannot_be_cancelled() -> None:
    stage = Stage(subscription())
    stage.publish_plain(1)
    replies = [stage.ask(Cancel(offset=offset)) for offset in (0, 1)]
    assert kinds(tuple(replies)) == [ErrorKind.MESSAGE_NOT_DELAYED, ErrorKind.UNKNOWN_MESSAGE]


def test_message_for_one_subscription_is_settled_for_the_others() -> None:
    stage = Stage(subscription(), subscription(OTHER))
    stage.publish((None, b"", [(ONLY_FOR, b"s8")]))
    assert stage.lease_offsets() == []
    assert stage.counts().unsettled == 0
    assert len(stage.lease(10, identity=OTHER)) == 1


@pytest.mark.parametrize(
    ("on_error", "leased", "dead_lettering"), [("deliver", 1, 0), ("skip", 0, 0), ("dead_letter", 0, 1)]
)
def test_message_on_which_the_filter_fails_goes_where_the_policy_says(
    on_error: str, leased: int, dead_lettering: int
) -> None:
    stage = Stage(subscription(filter='headers["x"] == "1"', on_filter_error=on_error))
    stage.publish_plain(1)
    assert len(stage.lease_offsets()) == leased
    assert len(stage.queue.deliveries.dead_lettering.first(10)) == dead_lettering
    assert stage.probes[SUBSCRIPTION].filter_errors == 1


SLOW_FILTER = "payload.l.exists(x, x == 2)"
SLOW_VALUE = b'{"l":[%b1]}' % (b"1," * 5_000)
"""The filter's estimated cost for this value is some milliseconds."""


def test_lease_ends_where_the_filter_has_cost_enough_for_one_tick() -> None:
    stage = Stage(subscription(filter=SLOW_FILTER))
    stage.publish(*[(None, SLOW_VALUE, ())] * 20, (None, b'{"l":[2]}', ()))
    turns = 0
    while not (leased := stage.lease_offsets()):
        turns += 1
        assert stage.queue.has_messages
    assert leased == [20]
    assert turns > 2


def test_expired_messages_are_looked_at_over_several_turns_where_the_filter_is_slow() -> None:
    stage = Stage(subscription(filter=SLOW_FILTER))
    stage.publish(*[(None, SLOW_VALUE, [header("ttl-ms", 10)])] * 20)
    stage.pass_time(10)
    assert stage.counts().unsettled == 0


@pytest.mark.parametrize("expression", ["payload.n.matches('a')", "payload.n > 'a'"])
def test_failing_filter_is_one_line(expression: str, caplog: pytest.LogCaptureFixture) -> None:
    stage = Stage(subscription(filter=expression, on_filter_error="skip"))
    stage.publish(*[(None, b'{"n":1}', ())] * 100)
    assert stage.lease_offsets() == []
    assert [record.name for record in caplog.records] == ["conveyor.queues.delivery.selection"]
    assert stage.probes[SUBSCRIPTION].filter_errors == 100


def test_no_more_is_leased_than_may_be_in_flight() -> None:
    stage = Stage(subscription(max_in_flight=2))
    stage.publish_plain(5)
    assert stage.lease_offsets() == [0, 1]
    assert not stage.queue.has_messages
    stage.ack(Target(0))
    assert stage.lease_offsets() == [2]


def test_log_is_scanned_only_so_far_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("conveyor.queues.delivery.deliveries.MAX_INDEXED", 100)
    stage = Stage(subscription())
    for _ in range(20):
        stage.publish(*[(None, b"", [header("priority", 4 + number % 2)]) for number in range(20)])
    assert stage.queue.deliveries.scanned_offset < 200
    assert not stage.machine.agenda.behind()
    assert stage.machine.retain_from_offset() == stage.queue.deliveries.scanned_offset
    assert stage.counts().available == 400
    leased = [offset for _ in range(40) for offset in stage.lease_offsets(count=10)]
    assert sorted(leased) == list(range(400))


def test_begun_subscription_starts_where_it_is_told() -> None:
    stage = Stage(subscription(), begun=False)
    stage.publish_plain(5)
    assert stage.machine.queue(SUBSCRIPTION) is None
    assert stage.machine.settled_offset() == 0
    stage.ask(SeekSubscription(subscription=SUBSCRIPTION, offset=3))
    assert stage.lease_offsets() == [3, 4]


def test_subscription_begins_once() -> None:
    stage = Stage(subscription(), begun=False)
    stage.publish_plain(5)
    begin = SeekSubscription(subscription=SUBSCRIPTION, offset=0, begins=True)
    stage.ask(begin)
    stage.lease(5)
    stage.ack(Target(0), Target(1))
    assert stage.ask(begin) == 0
    assert stage.lease_offsets() == []
    assert stage.ask(SeekSubscription(subscription=SUBSCRIPTION, offset=0)) == 0
    assert stage.lease_offsets() == [0, 1, 2, 3, 4]


def test_seek_tells_how_many_messages_it_settles() -> None:
    stage = Stage(subscription())
    stage.publish_plain(10)
    stage.lease(10)
    stage.ack(Target(1), Target(7), Target(8))
    assert stage.ask(SeekSubscription(subscription=SUBSCRIPTION, offset=5)) == 4
    assert stage.ask(SeekSubscription(subscription=SUBSCRIPTION, offset=0)) == 0
    assert stage.lease_offsets() == list(range(10))
    assert stage.ask(SeekSubscription(subscription=SUBSCRIPTION, offset=10)) == 10


def test_subscription_that_is_gone_is_refused_and_forgotten() -> None:
    stage = Stage(subscription(), subscription(OTHER))
    stage.publish_plain(2)
    stage.ask(SeekSubscription(subscription=OTHER, offset=2))
    assert stage.machine.settled_offset() == 0
    stage.set_subscriptions(subscription(OTHER))
    assert stage.machine.settled_offset() == 2
    assert kinds((stage.ask(SeekSubscription(subscription=SUBSCRIPTION, offset=0)),)) == [
        ErrorKind.UNKNOWN_SUBSCRIPTION
    ]
    assert kinds((stage.ask(Redeliver(subscription=SUBSCRIPTION, offsets=())),)) == [ErrorKind.UNKNOWN_SUBSCRIPTION]
    stage.set_subscriptions()
    stage.restart()
    assert stage.machine.settled_offset() == 0


def test_subscription_that_was_deleted_meanwhile_is_a_stray_until_it_is_forgotten() -> None:
    stage = Stage(subscription(), subscription(OTHER))
    stage.subscriptions = {OTHER: subscription(OTHER)}
    stage.restart()
    assert stage.machine.unknown_subscriptions(stage.subscriptions) == [SUBSCRIPTION]
    stage.ask(ForgetSubscription(subscription=SUBSCRIPTION))
    assert stage.machine.unknown_subscriptions(stage.subscriptions) == []
    stage.restart()
    assert stage.machine.unknown_subscriptions(stage.subscriptions) == []
    assert stage.machine.unknown_subscriptions({}) == [OTHER]


def test_what_retention_took_is_not_counted_and_not_leased() -> None:
    stage = Stage(subscription(), topic=TopicSettings(segment_bytes=100))
    for _ in range(5):
        stage.publish_plain(2)
    stage.delete_below(6)
    counts = stage.counts()
    assert (counts.unsettled, counts.available) == (4, 4)
    assert stage.lease_offsets() == [6, 7, 8, 9]
    stage.ack(*map(Target, (6, 7, 8, 9)))
    assert stage.queue.progress.start_offset == 10


def test_oldest_message_is_told() -> None:
    stage = Stage(subscription())
    published_ms = stage.now_ms
    stage.publish_plain(1)
    stage.pass_time(500)
    stage.publish_plain(1)
    assert stage.oldest_ms() == published_ms
    stage.lease(1)
    stage.ack(Target(0))
    assert stage.oldest_ms() == published_ms + 500
