"""Which lease acknowledged which message, for one queue with exactly-once delivery.

A client that has lost the answer to an ack repeats it, and is told that it was right. All queues of a broker share one
budget; an ack that is forgotten is refused when it is repeated, though its message stays settled.
"""

from collections import OrderedDict

from conveyor.queues.delivery.memory_budget import MemoryBudget


class RememberedAcks:
    """See the module's docstring. budget: counts acks, about 170 bytes each."""

    def __init__(self, budget: MemoryBudget) -> None:
        self._budget = budget
        self._lease_numbers: OrderedDict[int, int] = OrderedDict()

    def add(self, offset: int, lease_number: int) -> None:
        """The message at an offset was acknowledged by this lease."""
        is_new = self._lease_numbers.pop(offset, None) is None
        self._lease_numbers[offset] = lease_number
        if is_new:
            self._budget.add(self, 1)

    def lease_number(self, offset: int) -> int | None:
        """The lease that acknowledged a message; None if it is not known."""
        return self._lease_numbers.get(offset)

    def clear(self) -> None:
        self._lease_numbers.clear()
        self._budget.forget(self)

    def shed(self) -> int:
        """Forget the oldest ack."""
        self._lease_numbers.popitem(last=False)
        return 1
