"""A subscription's search for messages to lease: what it has found, and whether it may go on in this turn."""

from math import inf

from conveyor.kernel.state_machine import LogRecord
from conveyor.queues.queue_commands import LeasedMessage
from conveyor.queues.subscription.filter_expression import MAX_COST_NS
from conveyor.queues.subscription.filters import Filter


class Findings:
    """leased: handed out, `bytes` large together. settled, expired: offsets to settle. records: of dead letters."""

    __slots__ = ("_filter", "_filter_began_ns", "bytes", "expired", "leased", "records", "settled")

    def __init__(self, searched_by: Filter | None) -> None:
        self.leased: list[LeasedMessage] = []
        self.settled: list[int] = []
        self.expired: list[int] = []
        self.records: list[LogRecord] = []
        self.bytes = 0
        self._filter = searched_by
        self._filter_began_ns = 0.0 if searched_by is None else searched_by.spent_ns

    def goes_on(self, max_bytes: float = inf) -> bool:
        """Whether there is room for more messages, and the filter has not cost too much for one turn of the loop."""
        is_slow = self._filter is not None and self._filter.spent_ns - self._filter_began_ns >= MAX_COST_NS
        return self.bytes < max_bytes and not is_slow

    def __bool__(self) -> bool:
        return bool(self.leased or self.settled or self.expired or self.records)
