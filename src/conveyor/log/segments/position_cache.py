"""The positions of the offsets at which readers continue, so that the next read needs no lookup in an index."""

from collections import OrderedDict
from contextlib import suppress

from conveyor.log.segments.lookup import position_of
from conveyor.log.segments.segment import Segment

_MAX_POSITIONS = 64


class PositionCache:
    """Positions by offset, each in the segment that held the offset. Any thread may use it: a position that a thread
    has found in a segment which the log has replaced meanwhile is not that of the offset any more.
    """

    def __init__(self) -> None:
        self._places: OrderedDict[int, tuple[Segment, int]] = OrderedDict()

    def find(self, segment: Segment, offset: int) -> int:
        """Return the position of an offset; see `lookup.position_of`. Raises StorageFailure."""
        cached = self._places.get(offset)
        if cached is not None and cached[0] is segment:
            return cached[1]
        position = position_of(segment, offset)
        self.remember(segment, offset, position)
        return position

    def remember(self, segment: Segment, offset: int, position: int) -> None:
        """Cache the position of an offset at which a reader continues, or which will be the high watermark."""
        self._places[offset] = segment, position
        if len(self._places) > _MAX_POSITIONS:
            with suppress(KeyError):  # Another thread may clear the cache.
                self._places.popitem(last=False)

    def clear(self) -> None:
        """Let go of segments that the log does not have any more."""
        self._places.clear()
