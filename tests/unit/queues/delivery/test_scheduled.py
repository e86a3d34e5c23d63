"""The list of messages that a subscription withholds."""

from typing import Any

from conveyor.queues.delivery.scheduled import Scheduled, ScheduledSearch
from conveyor.queues.queue_commands import Cancel, Release
from tests.unit.queues.stage import SUBSCRIPTION, Stage, header, subscription, target

LIMIT = 100


def scheduled(stage: Stage, limit: int = LIMIT, after: tuple[int, int] | None = None) -> list[Scheduled]:
    search = ScheduledSearch(stage.queue, after or (stage.now_ms + 1, -1), limit)
    with search.begun():
        while not search.go_on():
            pass
    assert search.is_current
    assert search.is_complete(stage.messages.term.high_watermark)
    return search.found()


def delayed(*delays_ms: int, **policy: Any) -> Stage:
    """A stage with a message for each delay, in one batch; 0 for none."""
    stage = Stage(subscription(**policy))
    stage.publish(
        *[(b"k", b"", (header("delay-ms", delay_ms),) if delay_ms else ()) for delay_ms in delays_ms],
    )
    return stage


def test_delayed_messages_are_in_the_order_of_their_times() -> None:
    stage = delayed(3_000, 0, 1_000, 3_000, 2_000)
    start_ms = stage.now_ms
    found = [Scheduled(start_ms + due_ms, offset, False, 0) for due_ms, offset in
             ((1_000, 2), (2_000, 4), (3_000, 0), (3_000, 3))]  # fmt: skip
    assert scheduled(stage) == found
    assert scheduled(stage, limit=2) == found[:2]
    assert scheduled(stage, after=(start_ms + 3_000, 0)) == found[3:]
    stage.pass_time(1_000)
    assert scheduled(stage) == found[1:]


def test_failed_message_waits_for_its_backoff() -> None:
    stage = delayed(0, 500)
    stage.nack(*map(target, stage.lease()), delay_ms=700)
    start_ms = stage.now_ms
    assert scheduled(stage) == [Scheduled(start_ms + 500, 1, False, 0), Scheduled(start_ms + 700, 0, True, 1)]
    stage.restart()
    assert scheduled(stage) == [Scheduled(start_ms + 500, 1, False, 0), Scheduled(start_ms + 700, 0, True, 1)]


def test_messages_in_key_order_are_listed_once() -> None:
    stage = delayed(0, 500, ordering="key")
    stage.nack(*map(target, stage.lease()), delay_ms=700)
    start_ms = stage.now_ms
    expected = [Scheduled(start_ms + 500, 1, False, 0), Scheduled(start_ms + 700, 0, True, 1)]
    stage.lease()
    assert scheduled(stage) == expected
    stage.restart()
    assert scheduled(stage) == expected
    stage.lease()
    assert scheduled(stage) == expected


def test_clock_that_is_set_moves_backoffs_and_no_delays() -> None:
    for ordering in ("none", "key"):
        stage = delayed(0, 500, ordering=ordering)
        stage.nack(*map(target, stage.lease()), delay_ms=700)
        start_ms = stage.now_ms
        stage.restart()
        stage.machine.clock_set(100)
        assert [message[:2] for message in scheduled(stage)] == [(start_ms + 500, 1), (start_ms + 800, 0)]


def test_cancelled_and_leased_messages_are_not_listed() -> None:
    stage = delayed(500, 500, 0)
    stage.ask(Cancel(offset=0))
    stage.lease()
    assert [message.offset for message in scheduled(stage)] == [1]


def test_message_whose_lease_was_undone_for_a_while_is_delayed() -> None:
    stage = delayed(0)
    stage.ask(Release(subscription=SUBSCRIPTION, targets=tuple(map(target, stage.lease())), delay_ms=50))
    assert scheduled(stage) == [Scheduled(stage.now_ms + 50, 0, False, 0)]


def test_search_of_deliveries_that_are_built_anew_is_not_current() -> None:
    stage = delayed(500)
    search = ScheduledSearch(stage.queue, (0, -1), LIMIT)
    with search.begun():
        stage.set_subscriptions(subscription(ordering="key"))
        while not search.go_on():
            pass
    assert not search.is_current
