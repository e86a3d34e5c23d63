"""The simulation of a cluster finds bugs of transactions: each one that is planted here breaks an invariant.

Other traps of transactions have tests of their own, because this simulation hardly ever meets them: exhausted epochs,
failover after the producer id has changed, commits after a timeout, aborts without records, markers that leave before
their outcome is safe (`tests/unit/transactions`); the expiry of producers, damaged indexes and snapshots, markers that
are cut off (`tests/properties/test_transaction_log_model.py`); batches that wait for the
coordinator while the transaction ends (`tests/unit/broker/markers`).
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from conveyor.broker.markers import marker_sender
from conveyor.broker.produce.verification import TransactionalBatch, Verification
from conveyor.groups.committed_offsets import CommittedOffsets
from conveyor.groups.committers import Committers
from conveyor.kernel.errors import ErrorKind, RequestError
from conveyor.kernel.ids import ProducerIdentity
from conveyor.kernel.state_machine import Reply
from conveyor.log.producers import producer_state
from conveyor.log.producers.producer_state import ProducerState
from conveyor.records.transaction_marker import TransactionMarker
from conveyor.replication import reads
from conveyor.replication.machine_runner import MachineRunner
from conveyor.transactions import transitions
from conveyor.transactions.missing_markers import MissingMarkers
from conveyor.transactions.transaction_commands import MarkerAnswer
from conveyor.transactions.transaction_replies import TransactionEnded
from conveyor.transactions.transaction_timers import TransactionTimers
from conveyor.transactions.transaction_value import TransactionValue, client_identity
from simulation.story_rules import rules_of
from simulation.story_schedule import StorySchedule
from tests.simulation.rare_stories import with_cut_off_ends
from tests.simulation.seeds import Found, Plant

SEEDS = 300
WRONG_READ = {"NoAbortedRead", "NoIntermediateRead", "NoZombieWrite"}
TORN = {"CommittedIsWhole", "NoTornTransaction", "NothingTakenBack", "NoOffsetSkipped"} | WRONG_READ
STUCK = {"StableOffsetRises"}
HANGING = {"NoHangingTransaction"}


def forget_aborted_transactions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Readers do not hear which transactions were aborted."""
    monkeypatch.setattr(reads, "aborted_transactions", lambda *_: [])


def read_to_the_high_watermark(monkeypatch: pytest.MonkeyPatch) -> None:
    """Readers of committed records get records of open transactions."""
    monkeypatch.setattr(reads, "last_stable_offset", lambda partition: partition.term.high_watermark)


def keep_the_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither InitProducerId nor the end of a transaction raises the epoch."""
    monkeypatch.setattr(transitions, "_next_identity", lambda identity, _: identity)


def end_whatever_is_open(monkeypatch: pytest.MonkeyPatch) -> None:
    """A late EndTxn ends the next transaction (KAFKA-17754)."""

    def end(value: TransactionValue, producer: ProducerIdentity, *rest: Any, **options: Any) -> TransactionValue:
        is_late = producer.producer_id == client_identity(value).producer_id
        return plain_end(value, client_identity(value) if is_late else producer, *rest, **options)

    plain_end = transitions.end
    monkeypatch.setattr(transitions, "end", end)


def accept_batches_without_asking(monkeypatch: pytest.MonkeyPatch) -> None:
    """A late batch begins a transaction that nobody ends (KAFKA-12671, KAFKA-14402)."""
    monkeypatch.setattr(TransactionalBatch, "needs_verification", lambda _: False)
    monkeypatch.setattr(TransactionalBatch, "recheck", lambda _: None)


def accept_old_markers(monkeypatch: pytest.MonkeyPatch) -> None:
    """A late marker ends the next transaction (KAFKA-19446)."""

    def check_marker(self: ProducerState, marker: TransactionMarker, _: int) -> bool:
        return marker.producer_id in self.transactions.opened or self.remembered(marker.producer_id).epoch < 0

    monkeypatch.setattr(ProducerState, "check_marker", check_marker)


def refuse_repeated_markers(monkeypatch: pytest.MonkeyPatch) -> None:
    """A marker whose reply was lost is refused when it is sent again (KAFKA-19999)."""

    def check_marker(self: ProducerState, marker: TransactionMarker, version: int) -> bool:
        if not plain_check_marker(self, marker, version):
            raise RequestError(ErrorKind.INVALID_TXN_STATE, "no transaction is open")
        return True

    plain_check_marker = ProducerState.check_marker
    monkeypatch.setattr(ProducerState, "check_marker", check_marker)


def answer_before_the_outcome_is_safe(monkeypatch: pytest.MonkeyPatch) -> None:
    """EndTxn is answered when the outcome is written, not when it is committed."""

    def reply_when_safe(self: MachineRunner[Any], replies: tuple[Reply, ...]) -> None:
        early = tuple(reply for reply in replies if isinstance(reply.value, TransactionEnded))
        self._reply(early, None)
        if len(early) < len(replies):
            plain_reply(self, tuple(reply for reply in replies if not isinstance(reply.value, TransactionEnded)))

    plain_reply = MachineRunner._reply_when_safe
    monkeypatch.setattr(MachineRunner, "_reply_when_safe", reply_when_safe)


def send_each_marker_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A marker that a leader refuses, or that is lost, counts as written."""
    monkeypatch.setattr(marker_sender, "is_final", lambda _: True)
    monkeypatch.setattr(marker_sender, "_answer", lambda _: MarkerAnswer.WRITTEN)


