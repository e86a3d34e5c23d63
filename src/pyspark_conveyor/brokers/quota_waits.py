"""The waits of an HTTP request over a quota of its user. The broker has not executed it, and says when to repeat it."""

_MOST_S = 60
"""Of all waits together."""


class QuotaWaits:
    """See the module's docstring."""

    def __init__(self) -> None:
        self._left_s = _MOST_S

    def next_s(self, retry_after: str) -> int | None:
        """Return the seconds to wait before the request is repeated, by its Retry-After; None if it is given up."""
        wait_s = max(1, int(retry_after)) if retry_after.isdecimal() else None
        if wait_s is None or wait_s > self._left_s:
            return None
        self._left_s -= wait_s
        return wait_s
