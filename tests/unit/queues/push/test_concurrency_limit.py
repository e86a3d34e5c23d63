"""The number of requests at a time: how it rises and falls."""

from conveyor.queues.push.concurrency_limit import ConcurrencyLimit


def _round(limit: ConcurrencyLimit) -> None:
    """As many requests as are permitted, all answered in time."""
    for _ in [limit.began() for _ in range(limit.free_count)]:
        limit.succeeded()


def test_limit_begins_with_one_request_and_doubles_with_each_round() -> None:
    limit, limits = ConcurrencyLimit(100), list[int]()
    for _ in range(5):
        limits.append(limit.limit)
        for _ in range(limit.free_count):
            limit.began()
        for _ in range(limits[-1]):
            limit.open_count = limit.limit  # All that are permitted are open.
            limit.succeeded()
        limit.open_count = 0
    assert limits == [1, 2, 4, 8, 16]


def test_limit_never_exceeds_the_maximum_also_when_that_falls() -> None:
    limit = ConcurrencyLimit(3)
    for _ in range(10):
        _round(limit)
    assert limit.limit == 3
    limit.maximum = 2
    assert (limit.limit, limit.free_count) == (2, 2)
    numbers = [limit.began() for _ in range(2)]
    assert (len(numbers), limit.free_count) == (2, 0)


def test_requests_under_way_at_a_sign_of_overload_are_one_sign() -> None:
    limit = ConcurrencyLimit(8)
    limit._limit = 8.0
    numbers = [limit.began() for _ in range(8)]
    for number in numbers:
        limit.overloaded(number)
    assert (limit.limit, limit.open_count) == (4, 0)
    limit.overloaded(limit.began())
    assert limit.limit == 2


def test_limit_rises_by_one_for_a_round_after_an_overload() -> None:
    limit = ConcurrencyLimit(100)
    limit._limit = 8.0
    limit.overloaded(limit.began())
    for _ in range(5):
        limit.open_count = limit.limit
        limit.succeeded()
    assert limit.limit == 5


def test_limit_does_not_rise_while_it_is_not_used() -> None:
    limit = ConcurrencyLimit(100)
    limit._limit = 4.0
    for _ in range(100):
        limit.began()
        limit.succeeded()
    assert limit.limit == 4


def test_limit_is_at_least_one() -> None:
    limit = ConcurrencyLimit(10)
    for _ in range(10):
        limit.overloaded(limit.began())
    assert (limit.limit, limit.free_count) == (1, 1)
    limit.began()
    limit.ended()
    assert limit.free_count == 1
