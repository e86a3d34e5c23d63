"""What a partition's queue tells the partition's retention."""

from typing import Protocol


class QueueView(Protocol):
    """The limits that a partition's queue sets for its retention."""

    def retain_from_offset(self) -> int | None:
        """The first message that is not due yet. Retention keeps it and all later records."""
        ...

    def settled_offset(self) -> int:
        """Every subscription has settled all messages below this offset."""
        ...
