"""The delays between two runs of the metrics job, from the histograms that the brokers report."""

from datetime import UTC, datetime

from pyspark_conveyor.jobs.delay_windows import with_delays
from pyspark_conveyor.jobs.topic_metrics import ConsumerNumbers, DelayHistogram

FIRST, SECOND = datetime(2026, 3, 1, 12, tzinfo=UTC), datetime(2026, 3, 1, 13, tzinfo=UTC)
BOUNDS_MS = [10, 100, 1_000]


def numbers(
    at: datetime, counts: list[int], sum_ms: float, bounds_ms: list[int] = BOUNDS_MS, identity: str = "id"
) -> ConsumerNumbers:
    delays = DelayHistogram(identity, bounds_ms, counts, sum_ms)
    return ConsumerNumbers(at=at, topic="t", consumer="s", kind="subscription", lag=0, ack_delays=delays)


def shown(now: ConsumerNumbers) -> tuple[int | None, float | None, float | None, float | None]:
    return now.delay_acks, now.delay_mean_ms, now.delay_p50_ms, now.delay_p99_ms


def test_first_run_shows_the_delays_since_the_brokers_started() -> None:
    found = with_delays(numbers(FIRST, [0, 4, 0, 0], 200), None)
    assert found.delay_since is None
    assert shown(found) == (4, 50, 55, 99.1)


def test_next_run_shows_the_delays_since_then() -> None:
    before = with_delays(numbers(FIRST, [100, 4, 0, 0], 200), None)
    found = with_delays(numbers(SECOND, [100, 4, 2, 0], 1_200), before)
    assert found.delay_since == FIRST
    assert shown(found) == (2, 500, 550, 991)
    assert found.ack_delays == DelayHistogram("id", BOUNDS_MS, [100, 4, 2, 0], 1_200)


def test_no_acks_have_no_delay() -> None:
    before = numbers(FIRST, [1, 1, 0, 0], 20)
    assert shown(with_delays(numbers(SECOND, [1, 1, 0, 0], 20), before)) == (0, None, None, None)
    assert shown(with_delays(numbers(FIRST, [0, 0, 0, 0], 0), None)) == (0, None, None, None)


def test_all_acks_count_after_a_broker_has_started_again() -> None:
    before = numbers(FIRST, [0, 9, 0, 0], 450)
    found = with_delays(numbers(SECOND, [12, 3, 0, 0], 200), before)
    assert found.delay_since == FIRST
    assert found.delay_acks == 15


def test_all_acks_count_after_a_change_of_the_buckets() -> None:
    before = numbers(FIRST, [0, 0, 1], 450, [10, 100])
    assert with_delays(numbers(SECOND, [1, 0, 1, 0], 200), before).delay_acks == 2


def test_another_subscription_of_the_name_begins_anew() -> None:
    before = numbers(FIRST, [1, 0, 0, 0], 5, identity="deleted")
    found = with_delays(numbers(SECOND, [2, 0, 0, 0], 8), before)
    assert (found.delay_since, found.delay_acks, found.delay_mean_ms) == (None, 2, 4)


def test_delays_beyond_the_buckets_are_shown_as_the_highest_bound() -> None:
    assert shown(with_delays(numbers(FIRST, [0, 0, 0, 2], 10_000), None)) == (2, 5_000, 1_000, 1_000)


def test_group_has_no_delays() -> None:
    without = ConsumerNumbers(at=FIRST, topic="t", consumer="s", kind="group", lag=3)
    assert with_delays(without, None) is without