def forget_prepared_transactions(monkeypatch: pytest.MonkeyPatch) -> None:
    """A coordinator that takes over does not send the markers that are missing."""

    def prepared(self: MissingMarkers, transactional_id: str, value: TransactionValue) -> None:
        if self._sender is not None:
            plain_prepared(self, transactional_id, value)

    plain_prepared = MissingMarkers.prepared
    monkeypatch.setattr(MissingMarkers, "prepared", prepared)


def forget_timeouts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A coordinator that takes over does not abort the transactions of clients that are gone."""
    monkeypatch.setattr(TransactionTimers, "loaded", lambda *_: None)


def forget_open_transactions(monkeypatch: pytest.MonkeyPatch) -> None:
    """A replica that has lost batches at its end restores the producers, but not their transactions."""

    def restore(self: ProducerState, entries: producer_state.ProducerEntries) -> None:
        plain_restore(self, entries._replace(opened=(), undecided=()))

    plain_restore = ProducerState.restore
    monkeypatch.setattr(ProducerState, "restore", restore)


def keep_positions_of_aborted_transactions(monkeypatch: pytest.MonkeyPatch) -> None:
    """An abort commits the offsets of its transaction."""

    def resolve(self: CommittedOffsets, producer: ProducerIdentity, _: bool) -> set[str]:
        return plain_resolve(self, producer, True)

    plain_resolve = CommittedOffsets.resolve
    monkeypatch.setattr(CommittedOffsets, "resolve", resolve)


def forget_positions_of_committed_transactions(monkeypatch: pytest.MonkeyPatch) -> None:
    """A commit drops the offsets of its transaction."""

    def resolve(self: CommittedOffsets, producer: ProducerIdentity, _: bool) -> set[str]:
        return plain_resolve(self, producer, False)

    plain_resolve = CommittedOffsets.resolve
    monkeypatch.setattr(CommittedOffsets, "resolve", resolve)


def never_void_verifications(monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch is appended by an answer of the coordinator that the end of the transaction has overtaken (KIP-890)."""
    monkeypatch.setattr(Verification, "is_valid", True)


def believe_late_commits(monkeypatch: pytest.MonkeyPatch) -> None:
    """A commit over an older connection replaces the position of the next transaction."""
    monkeypatch.setattr(Committers, "heard", lambda *_: None)


PLANTED: dict[Plant, Found] = {
    forget_aborted_transactions: Found(3, TORN),
    read_to_the_high_watermark: Found(3, TORN),
    keep_the_epoch: Found(3, TORN | STUCK | {"SequencesHold"}),
    end_whatever_is_open: Found(55, TORN | {"SequencesHold"}),
    accept_batches_without_asking: Found(3, TORN | STUCK | HANGING),
    accept_old_markers: Found(274, TORN),
    refuse_repeated_markers: Found(37, STUCK),
    answer_before_the_outcome_is_safe: Found(0, TORN | {"PositionsFollowOutcomes"}, with_cut_off_ends),
    send_each_marker_once: Found(33, TORN | STUCK | HANGING),
    forget_prepared_transactions: Found(3, STUCK),
    forget_timeouts: Found(116, STUCK),
    forget_open_transactions: Found(68, TORN | STUCK | {"ProducersMatchLog"}),
    keep_positions_of_aborted_transactions: Found(77, {"PositionsFollowOutcomes"}),
    forget_positions_of_committed_transactions: Found(78, {"PositionsFollowOutcomes"}),
    never_void_verifications: Found(41, STUCK | HANGING),
    believe_late_commits: Found(332, {"PositionsFollowOutcomes"}),
}


@pytest.mark.parametrize("plant", PLANTED, ids=lambda plant: plant.__name__)
def test_a_planted_bug_of_transactions_is_found(plant: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)
    found = PLANTED[plant]
    found._replace(make=partial(_with_transactions, found.make)).check(SEEDS)


def _with_transactions(make: Callable[[int], StorySchedule | None], seed: int) -> StorySchedule | None:
    """Return the schedule of a seed, if it has transactions."""
    schedule = make(seed)
    return schedule if schedule is not None and rules_of(schedule).moves else None
