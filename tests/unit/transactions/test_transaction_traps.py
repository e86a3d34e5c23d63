"""Failures of other coordinators that this one must not repeat, each with its number in Kafka's issue tracker."""

import pytest

from conveyor.kernel.errors import ErrorKind
from conveyor.kernel.ids import ProducerEpoch, ProducerIdentity
from conveyor.kernel.state_machine import Outcome, Token
from conveyor.transactions.transaction_commands import AwaitMarkers, EndTransaction
from conveyor.transactions.transaction_log import decode_transaction
from conveyor.transactions.transaction_replies import MarkersToSend, ProducerIdNeeded, TransactionEnded
from conveyor.transactions.transaction_value import TransactionState
from tests.unit.transactions.transaction_coordinator import ID, TIMEOUT_MS, TransactionCoordinator, after, kind_of


def test_kafka_18660_transactions_continue_across_the_last_epoch() -> None:
    coordinator = TransactionCoordinator()
    first = producer = coordinator.with_epoch(32765)
    identities = []
    for _ in range(4):
        coordinator.add(producer)
        if producer.producer_epoch == 32766:
            assert coordinator.end(producer) == ProducerIdNeeded()
            assert coordinator.state() is TransactionState.ONGOING
        ended = coordinator.ended(producer, spare_producer_id=coordinator.spare())
        [markers] = coordinator.write_markers()
        assert markers.producer.producer_id == producer.producer_id
        assert markers.producer.producer_epoch > producer.producer_epoch
        assert coordinator.ended(producer) == ended, "a retry has the same answer"
        producer = ended
        identities.append(producer)
    new_id = producer.producer_id
    assert new_id != first.producer_id
    assert identities == [after(first), *(ProducerIdentity(new_id, ProducerEpoch(epoch)) for epoch in range(3))]


@pytest.mark.parametrize("epoch", [32765, 32766])
def test_kafka_18660_abort_at_the_last_epoch_needs_no_new_id_but_init_does(epoch: int) -> None:
    coordinator = TransactionCoordinator()
    producer = coordinator.with_epoch(epoch)
    coordinator.add(producer)
    coordinator.advance(TIMEOUT_MS)
    [markers] = coordinator.write_markers()
    assert markers.producer == after(producer)
    assert kind_of(coordinator.add(ProducerIdentity(producer.producer_id, ProducerEpoch(32767)))) is (
        ErrorKind.PRODUCER_FENCED
    )
    recovered = coordinator.init(expected=producer)
    assert recovered == coordinator.init(expected=producer), "a retry has the same answer"
    assert (recovered == after(producer)) is (epoch == 32765)


def test_kafka_19367_repeated_init_raises_the_epoch_of_an_open_transaction_once() -> None:
    coordinator = TransactionCoordinator()
    producer = coordinator.init()
    coordinator.add(producer)
    for _ in range(100):
        assert kind_of(coordinator.try_init()) is ErrorKind.CONCURRENT_TRANSACTIONS
    assert coordinator.describe().producer == after(producer)
    coordinator.fail_over()
    assert kind_of(coordinator.try_init()) is ErrorKind.CONCURRENT_TRANSACTIONS
    [markers] = coordinator.write_markers()
    assert markers.producer == after(producer)
    assert coordinator.init() == after(producer, 2)


@pytest.mark.parametrize("written", ["before", "after"])
def test_kafka_20310_20357_failover_after_the_producer_id_has_changed(written: str) -> None:
    """Retries of EndTxn and of InitProducerId with the old id have the same answers at the next coordinator."""
    coordinator = TransactionCoordinator()
    producer = coordinator.with_epoch(32766)
    coordinator.add(producer)
    following = coordinator.ended(producer, spare_producer_id=coordinator.spare())
    if written == "before":
        coordinator.write_markers()
    coordinator.fail_over()
    coordinator.write_markers()
    coordinator.fail_over()
    assert coordinator.ended(producer) == following
    assert coordinator.init(expected=producer) == following
    coordinator.fail_over()
    assert coordinator.init(expected=producer) == following
    coordinator.add(following)
    assert kind_of(coordinator.end(producer)) is ErrorKind.INVALID_PRODUCER_ID_MAPPING


def test_kafka_20310_20357_failover_after_init_has_changed_the_producer_id() -> None:
    coordinator = TransactionCoordinator()
    producer = coordinator.with_epoch(32766)
    following = coordinator.init(expected=producer)
    assert following.producer_id != producer.producer_id
    coordinator.fail_over()
    assert coordinator.init(expected=producer) == following
    value = coordinator.newest_value()
    assert (value.previous_producer_id, value.last_producer_epoch) == producer


