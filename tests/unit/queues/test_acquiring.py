"""Acquiring leases ranges of messages without reading them."""

import pytest

from conveyor.kernel.errors import StorageFailure
from conveyor.queues.delivery.findings import Findings
from conveyor.queues.queue_commands import LeaseMessages
from tests.unit.queues.stage import SUBSCRIPTION, VISIBILITY_MS, Stage, header, subscription


def wanted(count: int) -> LeaseMessages:
    return LeaseMessages(subscription=SUBSCRIPTION, count=count, max_bytes=1 << 20, visibility_ms=VISIBILITY_MS)


def acquire(stage: Stage, count: int) -> list[tuple[int, int]]:
    acquired = stage.queue.acquire(wanted(count), count, stage.now_ms)
    stage.machine.agenda.update(stage.queue)
    stage.advance()
    return [] if acquired is None else acquired.ranges


def test_acquired_messages_are_leased_unread(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = Stage(subscription())
    stage.publish_plain(10)

    def unreadable(*_: object) -> None:
        raise StorageFailure("no message is to be read")

    monkeypatch.setattr(stage.source, "get", unreadable)
    assert (acquire(stage, 4), acquire(stage, 100), acquire(stage, 1)) == ([(0, 4)], [(4, 10)], [])
    monkeypatch.undo()
    assert stage.counts().in_flight == 10
    stage.pass_time(VISIBILITY_MS)
    assert stage.counts().in_flight == 0


def test_messages_that_were_settled_while_they_were_available_are_not_acquired() -> None:
    stage = Stage(subscription())
    stage.publish(*[(None, b"", (header("ttl-ms", 100),))] * 3)
    stage.pass_time(100)
    stage.publish_plain(2)
    assert acquire(stage, 10) == [(3, 5)]


def test_unread_messages_of_an_acquired_range_are_available_again() -> None:
    stage = Stage(subscription())
    stage.publish_plain(5)
    acquired = stage.queue.acquire(wanted(5), 5, stage.now_ms)
    assert acquired is not None
    findings = Findings(None, max_bytes=2)
    assert stage.queue.materialise(acquired, stage.now_ms, findings)
    assert [leased.message.offset for leased in findings.leased] == [0, 1]
    assert (stage.counts().in_flight, stage.lease_offsets()) == (2, [2, 3, 4])
