"""The producers that a machine runs requests with: as few as possible, and none whose transaction is ending."""

from typing import Any

import pytest

from conveyor.broker.transaction_requests.producer_pool import ProducerPool
from conveyor.kernel.coordinator_partition import partition_for_key
from conveyor.kernel.errors import ErrorKind, RequestError

COUNT = 8


class Machine:
    """A machine. ending: the transactional ids whose markers are missing."""

    def __init__(self) -> None:
        self.ending: set[str] = set()

    def is_ending(self, transactional_id: str) -> bool:
        return transactional_id in self.ending


@pytest.fixture
def machine() -> Any:
    return Machine()


def pool_of(max_count: int = 3) -> ProducerPool:
    return ProducerPool(5, COUNT, max_count)


def test_transactional_ids_belong_to_the_partition_and_are_the_same_in_each_term(machine: Any) -> None:
    first, second = pool_of(100), pool_of(100)
    ids = [first.take(machine).transactional_id for _ in range(100)]
    assert len(set(ids)) == 100
    assert {partition_for_key(transactional_id, COUNT) for transactional_id in ids} == {5}
    assert all(transactional_id.startswith(f"__rest.5.{number}.") for number, transactional_id in enumerate(ids))
    assert [second.take(machine).transactional_id for _ in range(100)] == ids


def test_producer_that_was_used_last_is_taken_first(machine: Any) -> None:
    pool = pool_of()
    first, second = pool.take(machine), pool.take(machine)
    pool.give_back(first)
    pool.give_back(second)
    assert pool.take(machine) is second
    assert pool.used_count == 1


def test_producer_whose_transaction_is_ending_is_taken_last(machine: Any) -> None:
    pool = pool_of(2)
    first = pool.take(machine)
    machine.ending.add(first.transactional_id)
    pool.give_back(first)
    second = pool.take(machine)
    assert second is not first
    assert pool.take(machine) is first


def test_so_many_producers_are_in_use_at_most(machine: Any) -> None:
    pool = pool_of()
    taken = [pool.take(machine) for _ in range(3)]
    with pytest.raises(RequestError) as refused:
        pool.take(machine)
    assert refused.value.kind is ErrorKind.THROTTLING_QUOTA_EXCEEDED
    pool.give_back(taken[1])
    assert pool.take(machine) is taken[1]
