"""The work of one turn has a limit, however many subscriptions a partition has. The tests count work, not time."""

from uuid import UUID

import pytest

from conveyor.queues import queue_machine as machine_module
from conveyor.queues.delivery.subscription_queue import SubscriptionQueue
from conveyor.records.record import Header
from tests.unit.queues.stage import Stage, header, subscription

SUBSCRIPTIONS = [UUID(int=number << 96) for number in range(1, 6)]
DELAY_MS = 1_000


def stage_with(*headers: Header) -> Stage:
    """Return a stage with some subscriptions, and eight messages with these headers."""
    stage = Stage(*map(subscription, SUBSCRIPTIONS))
    stage.publish(*[(None, b"%d" % number, headers) for number in range(8)])
    return stage


@pytest.mark.parametrize("kind", ["delay", "ttl", "leases"])
def test_deadlines_of_many_subscriptions_come_in_several_turns(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine_module, "_EXPIRED_AT_ONCE", 10)
    stage = stage_with(*[header(f"{kind}-ms", DELAY_MS)] * (kind != "leases"))
    if kind == "leases":
        for name in SUBSCRIPTIONS:
            assert len(stage.lease(8, DELAY_MS, name)) == 8
    ends_ms = stage.now_ms + DELAY_MS
    stage.machine.expire(ends_ms)
    assert sum(_has_due(queue, ends_ms) for queue in queues(stage)) == 3
    assert stage.machine.next_deadline_ms() == ends_ms
    stage.pass_time(DELAY_MS)
    wanted = [] if kind == "ttl" else list(range(8))
    for name in SUBSCRIPTIONS:
        assert sorted(lease.message.offset for lease in stage.lease(8, DELAY_MS, name)) == wanted


def queues(stage: Stage) -> list[SubscriptionQueue]:
    found = [stage.machine.queue(name) for name in SUBSCRIPTIONS]
    return [queue for queue in found if queue is not None]


def _has_due(queue: SubscriptionQueue, now_ms: int) -> bool:
    first_ms = queue.deliveries.next_deadline_ms()
    return first_ms is not None and first_ms <= now_ms


def test_scan_for_many_subscriptions_comes_in_several_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine_module, "_RUNS_AT_ONCE", 10)
    stage = Stage(*map(subscription, SUBSCRIPTIONS))
    monkeypatch.setattr(stage.machine, "advance", lambda *_, **__: True)
    stage.publish(*[(None, b"%d" % number, [header("priority", number % 2)]) for number in range(8)])
    monkeypatch.undo()
    monkeypatch.setattr(machine_module, "_RUNS_AT_ONCE", 10)
    calls = scanned = 0
    while scanned < len(SUBSCRIPTIONS):
        stage.machine.advance(8, stage.now_ms)
        calls, before = calls + 1, scanned
        scanned = sum(queue.deliveries.scanned_offset == 8 for queue in queues(stage))
        assert before < scanned <= before + 2
    assert calls == 3
