"""Gaps in the sequences of producers that may be closed soon.

A client sends several batches before the first answer. If one is refused for a while, or its leader is replaced, a
later one may arrive before it is sent again. After OUT_OF_ORDER_SEQUENCE a client may begin a new producer epoch
(librdkafka does), in which no leader recognises the batches that it sends again: if one of them was stored after all,
it is there twice. So the leader asks for both again, in order, for PATIENCE_MS. Then the batch counts as lost.
"""

from conveyor.log.producers.producer_state import SequenceGap
from conveyor.records.batch import BatchHeader

PATIENCE_MS = 5_000
"""Clients send a batch again within a second."""

_MAX_PRODUCERS = 1_000
"""For each partition. If more of them have gaps, the earliest one is forgotten, and waits anew."""


class SequenceGaps:
    """The producers of one partition whose next batch is missing."""

    __slots__ = ("_found",)

    def __init__(self) -> None:
        self._found: dict[int, tuple[int, int]] = {}
        """By producer id: the offset that was known of the producer when the gap was found, and that time."""

    def may_close(self, header: BatchHeader, gap: SequenceGap, now_ms: int) -> bool:
        """Return whether the missing batch may still come. header: of the batch after the gap."""
        known_offset, found_ms = self._found.get(header.producer_id, (None, 0))
        if known_offset == gap.known_offset:
            return 0 <= now_ms - found_ms < PATIENCE_MS
        self._found[header.producer_id] = gap.known_offset, now_ms
        if len(self._found) > _MAX_PRODUCERS:
            del self._found[next(iter(self._found))]
        return True
