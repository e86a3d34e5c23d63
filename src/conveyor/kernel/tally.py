"""Counts by key that keep nothing for a key whose count is zero."""

from collections import Counter
from typing import TypeVar

Key = TypeVar("Key")


class Tally(Counter[Key]):
    """See the module's docstring. The keys come from clients, so those that are gone must take no memory."""

    def remove(self, key: Key) -> None:
        """Count one less. The key must have been counted."""
        self[key] -= 1
        if not self[key]:
            del self[key]
