"""The deadlines of transactional ids: when transactions time out, and when unused ids are forgotten.

A transaction's timeout is a duration, so its end moves with the wall clock. The age of an unused id follows the stored
wall-clock time.
"""

from collections.abc import Iterator, Mapping

from conveyor.kernel.deadlines import Deadlines
from conveyor.transactions.transaction_value import NO_TIMEOUT_MS, TransactionState, TransactionValue


class TransactionTimers:
    """The owner reports each new value with `changed`, and with `put_back` each id that `pop_due` returned although it
    was not due."""

    def __init__(self, id_expiration_ms: int) -> None:
        self._id_expiration_ms = id_expiration_ms
        self._deadlines: Deadlines[str] = Deadlines()
        self._timeouts: dict[str, int] = {}

    def loaded(self, values: Mapping[str, TransactionValue], now_ms: int) -> None:
        """Set the deadlines after a replay. Transactions have at most their whole timeout left."""
        for transactional_id, value in values.items():
            if _times_out(value):
                self._timeouts[transactional_id] = min(value.start_ms, now_ms) + value.timeout_ms
            self.put_back(transactional_id, value)

    def changed(self, transactional_id: str, value: TransactionValue | None) -> None:
        if value is None or not _times_out(value):
            self._timeouts.pop(transactional_id, None)
        else:
            self._timeouts.setdefault(transactional_id, value.start_ms + value.timeout_ms)
        if value is not None:
            self.put_back(transactional_id, value)

    def clock_set(self, by_ms: int, values: Mapping[str, TransactionValue]) -> None:
        """See `StateMachine.clock_set`."""
        self._timeouts = {transactional_id: end + by_ms for transactional_id, end in self._timeouts.items()}
        self._deadlines = Deadlines()
        for transactional_id, value in values.items():
            self.put_back(transactional_id, value)

    def next_deadline_ms(self) -> int | None:
        return self._deadlines.next_ms()

    def pop_due(self, now_ms: int) -> Iterator[str]:
        """Remove and yield the ids whose deadline may have passed; see `Deadlines`."""
        return self._deadlines.pop_due(now_ms)

    def is_due(self, transactional_id: str, value: TransactionValue, now_ms: int) -> bool:
        deadline_ms = self._deadline_ms(transactional_id, value)
        return deadline_ms is not None and deadline_ms <= now_ms

    def put_back(self, transactional_id: str, value: TransactionValue) -> None:
        deadline_ms = self._deadline_ms(transactional_id, value)
        if deadline_ms is not None:
            self._deadlines.put(transactional_id, deadline_ms)

    def _deadline_ms(self, transactional_id: str, value: TransactionValue) -> int | None:
        if value.state is TransactionState.ONGOING:
            return self._timeouts.get(transactional_id)
        if value.state.is_prepared:  # Without partitions, no answer to a marker completes it.
            return None if value.partitions else value.last_update_ms
        return value.last_update_ms + self._id_expiration_ms


def _times_out(value: TransactionValue) -> bool:
    return value.state is TransactionState.ONGOING and value.timeout_ms != NO_TIMEOUT_MS
