"""The table of a transaction coordinator's states: InitProducerId, partitions, EndTxn, time, markers, failover."""

import pytest

from conveyor.kernel.errors import ErrorKind
from conveyor.kernel.ids import ProducerIdentity, TopicPartition
from conveyor.kernel.state_machine import Token
from conveyor.transactions.transaction_commands import (
    AwaitMarkers,
    DescribeTransaction,
    ListTransactions,
    MarkerAnswer,
)
from conveyor.transactions.transaction_log import transaction_record
from conveyor.transactions.transaction_replies import (
    MarkersToSend,
    PartitionsAdded,
    ProducerIdNeeded,
    ProducerInitialized,
    TransactionEnded,
)
from conveyor.transactions.transaction_value import TransactionState
from tests.unit.transactions.transaction_coordinator import (
    ID,
    P0,
    P1,
    P2,
    TIMEOUT_MS,
    TransactionCoordinator,
    after,
    kind_of,
)

VERSIONS = pytest.mark.parametrize("version", [1, 2])
OUTCOMES = pytest.mark.parametrize("commit", [True, False])
WEEK_MS = 604_800_000


@VERSIONS
@OUTCOMES
def test_transaction_from_begin_to_end(version: int, commit: bool) -> None:
    coordinator = TransactionCoordinator()
    producer = coordinator.init()
    assert producer.producer_epoch == 0
    assert coordinator.add(producer, P0, P1, version=version) == PartitionsAdded(errors=(None, None))
    following = coordinator.ended(producer, commit=commit, version=version)
    assert following == (after(producer) if version == 2 else producer)
    assert coordinator.state().is_prepared
    [markers] = coordinator.write_markers()
    assert (markers.commit, markers.partitions, markers.producer) == (commit, (P0, P1), following)
    assert (markers.transaction_version, markers.coordinator_epoch) == (version, 1)
    assert coordinator.state() is (TransactionState.COMPLETE_COMMIT if commit else TransactionState.COMPLETE_ABORT)
    assert isinstance(coordinator.add(following, P2, version=version), PartitionsAdded)


def test_init_fences_the_client_before() -> None:
    coordinator = TransactionCoordinator()
    zombie = coordinator.init()
    assert coordinator.init() == after(zombie)
    assert kind_of(coordinator.add(zombie)) is ErrorKind.PRODUCER_FENCED
    assert kind_of(coordinator.end(zombie)) is ErrorKind.PRODUCER_FENCED
    assert kind_of(coordinator.try_init(expected=zombie)) is ErrorKind.PRODUCER_FENCED


def test_init_with_its_identity_raises_the_epoch_and_may_be_repeated() -> None:
    coordinator = TransactionCoordinator()
    producer = coordinator.init()
    assert coordinator.init(expected=producer) == after(producer)
    assert coordinator.init(expected=producer) == after(producer)
    coordinator.add(after(producer))
    assert kind_of(coordinator.try_init(expected=producer)) is ErrorKind.PRODUCER_FENCED


def test_init_with_its_identity_recovers_from_a_timeout() -> None:
    coordinator = TransactionCoordinator()
    producer = coordinator.init()
    coordinator.add(producer)
    coordinator.advance(TIMEOUT_MS)
    assert kind_of(coordinator.try_init(expected=producer)) is ErrorKind.CONCURRENT_TRANSACTIONS
    coordinator.write_markers()
    assert coordinator.init(expected=producer) == after(producer)


def test_init_of_an_expired_id_ignores_the_identity() -> None:
    coordinator = TransactionCoordinator()
    old = coordinator.init()
    coordinator.advance(WEEK_MS)
    assert kind_of(coordinator.ask(DescribeTransaction(transactional_id=ID))) is ErrorKind.TRANSACTIONAL_ID_NOT_FOUND
    assert coordinator.log[-1].value is None
    assert kind_of(coordinator.add(old)) is ErrorKind.INVALID_PRODUCER_ID_MAPPING
    assert coordinator.init(expected=old).producer_id > old.producer_id


