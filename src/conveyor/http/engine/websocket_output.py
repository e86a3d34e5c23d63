"""What is sent over one WebSocket: it is counted as memory, and bounded, while the client does not read."""

from conveyor.http.engine.wire import WRITE_S, Wire
from conveyor.kernel.response_budget import BudgetFull, ResponseBudget

_MAX_UNSENT_BYTES = 1 << 20
"""Nothing more is sent to a client that does not read, once this many bytes wait for it."""


class Output:
    """The bytes of one connection. deadline: when a client that does not read is disconnected; None if it reads."""

    def __init__(self, wire: Wire, budget: ResponseBudget) -> None:
        self.deadline: float | None = None
        self._wire = wire
        self._budget = budget
        self._unsent_bytes = 0

    def check(self) -> None:
        """Raise BudgetFull if no further message can be sent now."""
        if self._unsent_bytes > _MAX_UNSENT_BYTES or self._budget.is_full:
            raise BudgetFull

    def write(self, data: bytes) -> None:
        self._wire.write(data)
        if self.deadline is not None:
            self._count(len(data))

    def is_late(self, now: float) -> bool:
        """Return whether the client has not read for too long."""
        return self.deadline is not None and now >= self.deadline

    def pause(self) -> None:
        """The client does not read."""
        self.deadline = self._wire.time() + WRITE_S

    def resume(self) -> None:
        """Nothing waits for the client any more."""
        self.deadline = None
        self._count(-self._unsent_bytes)

    def _count(self, change_bytes: int) -> None:
        self._unsent_bytes += change_bytes
        self._budget.used_bytes += change_bytes
