"""The circuit breaker of one URL: no requests while the target does not work, except now and then one that tries.

    closed      requests are sent          -> open after FAILURES failures without a success between them
    open        none are sent              -> half open when its time has passed
    half open   one request is sent        -> closed if it succeeds; open if it fails, for twice as long

The requests that are under way when it opens do not count any more. A target can also ask for a pause (Retry-After),
during which none are sent in any state. Times are those of a steady clock.
"""

from collections.abc import Callable

from conveyor.kernel.signal import Signal

CLOSED, OPEN, HALF_OPEN = "closed", "open", "half_open"
FAILURES = 5
FIRST_OPEN_MS, LONGEST_OPEN_MS = 1_000, 60_000


class CircuitBreaker:
    """See the module's docstring. Subscriptions with the same URL share one.

    changed: emitted when it lets more requests through than before.
    """

    def __init__(self) -> None:
        self.changed: Signal[None] = Signal()
        self._failures = 0
        self._opened_until_ms: int | None = None
        self._open_ms = FIRST_OPEN_MS
        self._held_until_ms = 0
        self._is_trying = False
        self._period = 0
        """Rises with each change of the state: what was sent in an earlier one does not count."""

    def state(self, now_ms: int) -> str:
        if self._opened_until_ms is None:
            return CLOSED
        return OPEN if now_ms < self._opened_until_ms else HALF_OPEN

    def permits(self, now_ms: int) -> int | None:
        """Return how many requests may begin now; None for no limit."""
        if now_ms < self._held_until_ms:
            return 0
        state = self.state(now_ms)
        if state == CLOSED:
            return None
        return 1 if state == HALF_OPEN and not self._is_trying else 0

    def next_ms(self, now_ms: int) -> int | None:
        """Return when it will let requests through again by itself; None if it does, or waits for an answer."""
        times_ms = [time_ms for time_ms in (self._opened_until_ms or 0, self._held_until_ms) if time_ms > now_ms]
        return max(times_ms, default=None)

    def began(self, now_ms: int) -> int:
        """A request begins. Returns its period."""
        if self.state(now_ms) == HALF_OPEN:
            self._is_trying = True
        return self._period

    def succeeded(self, period: int) -> None:
        """The target has answered a request as one that works."""
        if period != self._period:
            return
        self._failures = 0
        if self._opened_until_ms is not None:
            self._opened_until_ms, self._open_ms = None, FIRST_OPEN_MS
            self._end_period()

    def failed(self, period: int, now_ms: int) -> None:
        """A request has got no answer, or one by which the target does not work."""
        if period != self._period:
            return
        self._failures += 1
        if self._opened_until_ms is not None:
            self._open_ms = min(2 * self._open_ms, LONGEST_OPEN_MS)
        elif self._failures < FAILURES:
            return
        self._opened_until_ms = now_ms + self._open_ms
        self._end_period()

    def ended(self, period: int) -> None:
        """A request has ended, and says nothing about the target."""
        if period == self._period and self._is_trying:
            self._is_trying = False
            self.changed.emit(None)

    def hold(self, until_ms: int) -> None:
        """Send none before this time: the target has asked for that."""
        self._held_until_ms = max(self._held_until_ms, until_ms)

    def _end_period(self) -> None:
        self._period += 1
        self._failures = 0
        self._is_trying = False
        self.changed.emit(None)


class CircuitBreakers:
    """The breakers of a broker, by URL. One is forgotten when no subscription uses it any more."""

    def __init__(self) -> None:
        self._used: dict[str, tuple[CircuitBreaker, int]] = {}

    def use(self, url: str) -> tuple[CircuitBreaker, Callable[[], None]]:
        """Return the breaker of a URL, and the function that ends its use."""
        breaker, count = self._used.get(url, (CircuitBreaker(), 0))
        self._used[url] = breaker, count + 1

        def end() -> None:
            breaker, count = self._used.pop(url)
            if count > 1:
                self._used[url] = breaker, count - 1

        return breaker, end
