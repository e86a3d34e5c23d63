"""The producers that a coordinator runs requests with: as few as possible, and none whose transaction is ending."""

from typing import Any

import pytest

from conveyor.broker.transaction_requests.producer_pool import ProducerPool
from conveyor.kernel.coordinator_partition import partition_for_key
from conveyor.kernel.errors import ErrorKind, RequestError

COUNT = 8


class Coordinator:
    """A coordinator. ending: the transactional ids whose markers are missing."""

    def __init__(self) -> None:
        self.ending: set[str] = set()

    def is_ending(self, transactional_id: str) -> bool:
        return transactional_id in self.ending


@pytest.fixture
def coordinator() -> Any:
    return Coordinator()


def pool_of(max_count: int = 3) -> ProducerPool:
    return ProducerPool(5, COUNT, max_count)


def test_transactional_ids_belong_to_the_partition_and_are_the_same_in_each_term(coordinator: Any) -> None:
    first, second = pool_of(100), pool_of(100)
    ids = [first.take(coordinator).transactional_id for _ in range(100)]
    assert len(set(ids)) == 100
    assert {partition_for_key(transactional_id, COUNT) for transactional_id in ids} == {5}
    assert all(transactional_id.startswith(f"__rest.5.{number}.") for number, transactional_id in enumerate(ids))
    assert [second.take(coordinator).transactional_id for _ in range(100)] == ids


def test_producer_that_was_used_last_is_taken_first(coordinator: Any) -> None:
    pool = pool_of()
    first, second = pool.take(coordinator), pool.take(coordinator)
    pool.give_back(first)
    pool.give_back(second)
    assert pool.take(coordinator) is second
    assert pool.used_count == 1


def test_producer_whose_transaction_is_ending_is_taken_last(coordinator: Any) -> None:
    pool = pool_of(2)
    first = pool.take(coordinator)
    coordinator.ending.add(first.transactional_id)
    pool.give_back(first)
    second = pool.take(coordinator)
    assert second is not first
    assert pool.take(coordinator) is first


def test_so_many_producers_are_in_use_at_most(coordinator: Any) -> None:
    pool = pool_of()
    taken = [pool.take(coordinator) for _ in range(3)]
    with pytest.raises(RequestError) as refused:
        pool.take(coordinator)
    assert refused.value.kind is ErrorKind.THROTTLING_QUOTA_EXCEEDED
    pool.give_back(taken[1])
    assert pool.take(coordinator) is taken[1]
