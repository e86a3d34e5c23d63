"""The number of requests that a target gets at a time: found out from its answers, up to a maximum.

It begins with one. Until the first sign of overload each answer in time raises it by one, so that it doubles with each
round; from then on a whole round of answers raises it by one. A sign of overload (429, 503, another failure, no answer
in time) halves it. The requests that were under way then are one sign together. Source: AIMD, as in RFC 5681.
"""


class ConcurrencyLimit:
    """See the module's docstring. maximum: the policy's; it may change."""

    def __init__(self, maximum: int) -> None:
        self.maximum = maximum
        self.open_count = 0
        """Requests under way."""
        self._limit = 1.0
        self._is_doubling = True
        self._number = 0
        self._halved_at = 0
        """The number of the request that began last before the limit was halved."""

    @property
    def limit(self) -> int:
        """The number of requests at a time, at least 1."""
        return max(1, min(int(self._limit), self.maximum))

    @property
    def free_count(self) -> int:
        """The number of requests that may begin now."""
        return max(0, self.limit - self.open_count)

    def began(self) -> int:
        """A request begins. Returns its number."""
        self.open_count += 1
        self._number += 1
        return self._number

    def succeeded(self) -> None:
        """A request was answered in time."""
        if self.open_count >= self.limit:  # Otherwise the answers say nothing about more requests.
            self._limit = min(self._limit + (1 if self._is_doubling else 1 / self._limit), float(self.maximum))
        self.open_count -= 1

    def overloaded(self, number: int) -> None:
        """A request has met a sign of overload."""
        self.open_count -= 1
        if number > self._halved_at:
            self._limit = max(1.0, min(self._limit, float(self.maximum)) / 2)
            self._is_doubling, self._halved_at = False, self._number

    def ended(self) -> None:
        """A request has ended, and says nothing about the load."""
        self.open_count -= 1
