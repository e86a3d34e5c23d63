"""What a partition knows of its idempotent producers: sequences, duplicates, epochs, and when it forgets."""

import pytest

from conveyor.kernel.errors import ErrorKind, RequestError
from conveyor.kernel.ids import Offset
from conveyor.log.producers import producer_state
from conveyor.log.producers.producer_state import REMEMBERED_BATCHES, ProducerState, RememberedBatch
from conveyor.records.batch import TRANSACTIONAL, BatchHeader, read_header
from conveyor.records.transaction_marker import TransactionMarker
from tests.unit.log.logs import idempotent_batch

LAST_SEQUENCE = 2**31 - 1


def header(sequence: int, count: int = 1, *, producer_id: int = 7, epoch: int = 0) -> BatchHeader:
    return read_header(idempotent_batch(sequence, *[b"v"] * count, producer_id=producer_id, epoch=epoch))


def state_with(*headers: BatchHeader, max_producers: int = 10) -> ProducerState:
    """A state that has seen these batches, one millisecond and as many offsets as they have records apart."""
    state = ProducerState(max_producers, expiration_ms=1000)
    offset = 0
    for now_ms, each in enumerate(headers):
        state.record(each, Offset(offset), now_ms)
        offset += each.records_count
    return state


def refusal(state: ProducerState, wanted: BatchHeader) -> ErrorKind:
    with pytest.raises(RequestError) as refused:
        state.check(wanted)
    return refused.value.kind


def test_unknown_producer_may_start_anywhere() -> None:
    assert state_with().check(header(500, epoch=3)) is None


def test_next_sequence_is_taken() -> None:
    assert state_with(header(0, 3)).check(header(3)) is None


@pytest.mark.parametrize("sequence", [1, 2, 4, 100])
def test_gap_or_overlap_is_out_of_order(sequence: int) -> None:
    assert refusal(state_with(header(0, 3)), header(sequence)) is ErrorKind.OUT_OF_ORDER_SEQUENCE


def test_batch_is_early_if_sequences_are_missing_before_it() -> None:
    state = state_with(header(0, 3))
    assert [state.is_early(header(sequence)) for sequence in (0, 2, 3, 4, LAST_SEQUENCE)] == [0, 0, 0, 1, 0]
    assert [state.is_early(header(sequence, epoch=1)) for sequence in (0, 3)] == [False, True]
    assert not state_with(header(0, 3, epoch=1)).is_early(header(9)), "an older epoch"


def test_batch_of_an_unknown_producer_is_early_unless_it_begins_at_zero() -> None:
    assert [state_with().is_early(header(sequence)) for sequence in (0, 1, LAST_SEQUENCE)] == [False, True, True]


def test_sequence_is_past_once_its_batch_or_a_newer_epoch_is_stored() -> None:
    state = state_with(header(0, 3, epoch=1))
    assert [state.is_past(7, 1, sequence) for sequence in (0, 2, 3)] == [True, True, False]
    assert [state.is_past(7, epoch, 5) for epoch in (0, 1, 2)] == [True, False, False]
    assert not state.is_past(8, 0, 0), "an unknown producer"


def test_early_batches_are_found_where_the_sequence_wraps() -> None:
    state = state_with(header(LAST_SEQUENCE - 1))
    assert [state.is_early(header(sequence)) for sequence in (LAST_SEQUENCE, 0)] == [False, True]


def test_duplicate_gets_its_first_offsets() -> None:
    state = state_with(header(0, 3), header(3, 2), header(5))
    assert state.check(header(3, 2)) == RememberedBatch(3, 4, 3, 4, 1)


def test_same_start_with_another_length_is_no_duplicate() -> None:
    assert refusal(state_with(header(0, 3)), header(0, 2)) is ErrorKind.OUT_OF_ORDER_SEQUENCE


def test_only_the_last_batches_are_remembered() -> None:
    state = state_with(*[header(sequence) for sequence in range(REMEMBERED_BATCHES + 1)])
    assert refusal(state, header(0)) is ErrorKind.OUT_OF_ORDER_SEQUENCE
    assert state.check(header(1)) == RememberedBatch(1, 1, 1, 1, 1)


def test_sequence_wraps_to_zero() -> None:
    state = state_with(header(LAST_SEQUENCE))
    assert state.check(header(0)) is None
    assert refusal(state, header(1)) is ErrorKind.OUT_OF_ORDER_SEQUENCE


def test_sequence_wraps_within_a_batch() -> None:
    state = state_with(header(LAST_SEQUENCE - 1, 4))
    assert state.check(header(2)) is None
    assert state.check(header(LAST_SEQUENCE - 1, 4)) == RememberedBatch(LAST_SEQUENCE - 1, 1, 0, 3, 0)


def test_older_epoch_is_fenced() -> None:
    assert refusal(state_with(header(0, epoch=2)), header(1, epoch=1)) is ErrorKind.INVALID_PRODUCER_EPOCH


def test_newer_epoch_starts_at_zero_and_forgets_the_older() -> None:
    state = state_with(header(0, epoch=1))
    assert refusal(state, header(1, epoch=2)) is ErrorKind.OUT_OF_ORDER_SEQUENCE
    assert state.check(header(0, epoch=2)) is None
    state.record(header(0, epoch=2), Offset(1), 0)
    assert state.check(header(0, epoch=2)) == RememberedBatch(0, 0, 1, 1, 0)
    assert refusal(state, header(1, epoch=1)) is ErrorKind.INVALID_PRODUCER_EPOCH