def test_kafka_20785_commit_after_the_timeout_is_told_apart_from_a_wrong_call() -> None:
    coordinator = TransactionCoordinator()
    producer = coordinator.init()
    coordinator.add(producer)
    coordinator.advance(TIMEOUT_MS)
    assert kind_of(coordinator.end(producer)) is ErrorKind.PRODUCER_FENCED
    coordinator.write_markers()
    assert kind_of(coordinator.end(producer)) is ErrorKind.PRODUCER_FENCED
    assert coordinator.ended(producer, commit=False) == after(producer)
    assert kind_of(coordinator.end(producer, commit=False, version=1)) is ErrorKind.PRODUCER_FENCED


def test_kafka_18464_18401_abort_without_partitions_raises_the_epoch_and_may_be_repeated() -> None:
    coordinator = TransactionCoordinator()
    producer = coordinator.init()
    following = coordinator.ended(producer, commit=False)
    assert following == after(producer)
    assert coordinator.ended(producer, commit=False) == following, "the reply was lost"
    states = [decode_transaction(record.value).state for record in coordinator.log[-2:] if record.value]
    assert states == [TransactionState.PREPARE_ABORT, TransactionState.COMPLETE_ABORT]
    assert coordinator.ended(following, commit=False) == after(producer, 2), "also in CompleteAbort"
    coordinator.add(after(producer, 2))
    assert not coordinator.unanswered


def test_zombie_cannot_touch_the_transaction_of_its_successor() -> None:
    coordinator = TransactionCoordinator()
    zombie = coordinator.init()
    coordinator.add(zombie)
    coordinator.try_init()
    for reply in (coordinator.add(zombie), coordinator.end(zombie), coordinator.end(zombie, commit=False)):
        assert kind_of(reply) is ErrorKind.PRODUCER_FENCED
    coordinator.write_markers()
    successor = coordinator.init()
    coordinator.add(successor)
    for version in (1, 2):
        assert kind_of(coordinator.end(zombie, version=version)) is ErrorKind.PRODUCER_FENCED
        assert kind_of(coordinator.add(zombie, version=version, verify_only=version == 1)) is ErrorKind.PRODUCER_FENCED
    assert kind_of(coordinator.try_init(expected=zombie)) is ErrorKind.PRODUCER_FENCED
    assert coordinator.state() is TransactionState.ONGOING


@pytest.mark.parametrize("commit", [True, False])
def test_kafka_17754_late_end_of_version_2_does_not_end_the_next_transaction(commit: bool) -> None:
    coordinator = TransactionCoordinator()
    producer = coordinator.init()
    coordinator.add(producer)
    following = coordinator.ended(producer)
    coordinator.write_markers()
    coordinator.add(following)
    assert kind_of(coordinator.end(producer, commit=commit)) is ErrorKind.PRODUCER_FENCED
    assert coordinator.state() is TransactionState.ONGOING
    assert coordinator.ended(following) == after(following)


def test_late_end_after_two_phase_commit_is_fenced() -> None:
    """The client prepared, crashed, and its EndTxn arrives when its successor has ended the transaction."""
    coordinator = TransactionCoordinator(two_phase_commit_enable=True)
    producer = coordinator.init(enable_two_phase_commit=True)
    coordinator.add(producer)
    kept = coordinator.init(enable_two_phase_commit=True, keep_prepared=True)
    following = coordinator.ended(kept, commit=False)
    coordinator.write_markers()
    coordinator.add(following)
    for late in (producer, kept):
        assert kind_of(coordinator.end(late)) is ErrorKind.PRODUCER_FENCED


def test_markers_leave_only_in_the_reply_that_waits_for_the_outcome() -> None:
    """The runner holds replies back until the records are committed; `at_once` would skip that."""
    coordinator = TransactionCoordinator()
    producer = coordinator.init()
    coordinator.add(producer)
    command = EndTransaction(transactional_id=ID, producer=producer, commit=True, transaction_version=2)
    outcome = coordinator.machine.handle(command, Token(99), coordinator.now_ms)
    assert outcome.records
    assert not outcome.at_once
    ended, sent = (reply.value for reply in outcome.replies)
    assert isinstance(ended, TransactionEnded)
    assert isinstance(sent, MarkersToSend)


def test_markers_of_a_reply_that_was_lost_are_handed_out_again() -> None:
    """The sender's reply failed, although the outcome is in the log."""
    coordinator = TransactionCoordinator()
    producer = coordinator.init()
    coordinator.add(producer)
    coordinator.ended(producer)
    lost, coordinator.unanswered = coordinator.unanswered, []
    outcomes: list[Outcome] = [
        coordinator.machine.handle(AwaitMarkers(again=again), Token(99), coordinator.now_ms) for again in (False, True)
    ]
    assert outcomes[1].replies[-1].value == MarkersToSend(markers=tuple(lost))
