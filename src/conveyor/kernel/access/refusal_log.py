"""Limits the log lines about strangers, who may connect as often as they like."""

import logging

_INTERVAL_S = 60.0


class RefusalLog:
    """count: the refusals so far."""

    def __init__(self) -> None:
        self.count = 0
        self._quiet_until_s = float("-inf")

    def level(self, now_s: float) -> int:
        """Count a refusal, and return the level at which to log it: WARNING for the first one, and then for one in a
        minute; DEBUG for the others.
        """
        self.count += 1
        if now_s < self._quiet_until_s:
            return logging.DEBUG
        self._quiet_until_s = now_s + _INTERVAL_S
        return logging.WARNING
