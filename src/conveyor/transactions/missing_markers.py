"""The markers that prepared transactions still lack, and the sender that waits for them. Soft state of the coordinator.

    prepare -> (sender's reply, once the outcome is committed) -> answers -> complete

A marker must not leave before the outcome is committed: a lost outcome could be decided the other way later. Therefore
markers leave only in a reply of the state machine, which its runner holds back until then.
"""

from collections.abc import Iterable
from itertools import count

import msgspec

from conveyor.kernel.decision import Decision
from conveyor.kernel.ids import TopicPartition
from conveyor.kernel.state_machine import Token
from conveyor.transactions.transaction_commands import AwaitMarkers, MarkerAnswer, RecordMarkers
from conveyor.transactions.transaction_replies import MarkersToSend, TransactionMarkers
from conveyor.transactions.transaction_value import TransactionValue, identity_in_log


class _Missing(msgspec.Struct):
    """The partitions whose leaders have not answered. is_fenced: another coordinator is at work."""

    serial: int
    value: TransactionValue
    partitions: set[TopicPartition]
    is_fenced: bool = False


class MissingMarkers:
    """See the module's docstring. coordinator_epoch: see `TransactionMarkers`."""

    def __init__(self, coordinator_epoch: int) -> None:
        self._coordinator_epoch = coordinator_epoch
        self._serials = count(1)
        self._missing: dict[str, _Missing] = {}
        self._unsent: dict[str, None] = {}
        self._sender: Token | None = None

    def prepared(self, transactional_id: str, value: TransactionValue) -> None:
        """A transaction was prepared: its partitions lack their markers. `hand_out` must follow."""
        self._missing[transactional_id] = _Missing(next(self._serials), value, set(value.partitions))
        self._unsent[transactional_id] = None

    def wait(self, command: AwaitMarkers, token: Token, decision: Decision) -> None:
        """Park the sender, and release a sender that asked before."""
        if self._sender is not None:
            decision.reply(self._sender, MarkersToSend(markers=()))
        self._sender = token
        if command.again:
            self._unsent = dict.fromkeys(self._missing)
        self.hand_out(decision)

    def hand_out(self, decision: Decision) -> None:
        """Answer the waiting sender, if there is one, with the markers that it has not received yet."""
        if self._sender is None or not self._unsent:
            return
        unsent, self._unsent = self._unsent, {}
        markers = tuple(
            self._markers(transactional_id) for transactional_id in unsent if self._is_due(transactional_id)
        )
        if markers:
            decision.reply(self._sender, MarkersToSend(markers=markers))
            self._sender = None

    def record(self, command: RecordMarkers) -> bool:
        """Record answers of partitions. Returns whether the transaction is complete now."""
        missing = self._missing.get(command.transactional_id)
        if missing is None or missing.serial != command.serial:
            return False
        missing.is_fenced |= any(answer is MarkerAnswer.NEWER_COORDINATOR for _, answer in command.answers)
        missing.partitions -= _ended(command.answers)
        if missing.partitions or missing.is_fenced:
            return False
        self.forget(command.transactional_id)
        return True

    def forget(self, transactional_id: str) -> None:
        self._missing.pop(transactional_id, None)
        self._unsent.pop(transactional_id, None)

    def _is_due(self, transactional_id: str) -> bool:
        return not self._missing[transactional_id].is_fenced

    def _markers(self, transactional_id: str) -> TransactionMarkers:
        missing = self._missing[transactional_id]
        return TransactionMarkers(
            transactional_id=transactional_id,
            serial=missing.serial,
            producer=identity_in_log(missing.value),
            commit=missing.value.state.is_commit,
            partitions=tuple(sorted(missing.partitions)),
            transaction_version=missing.value.transaction_version,
            coordinator_epoch=self._coordinator_epoch,
        )


def _ended(answers: Iterable[tuple[TopicPartition, MarkerAnswer]]) -> set[TopicPartition]:
    return {partition for partition, answer in answers if answer is not MarkerAnswer.NEWER_COORDINATOR}