@pytest.mark.parametrize("timeout_ms", [-1, 0, 900_001])
def test_init_refuses_a_timeout_out_of_range(timeout_ms: int) -> None:
    reply = TransactionCoordinator().try_init(timeout_ms=timeout_ms)
    assert kind_of(reply) is ErrorKind.INVALID_TRANSACTION_TIMEOUT


@pytest.mark.parametrize("transactional_id", ["", "x" * 1_025, "ä" * 513, "\ud800"])
def test_init_refuses_an_id_that_is_empty_or_too_long_or_no_text(transactional_id: str) -> None:
    coordinator = TransactionCoordinator()
    assert kind_of(coordinator.try_init(transactional_id=transactional_id)) is ErrorKind.INVALID_REQUEST
    assert coordinator.machine.transactional_ids() == []


def test_init_takes_an_id_of_the_longest_length() -> None:
    assert TransactionCoordinator().init(transactional_id="ä" * 512)


def test_longer_id_that_the_log_has_ends_its_transaction() -> None:
    """Earlier versions have taken ids of up to 32,767 bytes."""
    longer = "x" * 1_025
    coordinator = TransactionCoordinator()
    producer = coordinator.init()
    coordinator.add(producer)
    value = coordinator.newest_value()
    coordinator.log.append(transaction_record(longer, value))
    coordinator.fail_over()
    coordinator.ended(producer, transactional_id=longer)
    coordinator.write_markers()
    assert coordinator.machine.state_counts[TransactionState.COMPLETE_COMMIT] == 1


def test_init_limits_the_number_of_ids() -> None:
    coordinator = TransactionCoordinator(max_ids_count=1)
    coordinator.init()
    coordinator.init()
    assert kind_of(coordinator.try_init(transactional_id="other")) is ErrorKind.POLICY_VIOLATION


def test_init_without_a_spare_id_asks_for_one() -> None:
    coordinator = TransactionCoordinator()
    assert coordinator.try_init(spare_producer_id=None) == ProducerIdNeeded()
    assert not coordinator.log
    producer = coordinator.init()
    assert coordinator.init(spare_producer_id=None) == after(producer)


def test_partitions_that_take_part_are_not_written_again() -> None:
    coordinator = TransactionCoordinator()
    producer = coordinator.init()
    coordinator.add(producer, P0)
    coordinator.add(producer, P1)
    count = len(coordinator.log)
    assert coordinator.add(producer, P1, P0, P0) == PartitionsAdded(errors=(None, None, None))
    assert len(coordinator.log) == count
    assert coordinator.describe().partitions == (P0, P1)


def test_partitions_are_limited_by_the_size_of_the_record() -> None:
    coordinator = TransactionCoordinator(max_record_bytes=1_000)
    producer = coordinator.init()
    coordinator.add(producer, P0)
    others = tuple(TopicPartition("topic", partition) for partition in range(300))
    assert kind_of(coordinator.add(producer, *others)) is ErrorKind.POLICY_VIOLATION
    assert coordinator.describe().partitions == (P0,)
    assert isinstance(coordinator.end(producer), TransactionEnded)


def test_partitions_can_be_verified() -> None:
    coordinator = TransactionCoordinator()
    producer = coordinator.init()
    [error] = coordinator.add(producer, P0, verify_only=True).errors
    assert kind_of(error) is ErrorKind.TRANSACTION_ABORTABLE
    assert coordinator.state() is TransactionState.EMPTY
    coordinator.add(producer, P0)
    assert coordinator.add(producer, P0, verify_only=True) == PartitionsAdded(errors=(None,))
    coordinator.ended(producer, version=1)
    reply = coordinator.add(producer, P0, verify_only=True)
    assert kind_of(reply) is ErrorKind.CONCURRENT_TRANSACTIONS


def test_partitions_wait_for_the_markers_of_the_transaction_before() -> None:
    coordinator = TransactionCoordinator()
    producer = coordinator.init()
    coordinator.add(producer)
    following = coordinator.ended(producer)
    assert kind_of(coordinator.add(following)) is ErrorKind.CONCURRENT_TRANSACTIONS
    assert kind_of(coordinator.add(producer)) is ErrorKind.PRODUCER_FENCED


