"""The work of one turn has a limit, however many subscriptions a partition has. The tests count work, not time."""

from uuid import UUID

import pytest

from conveyor.kernel.ids import ProducerEpoch, ProducerId, ProducerIdentity
from conveyor.queues import queue_machine as machine_module
from conveyor.queues.delivery.subscription_queue import SubscriptionQueue
from conveyor.queues.queue_commands import Acknowledge, AcknowledgeInTransaction, Target
from conveyor.records.record import Header
from tests.unit.queues.stage import Stage, header, subscription

SUBSCRIPTIONS = [UUID(int=number << 96) for number in range(1, 6)]
DELAY_MS = 1_000
MESSAGES = 8
TARGETS = tuple(map(Target, range(MESSAGES)))
PRODUCER = ProducerIdentity(ProducerId(7), ProducerEpoch(0))


def stage_with(*headers: Header, **policy: object) -> Stage:
    """Return a stage with some subscriptions, and eight messages with these headers."""
    stage = Stage(*[subscription(name, **policy) for name in SUBSCRIPTIONS])
    stage.publish(*[(None, b"%d" % number, headers) for number in range(MESSAGES)])
    return stage


def lease_all(stage: Stage, visibility_ms: int = 2 * DELAY_MS) -> None:
    for name in SUBSCRIPTIONS:
        assert len(stage.lease(MESSAGES, visibility_ms, name)) == MESSAGES


def due_queues(stage: Stage, now_ms: int) -> int:
    """Return the number of subscriptions with a deadline that has passed."""
    first_ms = [queue.deliveries.next_deadline_ms() for queue in queues(stage)]
    return sum(time_ms is not None and time_ms <= now_ms for time_ms in first_ms)


def queues(stage: Stage) -> list[SubscriptionQueue]:
    found = [stage.machine.queue(name) for name in SUBSCRIPTIONS]
    return [queue for queue in found if queue is not None]


@pytest.mark.parametrize("kind", ["delay", "ttl", "leases"])
def test_deadlines_of_many_subscriptions_come_in_several_turns(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine_module, "_EXPIRED_AT_ONCE", 10)
    stage = stage_with(*[header(f"{kind}-ms", DELAY_MS)] * (kind != "leases"))
    if kind == "leases":
        lease_all(stage, DELAY_MS)
    ends_ms = stage.now_ms + DELAY_MS
    stage.machine.expire(ends_ms)
    assert due_queues(stage, ends_ms) == (4 if kind == "ttl" else 3)  # Each expired message is read, which takes long.
    assert stage.machine.next_deadline_ms() == ends_ms
    stage.pass_time(DELAY_MS)
    wanted = [] if kind == "ttl" else list(range(MESSAGES))
    for name in SUBSCRIPTIONS:
        assert sorted(lease.message.offset for lease in stage.lease(MESSAGES, DELAY_MS, name)) == wanted


def expire_by_turns(stage: Stage) -> list[int]:
    """Let the deadlines pass that take no record. Returns the number of due subscriptions after each turn."""
    ends_ms, due = stage.now_ms + DELAY_MS, [len(SUBSCRIPTIONS)]
    while due[-1]:
        before_count = stage.machine.work_count
        assert stage.machine.expire(ends_ms).records == ()
        assert stage.machine.work_count > before_count
        due.append(due_queues(stage, ends_ms))
    return due[1:]


def test_deadlines_of_messages_in_the_order_of_their_keys_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine_module, "_EXPIRED_AT_ONCE", 10)
    assert expire_by_turns(stage_with(header("delay-ms", DELAY_MS), ordering="key")) == [3, 1, 0]


def test_times_to_live_of_settled_messages_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine_module, "_EXPIRED_AT_ONCE", 10)
    stage = stage_with(header("ttl-ms", DELAY_MS))
    lease_all(stage)
    for name in SUBSCRIPTIONS:
        stage.ask(Acknowledge(subscription=name, targets=TARGETS))
    assert expire_by_turns(stage) == [3, 1, 0]


def test_times_to_live_of_leased_messages_count_as_does_setting_them_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine_module, "_EXPIRED_AT_ONCE", 10)
    stage = stage_with(header("ttl-ms", DELAY_MS))
    lease_all(stage)
    assert expire_by_turns(stage) == [4, 3, 2, 1, 0]


def test_times_to_live_of_pending_messages_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine_module, "_EXPIRED_AT_ONCE", 10)
    stage = stage_with(header("ttl-ms", DELAY_MS))
    lease_all(stage)
    for name in SUBSCRIPTIONS:
        stage.ask(AcknowledgeInTransaction(subscription=name, targets=TARGETS, producer=PRODUCER))
    assert expire_by_turns(stage) == [3, 1, 0]


def test_scan_for_many_subscriptions_comes_in_several_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = Stage(*map(subscription, SUBSCRIPTIONS))
    monkeypatch.setattr(stage.machine, "advance", lambda *_, **__: True)
    stage.publish(*[(None, b"%d" % number, [header("priority", number % 2)]) for number in range(MESSAGES)])
    monkeypatch.undo()
    assert scan_by_turns(stage, monkeypatch) == [2, 4, 5]


def test_timers_of_messages_with_equal_times_count_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = Stage(*map(subscription, SUBSCRIPTIONS))
    monkeypatch.setattr(stage.machine, "advance", lambda *_, **__: True)
    stage.publish(*[(None, b"%d" % number, [header("ttl-ms", DELAY_MS)]) for number in range(MESSAGES)])
    monkeypatch.undo()
    assert scan_by_turns(stage, monkeypatch) == [2, 4, 5]


def scan_by_turns(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Scan the messages. Returns for how many subscriptions after each turn. Each turn looks at the messages once."""
    monkeypatch.setattr(machine_module, "_SCANNED_AT_ONCE", 20)
    scanned = [0]
    while scanned[-1] < len(SUBSCRIPTIONS):
        stage.machine.advance(MESSAGES, stage.now_ms)
        scanned.append(sum(queue.deliveries.scanned_offset == MESSAGES for queue in queues(stage)))
    return scanned[1:]
