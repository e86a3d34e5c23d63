"""The leases that acknowledged messages, for one queue with exactly-once delivery.

A client that lost the response to an ack repeats the ack, and the repetition succeeds. All queues of a broker share one
budget. When an ack has been dropped from memory, its repetition is refused, although the message stays settled.
"""

from collections import OrderedDict

from conveyor.queues.delivery.memory_budget import MemoryBudget


class RememberedAcks:
    """The acks of one queue; see the module's docstring. budget: counts acks, about 170 bytes each."""

    def __init__(self, budget: MemoryBudget) -> None:
        self._budget = budget
        self._lease_numbers: OrderedDict[int, int] = OrderedDict()

    def add(self, offset: int, lease_number: int) -> None:
        """Store the lease that acknowledged a message."""
        is_new = self._lease_numbers.pop(offset, None) is None
        self._lease_numbers[offset] = lease_number
        if is_new:
            self._budget.add(self, 1)

    def lease_number(self, offset: int) -> int | None:
        """Return the lease that acknowledged a message; None if it is not remembered."""
        return self._lease_numbers.get(offset)

    def clear(self) -> None:
        self._lease_numbers.clear()
        self._budget.forget(self)

    def shed(self) -> int:
        """Drop the oldest ack."""
        self._lease_numbers.popitem(last=False)
        return 1