@VERSIONS
@OUTCOMES
def test_end_may_be_repeated(version: int, commit: bool) -> None:
    coordinator = TransactionCoordinator()
    producer = coordinator.init()
    coordinator.add(producer, version=version)
    following = coordinator.ended(producer, commit=commit, version=version)
    reply = coordinator.end(producer, commit=commit, version=version)
    assert kind_of(reply) is ErrorKind.CONCURRENT_TRANSACTIONS
    other = ErrorKind.INVALID_TXN_STATE if commit else ErrorKind.PRODUCER_FENCED
    assert kind_of(coordinator.end(producer, commit=not commit, version=version)) is other
    coordinator.write_markers()
    assert coordinator.ended(producer, commit=commit, version=version) == following
    other = ErrorKind.PRODUCER_FENCED if version == 2 and not commit else ErrorKind.INVALID_TXN_STATE
    assert kind_of(coordinator.end(producer, commit=not commit, version=version)) is other


@VERSIONS
def test_end_without_a_transaction_is_refused(version: int) -> None:
    coordinator = TransactionCoordinator()
    producer = coordinator.init()
    assert kind_of(coordinator.end(producer, version=version)) is ErrorKind.INVALID_TXN_STATE
    if version == 1:
        assert kind_of(coordinator.end(producer, commit=False, version=1)) is ErrorKind.INVALID_TXN_STATE


def test_end_of_version_1_is_no_retry_of_a_successor_s_transaction() -> None:
    """The epoch of the zombie is just below the one that committed."""
    coordinator = TransactionCoordinator()
    zombie = coordinator.init()
    producer = coordinator.init()
    coordinator.add(producer, version=1)
    coordinator.ended(producer, version=1)
    coordinator.write_markers()
    assert kind_of(coordinator.end(zombie, version=2)) is ErrorKind.PRODUCER_FENCED


def test_a_zombie_is_fenced_on_its_old_connection() -> None:
    coordinator = TransactionCoordinator()
    zombie = coordinator.init()
    coordinator.init()
    assert kind_of(coordinator.end(zombie, version=1, connection=3)) is ErrorKind.PRODUCER_FENCED


def test_end_on_an_older_connection_waits_in_version_1() -> None:
    coordinator = TransactionCoordinator()
    producer = coordinator.init()
    coordinator.add(producer, version=1, connection=4)
    reply = coordinator.end(producer, version=1, connection=3)
    assert kind_of(reply) is ErrorKind.CONCURRENT_TRANSACTIONS
    assert coordinator.ended(producer, version=1, connection=4) == producer


def test_transaction_times_out_and_epoch_rises() -> None:
    coordinator = TransactionCoordinator()
    producer = coordinator.init()
    coordinator.add(producer)
    coordinator.advance(TIMEOUT_MS - 1)
    assert coordinator.state() is TransactionState.ONGOING
    coordinator.advance(1)
    assert coordinator.state() is TransactionState.PREPARE_ABORT
    [markers] = coordinator.write_markers()
    assert (markers.producer, markers.commit) == (after(producer), False)
    assert kind_of(coordinator.add(producer)) is ErrorKind.PRODUCER_FENCED


@pytest.mark.parametrize("by_ms", [-100_000_000, 100_000_000])
def test_transaction_times_out_after_its_duration_when_the_clock_is_set(by_ms: int) -> None:
    coordinator = TransactionCoordinator()
    coordinator.add(coordinator.init())
    coordinator.advance(10)
    coordinator.set_clock(by_ms)
    coordinator.advance(TIMEOUT_MS - 11)
    assert coordinator.state() is TransactionState.ONGOING
    coordinator.advance(1)
    assert coordinator.state() is TransactionState.PREPARE_ABORT


def test_transaction_has_at_most_its_timeout_left_after_a_failover() -> None:
    coordinator = TransactionCoordinator()
    coordinator.add(coordinator.init())
    coordinator.now_ms -= 100_000_000
    coordinator.fail_over()
    coordinator.advance(TIMEOUT_MS)
    assert coordinator.state() is TransactionState.PREPARE_ABORT


