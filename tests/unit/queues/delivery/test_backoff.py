"""The delay before a redelivery."""

import pytest

from conveyor.queues.delivery.backoff import retry_delay_ms
from conveyor.queues.subscription.policy import RetryPolicy

RETRY = RetryPolicy(base_ms=1000, factor=2.0, cap_ms=60_000)


@pytest.mark.parametrize(("delivery_count", "ceiling_ms"), [(1, 1000), (2, 2000), (3, 4000), (7, 60_000), (50, 60_000)])
def test_delay_is_anywhere_below_a_ceiling_that_doubles_up_to_the_cap(delivery_count: int, ceiling_ms: int) -> None:
    assert retry_delay_ms(RETRY, delivery_count, 0.0) == 0
    assert retry_delay_ms(RETRY, delivery_count, 0.5) == ceiling_ms // 2
    assert retry_delay_ms(RETRY, delivery_count, 0.999_999) == ceiling_ms - 1


def test_delay_does_not_overflow_after_any_number_of_deliveries() -> None:
    assert retry_delay_ms(RETRY, 1_000_000_000, 0.5) == 30_000
    assert retry_delay_ms(RetryPolicy(base_ms=43_200_000, factor=1e300, cap_ms=43_200_000), 3, 0.5) == 21_600_000


def test_delay_stays_at_its_base_with_a_factor_of_one() -> None:
    assert retry_delay_ms(RetryPolicy(base_ms=100, factor=1.0, cap_ms=60_000), 9, 0.5) == 50


def test_delay_without_a_base_is_none_at_all() -> None:
    assert retry_delay_ms(RetryPolicy(base_ms=0, factor=2.0, cap_ms=60_000), 1_000_000, 0.9) == 0
