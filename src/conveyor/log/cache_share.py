"""The memory limit of each partition's read cache: an equal share of one limit for the whole broker."""

from typing import Protocol


class Cache(Protocol):
    """A cache that keeps to its share when it is used and when `trim` is called."""

    def trim(self) -> None: ...


class CacheShare:
    """The shared limit. limit_bytes: for all caches together.

    An idle cache does not notice that its share has shrunk. All caches are therefore trimmed whenever their number has
    doubled, so that together they never exceed twice the limit, apart from what a cache never discards.
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
            for member in self._caches:
                member.trim()

    def leave(self, cache: Cache) -> None:
        self._caches.pop(cache, None)
        self._count_at_trim = min(self._count_at_trim, max(1, len(self._caches)))