def test_expiry_is_cut_into_batches() -> None:
    coordinator = TransactionCoordinator(max_expired_bytes=1)
    for number in range(3):
        coordinator.init(transactional_id=f"id-{number}")
    coordinator.now_ms += WEEK_MS
    coordinator.expire()
    assert len(coordinator.listed()) == 2
    coordinator.advance(0)
    assert not coordinator.listed()


def test_markers_are_answered_one_partition_at_a_time() -> None:
    coordinator = TransactionCoordinator()
    producer = coordinator.init()
    coordinator.add(producer, P0, P1, P2)
    coordinator.ended(producer)
    [markers] = coordinator.unanswered
    coordinator.answer(markers, MarkerAnswer.NEWER_EPOCH, P0)
    coordinator.answer(markers, MarkerAnswer.PARTITION_DELETED, P2, P0)
    assert coordinator.state() is TransactionState.PREPARE_COMMIT
    coordinator.answer(markers, MarkerAnswer.WRITTEN, P1)
    assert coordinator.state() is TransactionState.COMPLETE_COMMIT
    coordinator.answer(markers, MarkerAnswer.WRITTEN)
    assert coordinator.state() is TransactionState.COMPLETE_COMMIT


def test_answers_of_an_earlier_transaction_do_not_count() -> None:
    """In version 1 both have the same epoch."""
    coordinator = TransactionCoordinator()
    producer = coordinator.init()
    coordinator.add(producer, version=1)
    coordinator.ended(producer, version=1)
    [old] = coordinator.write_markers()
    coordinator.add(producer, version=1)
    coordinator.ended(producer, version=1)
    coordinator.answer(old, MarkerAnswer.WRITTEN)
    assert coordinator.state() is TransactionState.PREPARE_COMMIT


def test_coordinator_stops_when_another_one_has_sent_a_marker() -> None:
    coordinator = TransactionCoordinator()
    producer = coordinator.init()
    coordinator.add(producer, P0, P1)
    coordinator.ended(producer)
    [markers] = coordinator.unanswered
    coordinator.answer(markers, MarkerAnswer.NEWER_COORDINATOR, P0)
    coordinator.answer(markers, MarkerAnswer.WRITTEN)
    assert coordinator.state() is TransactionState.PREPARE_COMMIT
    reply = MarkersToSend(markers=())
    outcome = coordinator.machine.handle(AwaitMarkers(again=True), Token(99), coordinator.now_ms)
    assert [each.value for each in outcome.replies] == [reply], "only the sender before is released"


def test_markers_are_sent_again_on_request_and_after_a_failover() -> None:
    coordinator = TransactionCoordinator()
    producer = coordinator.init()
    coordinator.add(producer, P0, P1)
    coordinator.ended(producer)
    [first] = coordinator.unanswered
    coordinator.answer(first, MarkerAnswer.WRITTEN, P0)
    outcome = coordinator.machine.handle(AwaitMarkers(again=True), Token(99), coordinator.now_ms)
    [again] = outcome.replies[-1].value.markers  # type: ignore[attr-defined]
    assert (again.serial, again.partitions) == (first.serial, (P1,))
    coordinator.fail_over()
    [resent] = coordinator.unanswered
    assert (resent.partitions, resent.coordinator_epoch, resent.producer) == ((P0, P1), 2, first.producer)


def test_transaction_without_partitions_is_completed_after_a_failover() -> None:
    """Kafka writes PrepareAbort and Complete apart, so that its log may end between them."""
    coordinator = TransactionCoordinator()
    producer = coordinator.init()
    coordinator.ended(producer, commit=False)
    del coordinator.log[-1]
    coordinator.fail_over()
    assert coordinator.state() is TransactionState.PREPARE_ABORT
    coordinator.advance(0)
    assert coordinator.state() is TransactionState.COMPLETE_ABORT


