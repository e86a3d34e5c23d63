"""The wall clock is set by an hour: leases and backoffs keep their duration, times of day follow the clock."""

import pytest

from conveyor.queues.queue_commands import Target
from tests.unit.queues.stage import VISIBILITY_MS, Stage, header, subscription, target

HOUR_MS = 3_600_000
BACKOFF_MS = 10_000
by_an_hour = pytest.mark.parametrize("by_s", [3600, -3600])


def targets(stage: Stage, count: int = 1) -> list[Target]:
    return [target(leased) for leased in stage.lease(count)]


@by_an_hour
def test_lease_lasts_as_long_as_before(by_s: int) -> None:
    stage = Stage(subscription())
    stage.publish_plain(1)
    stage.lease()
    stage.pass_time(1)
    stage.clock.set_wall_clock(by_seconds=by_s)
    stage.pass_time(VISIBILITY_MS - 2)
    assert stage.counts().in_flight == 1
    stage.pass_time(1)
    assert stage.counts().in_flight == 0


@by_an_hour
@pytest.mark.parametrize("ordering", ["none", "key"])
def test_backoff_lasts_as_long_as_before(by_s: int, ordering: str) -> None:
    stage = Stage(subscription(ordering=ordering))
    stage.publish((b"key", b"value", ()))
    [target] = targets(stage)
    stage.nack(target, delay_ms=BACKOFF_MS)
    stage.clock.set_wall_clock(by_seconds=by_s)
    stage.pass_time(BACKOFF_MS - 1)
    assert stage.lease_offsets() == []
    stage.pass_time(1)
    assert stage.lease_offsets() == [0]


@pytest.mark.parametrize("ordering", ["none", "key"])
def test_delayed_message_follows_the_wall_clock(ordering: str) -> None:
    stage = Stage(subscription(ordering=ordering))
    stage.publish((b"one", b"1", [header("delay-ms", HOUR_MS)]), (b"two", b"2", [header("delay-ms", 2 * HOUR_MS)]))
    stage.clock.set_wall_clock(by_seconds=3600)
    stage.pass_time(0)
    assert stage.lease_offsets() == [0]
    stage.clock.set_wall_clock(by_seconds=-3600)
    stage.pass_time(2 * HOUR_MS - 1)
    assert stage.lease_offsets() == [0], "its lease has ended; the other is not due"
    stage.pass_time(1)
    assert stage.lease_offsets() == [1]


@by_an_hour
def test_time_to_live_follows_the_wall_clock(by_s: int) -> None:
    stage = Stage(subscription())
    stage.publish((None, b"1", [header("ttl-ms", 2 * HOUR_MS)]))
    stage.clock.set_wall_clock(by_seconds=by_s)
    stage.pass_time(2 * HOUR_MS - by_s * 1000 - 1)
    assert stage.counts().unsettled == 1
    stage.pass_time(1)
    assert stage.counts().unsettled == 0
