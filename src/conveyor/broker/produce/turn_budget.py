"""Limits what the event loop inspects in one of its turns, so that many small batches do not keep it from others."""

import asyncio


class TurnBudget:
    """The bytes that may still be inspected in this turn. What is begun within the budget may exceed it."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._left_bytes = max_bytes

    @property
    def is_spent(self) -> bool:
        return self._left_bytes <= 0

    def spend(self, size_bytes: int) -> None:
        """Count bytes until the next turn begins."""
        if self._left_bytes == self._max_bytes:
            asyncio.get_running_loop().call_soon(self._refill)
        self._left_bytes -= size_bytes

    def _refill(self) -> None:
        self._left_bytes = self._max_bytes
