"""Derives from an inbox's notes, read from its start, which of its records are already in the topic.

The forwarder is the only writer of the topic's partition, so the log end offset is decisive: record n of an intent is
in the topic if the log extends beyond `topic_offset + n`. If a crash prevented a noted intent, the next intent undoes
it, because that one begins where the topic really ended.
"""

from array import array

from conveyor.delay.forwarding_records import Cancelled, Intent, Note
from conveyor.kernel.range_set import RangeSet

_COUNT_BITS = 32
_COUNT_MASK = (1 << _COUNT_BITS) - 1


class _CarriedOut:
    """The part of an intent that may have been executed; ranges as start, count, start, count..."""

    __slots__ = ("end_offset", "is_early", "ranges", "topic_offset")

    def __init__(self, intent: Intent) -> None:
        self.topic_offset = intent.topic_offset
        self.end_offset = intent.end_offset
        self.is_early = intent.is_early
        self.ranges = array("q", [number for start, end in intent.ranges for number in (start, end - start)])

    def cut(self, end_offset: int) -> None:
        """Drop the records that would be at or beyond an offset of the topic."""
        surplus = self.end_offset - end_offset
        self.end_offset = end_offset
        while surplus:
            taken = min(surplus, self.ranges[-1])
            surplus -= taken
            self.ranges[-1] -= taken
            if not self.ranges[-1]:
                del self.ranges[-2:]


class ForwardingHistory:
    """See the module's docstring."""

    def __init__(self) -> None:
        self.fired_ms = 0
        self.cancelled: set[int] = set()
        self._intents: list[_CarriedOut] = []

    def apply(self, note: Note) -> None:
        """Apply one note, in the order of the log."""
        if isinstance(note, Cancelled):
            self.cancelled.add(note.offset)
            return
        self.undo(note.topic_offset)
        self.fired_ms = max(self.fired_ms, note.fired_ms)
        self._intents.append(_CarriedOut(note))

    def undo(self, end_offset: int) -> bool:
        """Drop all records that were planned for this offset of the topic or beyond: they were not appended. Returns
        whether there were any.
        """
        intents, is_undone = self._intents, False
        while intents and intents[-1].topic_offset >= end_offset:
            is_undone = True
            del intents[-1]
        if intents and intents[-1].end_offset > end_offset:
            is_undone = True
            intents[-1].cut(end_offset)
        return is_undone

    def forwarded(self) -> RangeSet:
        """Return the inbox offsets of the records that are in the topic."""
        return _set_of(self._intents)

    def early(self) -> RangeSet:
        """Return the forwarded records that were not necessarily due, including adjacent records."""
        return _set_of([intent for intent in self._intents if intent.is_early])


def _set_of(intents: list[_CarriedOut]) -> RangeSet:
    """Sort first, because a set grows cheaply only at its end."""
    ranges = sorted(
        start << _COUNT_BITS | count
        for intent in intents
        for start, count in zip(intent.ranges[::2], intent.ranges[1::2], strict=True)
    )
    return RangeSet((packed >> _COUNT_BITS, (packed >> _COUNT_BITS) + (packed & _COUNT_MASK)) for packed in ranges)
