"""The result of one search for messages to lease, and the search's budget for one loop tick."""

from math import inf
from uuid import UUID

from conveyor.kernel.state_machine import LogRecord
from conveyor.queues.queue_commands import LeasedMessage
from conveyor.queues.subscription.filter_expression import MAX_COST_NS
from conveyor.queues.subscription.filters import Filter
from conveyor.queues.subscription.queue_records import Kind, settlement_records
from conveyor.records.message import Message


class Findings:
    """leased: messages to deliver, of `bytes` in total. settled, expired: offsets to settle. records: dead-letter
    records. max_bytes, at_least_one: see `LeaseMessages`.
    """

    __slots__ = (
        "_at_least_one", "_filter", "_filter_began_ns", "_is_full", "_max_bytes", "bytes", "expired", "leased",
        "next_bytes", "records", "settled",
    )  # fmt: skip

    def __init__(self, message_filter: Filter | None, max_bytes: float = inf, *, at_least_one: bool = True) -> None:
        self.leased: list[LeasedMessage] = []
        self.settled: list[int] = []
        self.expired: list[int] = []
        self.records: list[LogRecord] = []
        self.bytes = self.next_bytes = 0
        self._max_bytes = max_bytes
        self._at_least_one = at_least_one
        self._is_full = False
        self._filter = message_filter
        self._filter_began_ns = 0.0 if message_filter is None else message_filter.spent_ns

    def has_budget(self) -> bool:
        """Return whether the reply has room for more messages and the filter has not used up its time for one loop
        tick.
        """
        return not self._is_full and (self._filter is None or self._has_time(self._filter))

    def has_room(self, message: Message | None) -> bool:
        """Return whether a message, of `next_bytes`, fits into the reply, and the filter has time left. If the message
        does not fit, the reply takes no further one.
        """
        if self._filter is not None and not self._has_time(self._filter):
            return False
        self.next_bytes = 0 if message is None else message.weight_bytes
        is_too_much = self.bytes + self.next_bytes > self._max_bytes
        self._is_full = is_too_much and (bool(self.leased) or not self._at_least_one)
        return not self._is_full

    def _has_time(self, message_filter: Filter) -> bool:
        return message_filter.spent_ns - self._filter_began_ns < MAX_COST_NS

    def filter_ns(self) -> float:
        """Return the estimated time of the filter."""
        return 0.0 if self._filter is None else self._filter.spent_ns - self._filter_began_ns

    def all_records(self, subscription: UUID) -> list[LogRecord]:
        """Return the records of everything that was found."""
        return [
            *settlement_records(subscription, Kind.SETTLED, self.settled),
            *settlement_records(subscription, Kind.EXPIRED, self.expired),
            *self.records,
        ]

    def __bool__(self) -> bool:
        return bool(self.leased or self.settled or self.expired or self.records)
