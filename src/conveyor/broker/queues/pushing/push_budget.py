"""The requests and the bytes of messages that a broker sends to push targets at a time, shared by its subscriptions.

A subscription that finds no room waits. When a request ends, the one that has waited longest is woken, and wakes the
next one when it has taken what it needs.
"""

from collections import deque
from collections.abc import Callable

from conveyor.broker.services import Services
from conveyor.kernel.signal import Signal

Wake = Callable[[], None]


class PushBudget:
    """See the module's docstring. idle: emitted when the last request that was being made has ended."""

    def __init__(self, services: Services) -> None:
        self.idle: Signal[None] = Signal()
        self._services = services
        self._open_count = self._open_bytes = 0
        self._waiting: deque[Wake] = deque()

    @property
    def open_count(self) -> int:
        """Requests that are being made."""
        return self._open_count

    def free_count(self) -> int:
        """Return how many requests may begin now."""
        return self._services.settings.push.max_connections - self._open_count if self.free_bytes() > 0 else 0

    def free_bytes(self) -> int:
        """Return how many bytes the messages of further requests may have."""
        return self._services.settings.push.max_in_flight_bytes - self._open_bytes

    def begin(self, weight_bytes: int) -> None:
        """A request begins. Its messages may exceed the limit if nothing else can be made smaller."""
        self._open_count += 1
        self._open_bytes += weight_bytes

    def end(self, weight_bytes: int) -> None:
        """A request has ended."""
        self._open_count -= 1
        self._open_bytes -= weight_bytes
        if not self._open_count:
            self.idle.emit(None)
        self.wake_next()

    def wake_next(self) -> None:
        """Wake the one that has waited longest, if there is room. It calls this again when it has looked."""
        if self._waiting and self.free_count() > 0:
            self._waiting.popleft()()

    def wait(self, wake: Wake) -> None:
        """Call this function when there may be room."""
        if wake not in self._waiting:
            self._waiting.append(wake)