def test_list_filters_by_state_producer_and_duration() -> None:
    coordinator = TransactionCoordinator()
    producer = coordinator.init()
    coordinator.add(producer)
    other = coordinator.init(transactional_id="another")
    coordinator.advance(10)

    assert coordinator.listed() == ["another", ID]
    assert coordinator.listed(states=frozenset({TransactionState.ONGOING})) == [ID]
    assert coordinator.listed(producer_ids=frozenset({other.producer_id})) == ["another"]
    assert coordinator.listed(min_duration_ms=9) == [ID]
    assert coordinator.listed(min_duration_ms=10) == []
    assert coordinator.ask(ListTransactions(transactional_ids=("gone",))).transactions == ()


def test_state_names_are_kafkas() -> None:
    names = [state.kafka_name for state in TransactionState]
    assert names == ["Empty", "Ongoing", "PrepareCommit", "PrepareAbort", "CompleteCommit", "CompleteAbort"]


def test_two_phase_commit_is_off_by_default() -> None:
    reply = TransactionCoordinator().try_init(enable_two_phase_commit=True)
    assert kind_of(reply) is ErrorKind.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    reply = TransactionCoordinator(two_phase_commit_enable=True).try_init(keep_prepared=True)
    assert kind_of(reply) is ErrorKind.INVALID_REQUEST


@OUTCOMES
def test_two_phase_commit_keeps_a_transaction_without_a_timeout(commit: bool) -> None:
    coordinator = TransactionCoordinator(two_phase_commit_enable=True)
    producer = coordinator.init(enable_two_phase_commit=True)
    coordinator.add(producer)
    coordinator.advance(10 * WEEK_MS)
    kept = after(producer)
    for number in range(2):
        reply = coordinator.try_init(enable_two_phase_commit=True, keep_prepared=True)
        kept = after(producer, number + 1)
        assert reply == ProducerInitialized(producer=kept, ongoing=producer)
        coordinator.fail_over()
    assert kind_of(coordinator.add(kept)) is ErrorKind.INVALID_TXN_STATE
    assert kind_of(coordinator.add(producer)) is ErrorKind.PRODUCER_FENCED
    assert kind_of(coordinator.end(producer, commit=commit)) is ErrorKind.PRODUCER_FENCED
    assert kind_of(coordinator.end(kept, commit=commit, version=1)) is ErrorKind.UNSUPPORTED_VERSION
    assert coordinator.ended(kept, commit=commit) == after(kept)
    [markers] = coordinator.write_markers()
    assert (markers.producer, markers.commit) == (after(kept), commit)
    assert coordinator.ended(kept, commit=commit) == after(kept)


@pytest.mark.parametrize("epoch", [32765, 32766])
def test_two_phase_commit_keeps_a_transaction_beyond_the_last_epoch(epoch: int) -> None:
    coordinator = TransactionCoordinator(two_phase_commit_enable=True)
    old = coordinator.with_epoch(epoch)
    coordinator.add(old)
    kept = old
    for _ in range(3):
        kept = coordinator.init(enable_two_phase_commit=True, keep_prepared=True)
    assert (kept.producer_id > old.producer_id, kept.producer_epoch) == (True, 2 - (32766 - epoch))
    following = coordinator.ended(kept)
    [markers] = coordinator.write_markers()
    assert markers.producer == ProducerIdentity(old.producer_id, markers.producer.producer_epoch)
    assert markers.producer.producer_epoch == 32767
    assert following == after(kept)
    assert coordinator.describe().producer == following
    assert coordinator.ended(kept) == following


def test_two_phase_commit_is_aborted_by_a_client_that_does_not_keep() -> None:
    coordinator = TransactionCoordinator(two_phase_commit_enable=True)
    producer = coordinator.init(enable_two_phase_commit=True)
    coordinator.add(producer)
    coordinator.init(enable_two_phase_commit=True, keep_prepared=True)
    assert kind_of(coordinator.try_init()) is ErrorKind.CONCURRENT_TRANSACTIONS
    [markers] = coordinator.write_markers()
    assert (markers.producer, markers.commit) == (after(producer, 2), False)
    assert coordinator.init() == after(producer, 3)
