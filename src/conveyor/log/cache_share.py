"""How much each partition may keep in memory of what it has read: an equal share of one limit for the whole broker."""

from typing import Protocol


class Cache(Protocol):
    """Keeps no more than its share once it is used, or asked to."""

    def trim(self) -> None: ...


class CacheShare:
    """See the module's docstring. limit_bytes: of all caches together.

    Caches that are not used meanwhile are asked to trim whenever their number has doubled, so that all together keep no
    more than twice the limit, and what a cache never gives up.
    """

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._caches: dict[Cache, None] = {}
        self._count_at_trim = 1

    @property
    def bytes(self) -> int:
        """The share of each cache."""
        return self._limit_bytes // max(1, len(self._caches))

    def join(self, cache: Cache) -> None:
        self._caches[cache] = None
        if len(self._caches) >= 2 * self._count_at_trim:
            self._count_at_trim = len(self._caches)
            for each in self._caches:
                each.trim()

    def leave(self, cache: Cache) -> None:
        self._caches.pop(cache, None)
        self._count_at_trim = min(self._count_at_trim, max(1, len(self._caches)))
