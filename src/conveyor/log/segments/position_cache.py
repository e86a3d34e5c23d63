"""The positions of the offsets at which readers continue, so that the next read needs no lookup in an index."""

from collections import OrderedDict

from conveyor.log.segments.lookup import position_of
from conveyor.log.segments.segment import Segment

_MAX_POSITIONS = 64


class PositionCache:
    """Positions by offset, in the segments that hold these offsets. Any change of the segments' files clears it."""

    def __init__(self) -> None:
        self._positions: OrderedDict[int, int] = OrderedDict()

    def find(self, segment: Segment, offset: int) -> int:
        """Return the position of an offset; see `lookup.position_of`. Raises StorageFailure."""
        cached = self._positions.get(offset)
        if cached is not None and offset >= segment.base_offset:
            return cached
        position = position_of(segment, offset)
        self.remember(offset, position)
        return position

    def remember(self, offset: int, position: int) -> None:
        """Cache the position of an offset at which a reader continues, or which will be the high watermark."""
        self._positions[offset] = position
        if len(self._positions) > _MAX_POSITIONS:
            self._positions.popitem(last=False)

    def clear(self) -> None:
        self._positions.clear()
