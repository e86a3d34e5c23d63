"""Limits the memory of large responses, so that neither large messages nor clients that do not read can exhaust it."""

SMALL_BYTES = 64 << 10
"""A response up to this size is not counted."""


class BudgetFull(Exception):  # noqa: N818 - named for what it is
    """A large response must not be made now."""


class ResponseBudget:
    """Counts the bytes of large responses in the making and in flight, over all connections of a door."""

    def __init__(self, limit_bytes: int = 256 << 20) -> None:
        self._limit_bytes = limit_bytes
        self.used_bytes = 0

    @property
    def is_full(self) -> bool:
        """Whether responses use the whole budget, so that new requests must be refused."""
        return self.used_bytes >= self._limit_bytes