def test_producers_do_not_disturb_each_other() -> None:
    state = state_with(header(0, producer_id=1), header(0, producer_id=2))
    assert state.check(header(1, producer_id=1)) is None
    assert refusal(state, header(2, producer_id=2)) is ErrorKind.OUT_OF_ORDER_SEQUENCE


def test_expire_forgets_the_silent_only() -> None:
    state = state_with()
    state.record(header(0, producer_id=1), Offset(0), 0)
    state.record(header(0, producer_id=2), Offset(1), 1)
    state.expire(1001)
    assert len(state) == 1
    assert state.check(header(7, producer_id=1)) is None
    assert refusal(state, header(7, producer_id=2)) is ErrorKind.OUT_OF_ORDER_SEQUENCE


def test_producers_are_forgotten_so_many_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(producer_state, "_EXPIRED_AT_ONCE", 3)
    state = state_with(*[header(0, producer_id=number) for number in range(5)])
    assert [state.expire(100_000) for _ in range(3)] == [3, 2, 0]


def test_last_batch_below_a_limit_may_not_be_the_last_one() -> None:
    """A batch above it may be truncated, and the one before is the last again."""
    state = state_with(header(0, 2), header(2, 3), header(0, producer_id=8), header(1, producer_id=8))
    lasts = {limit: state.last_offsets(limit) for limit in (10, 6, 4, 1)}
    assert lasts == {10: [4, 6], 6: [4, 5], 4: [1], 1: []}


def test_full_state_forgets_the_longest_silent() -> None:
    ids = [1, 2, 1, 3]
    headers = [header(number, producer_id=producer_id) for number, producer_id in enumerate(ids)]
    state = state_with(*headers, max_producers=2)
    assert set(state.entries()[0]) == {1, 3}


def test_entries_restore_the_same_state() -> None:
    state = state_with(header(0, producer_id=2), header(0, 2, producer_id=1), header(1, producer_id=2))
    other = state_with(header(9, producer_id=9))
    other.restore(state.entries())
    assert list(other.entries()) == list(state.entries())
    assert other.check(header(0, 2, producer_id=1)) == RememberedBatch(0, 1, 1, 2, 1)
    assert other.check(header(2, producer_id=2)) is None


def opened_by(*producer_ids: int, max_producers: int = 10) -> ProducerState:
    """A state in which each producer has begun a transaction, one millisecond apart."""
    state = ProducerState(max_producers, expiration_ms=1000)
    for now_ms, producer_id in enumerate(producer_ids):
        batch = header(0, producer_id=producer_id)._replace(attributes=TRANSACTIONAL)
        state.record(batch, Offset(now_ms), now_ms)
    return state


def marker(producer_id: int = 7, epoch: int = 1) -> TransactionMarker:
    return TransactionMarker(producer_id=producer_id, producer_epoch=epoch, coordinator_epoch=0, commits=True)


def is_known(state: ProducerState, producer_id: int) -> bool:
    return state.remembered(producer_id).epoch >= 0


def test_expire_spares_open_transactions_and_counts_from_the_marker() -> None:
    state = opened_by(7, 8)
    state.record_marker(marker(8), 2, 5)
    state.expire(100_000)
    assert (is_known(state, 7), is_known(state, 8)) == (True, False)
    state.record_marker(marker(7), 3, 100_000)
    state.expire(101_000)
    assert is_known(state, 7)
    state.expire(101_001)
    assert not is_known(state, 7)


def test_full_state_spares_open_transactions_and_the_newest() -> None:
    state = opened_by(1, 2, 3, max_producers=2)
    assert len(state) == 3
    state.record_marker(marker(9), 4, 4)
    assert is_known(state, 9), "the marker of an unknown producer fences it"
    state.record(header(0, producer_id=10), Offset(5), 5)
    assert (is_known(state, 9), is_known(state, 10), len(state)) == (False, True, 4)


def test_open_transactions_are_limited() -> None:
    state = opened_by(1, 2, max_producers=2)
    assert refusal(state, header(0, producer_id=3)._replace(attributes=TRANSACTIONAL)) is ErrorKind.POLICY_VIOLATION
    assert state.check(header(1, producer_id=1)._replace(attributes=TRANSACTIONAL)) is None
    assert state.check(header(0, producer_id=3)) is None, "a plain batch opens none"
    state.record_marker(marker(2, epoch=0), 3, 3)
    assert state.check(header(1, producer_id=2)._replace(attributes=TRANSACTIONAL)) is None


def test_marker_of_a_newer_epoch_leaves_no_batches() -> None:
    state = opened_by(7)
    state.record_marker(marker(epoch=1), 1, 1)
    assert state.check(header(0, epoch=1)) is None
    assert refusal(state, header(1, epoch=1)) is ErrorKind.OUT_OF_ORDER_SEQUENCE
    assert refusal(state, header(1, epoch=0)) is ErrorKind.INVALID_PRODUCER_EPOCH
    assert state.remembers_from(1)
    assert not state.remembers_from(2)


def test_old_marker_in_the_log_ends_the_transaction_and_lowers_no_epoch() -> None:
    state = opened_by(7)
    state.record_marker(marker(epoch=4), 1, 1)
    state.record(header(0, epoch=4)._replace(attributes=TRANSACTIONAL), Offset(2), 2)
    assert state.record_marker(marker(epoch=3), 3, 3) is not None
    assert refusal(state, header(1, epoch=3)) is ErrorKind.INVALID_PRODUCER_EPOCH


def test_duplicate_is_answered_before_the_transaction_is_checked() -> None:
    state = opened_by(7)
    assert state.check(header(0)) is not None
    assert refusal(state, header(1)) is ErrorKind.INVALID_TXN_STATE
