"""Limits the memory of large responses, so that neither large messages nor clients that do not read can exhaust it."""

SMALL_BYTES = 64 << 10
_MAX_BYTES = 256 << 20


class BudgetFull(Exception):  # noqa: N818 - named for what it is
    """A large response must not be made now."""


class ResponseBudget:
    """Counts the bytes of large responses in the making and in flight, over all connections."""

    def __init__(self) -> None:
        self.used_bytes = 0

    @property
    def is_full(self) -> bool:
        """Whether responses use the whole budget, so that new requests must be refused."""
        return self.used_bytes >= _MAX_BYTES
