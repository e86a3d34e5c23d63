"""Invalid headers are ignored and counted, and the first one is logged."""

import pytest

from conveyor.queues.queue_commands import Target
from tests.unit.queues.stage import SUBSCRIPTION, Stage, header, subscription, target


def test_unreadable_headers_are_counted_and_the_first_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    stage = Stage(subscription())
    stage.publish((None, b"a", []), (None, b"b", [header("delay-ms", "soon"), header("priority", "high")]))
    stage.publish((None, b"c", [header("ttl-ms", "x" * 1000)]), (None, b"d", [header("delay-ms", "0s")]))
    assert stage.lease_offsets() == [0, 1, 2, 3]
    assert stage.probes[SUBSCRIPTION].unreadable_headers == 3
    (message,) = [record.getMessage() for record in caplog.records]
    assert message.startswith(
        "header ignored topic=t subscription=s7 partition=0 offset=1: conveyor-delay-ms is 'soon'"
    )


def test_unreadable_header_is_counted_once_though_its_message_comes_again() -> None:
    stage = Stage(subscription())
    stage.publish((None, b"a", [header("priority", "high")]))
    stage.nack(target(stage.lease()[0]), delay_ms=0)
    assert stage.lease_offsets() == [0]
    stage.ack(Target(0))
    assert stage.probes[SUBSCRIPTION].unreadable_headers == 1
