"""The segments of one log in their order, and reads from them."""

from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress

from conveyor.kernel.errors import StorageFailure
from conveyor.kernel.ports import FileSlice
from conveyor.log.segments import lookup
from conveyor.log.segments.segment import Segment

_MAX_POSITIONS = 64


class LogSegments:
    """All segments, of which only the last one is active. Any thread may read.

    The positions of the offsets at which readers continue are cached, so that the next read needs no lookup in an
    index. Each has the segment that held the offset: a position that a thread has found in a segment which the log has
    replaced meanwhile is not that of the offset any more.
    """

    def __init__(self, segments: list[Segment]) -> None:
        self.all, self.active = segments, segments[-1]
        self._places: OrderedDict[int, tuple[Segment, int]] = OrderedDict()

    @property
    def size_bytes(self) -> int:
        return sum(segment.size for segment in self.all)

    def add(self, segment: Segment) -> None:
        """Continue with a new segment, which is empty."""
        self.all.append(segment)
        self.active = segment
        self.remember(segment, segment.base_offset, 0)

    def replace(self, segments: list[Segment]) -> None:
        """Use other segments. Readers may still use the previous list."""
        self.all, self.active = segments, segments[-1]
        self._places.clear()

    def read(
        self,
        offset: int,
        max_bytes: int,
        limit_offset: int,
        *,
        at_least_one: bool,
        failed: Callable[[StorageFailure], object] | None = None,
    ) -> FileSlice | None:
        """Return the stored bytes from the batch that holds `offset` on, which is below the limit; see `Log.read`."""
        segment = lookup.segment_for(self.all, offset)
        start, size = self._position_of(segment, offset), segment.size
        if start >= size and segment is not self.active:
            segment, start = lookup.first_with_records(self.all, segment), 0
            if segment.base_offset >= limit_offset:
                return None
            size = segment.size
        limit = size if limit_offset >= segment.next_offset else self._position_of(segment, limit_offset)
        end = lookup.cut(segment, start, limit, max_bytes, at_least_one=at_least_one)
        if end <= start:
            return None
        if end < limit:
            self.remember(segment, segment.files.header_at(end).base_offset, end)
        return FileSlice(segment.file, start, end - start, failed)

    def remember(self, segment: Segment, offset: int, position: int) -> None:
        """Cache the position of an offset at which a reader continues, or which will be the high watermark."""
        self._places[offset] = segment, position
        if len(self._places) > _MAX_POSITIONS:
            with suppress(KeyError):  # Another thread may clear the cache.
                self._places.popitem(last=False)

    def forget_positions(self) -> None:
        """Clear the cache: other batches will take the offsets."""
        self._places.clear()

    def close(self) -> None:
        """Close all files. Reads that have begun can finish."""
        for segment in self.all:
            segment.close()

    def _position_of(self, segment: Segment, offset: int) -> int:
        cached = self._places.get(offset)
        if cached is not None and cached[0] is segment:
            return cached[1]
        position = lookup.position_of(segment, offset)
        self.remember(segment, offset, position)
        return position
