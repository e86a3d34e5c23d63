"""Slots are used again, but not while a client may repeat its request, and their number is limited."""

from uuid import UUID

import pytest

from conveyor.broker.handles.producer_slots import LEAST_REST_MS, REST_MS, ProducerSlots, Slot
from conveyor.broker.handles.transaction_handle import SlotName
from conveyor.kernel.errors import ErrorKind, RequestError
from conveyor.kernel.ids import ProducerEpoch, ProducerId, ProducerIdentity

NOW_MS = 1_000


def slots(max_count: int = 3) -> ProducerSlots:
    return ProducerSlots(SlotName(1, UUID(int=0), 0), max_count)


def numbers(*taken: Slot) -> list[int]:
    return [slot.name.number for slot in taken]


def test_slots_in_use_are_different() -> None:
    pool = slots()
    assert numbers(*(pool.take(NOW_MS) for _ in range(3))) == [0, 1, 2]
    assert (pool.used_count, pool.resting_count) == (3, 0)


def test_number_of_slots_is_limited() -> None:
    pool = slots(1)
    slot = pool.take(NOW_MS)
    with pytest.raises(RequestError) as refused:
        pool.take(NOW_MS)
    assert refused.value.kind is ErrorKind.THROTTLING_QUOTA_EXCEEDED
    pool.give_back(slot)
    assert pool.take(NOW_MS) is slot


def test_slot_used_last_is_taken_first() -> None:
    pool = slots()
    first, second = pool.take(NOW_MS), pool.take(NOW_MS)
    pool.give_back(second)
    pool.give_back(first)
    assert pool.take(NOW_MS) is first


def test_resting_slot_is_not_taken_before_its_time_and_its_identity_is_forgotten() -> None:
    pool = slots(2)
    slot = pool.take(NOW_MS)
    slot.producer = ProducerIdentity(ProducerId(1), ProducerEpoch(1))
    pool.rest(slot, NOW_MS)
    assert pool.take(NOW_MS + REST_MS - 1) is not slot
    assert (pool.used_count, pool.resting_count) == (1, 1)
    assert pool.take(NOW_MS + REST_MS) is slot
    assert slot.producer is None


def test_slot_that_has_rested_longest_is_taken_early_if_there_is_no_other() -> None:
    pool = slots(2)
    first, second = pool.take(NOW_MS), pool.take(NOW_MS)
    pool.rest(first, NOW_MS)
    pool.rest(second, NOW_MS + 1)
    with pytest.raises(RequestError):
        pool.take(NOW_MS + LEAST_REST_MS - 1)
    assert pool.take(NOW_MS + LEAST_REST_MS) is first
    assert pool.take(NOW_MS + LEAST_REST_MS + 1) is second
