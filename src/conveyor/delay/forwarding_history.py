"""What the notes of an inbox come to, read from its start: which of its records lie in the topic already.

The forwarder is the only writer of the topic's partition, so its log end offset is the whole truth: the n-th record of
an intent lies in the topic if the log goes beyond `topic_offset + n`. An intent that was noted and, because of a crash,
not carried out, is undone by the next one: that begins where the topic really ended.
"""

from array import array

from conveyor.delay.forwarding_records import Cancelled, Intent, Note
from conveyor.kernel.range_set import RangeSet

_COUNT_BITS = 32
_COUNT_MASK = (1 << _COUNT_BITS) - 1


class _CarriedOut:
    """An intent, as far as it may have been carried out; ranges as start, count, start, count..."""

    __slots__ = ("end_offset", "is_early", "ranges", "topic_offset")

    def __init__(self, intent: Intent) -> None:
        self.topic_offset = intent.topic_offset
        self.end_offset = intent.end_offset
        self.is_early = intent.is_early
        self.ranges = array("q", [number for start, end in intent.ranges for number in (start, end - start)])

    def cut(self, end_offset: int) -> None:
        """Leave out what would lie at or beyond an offset of the topic."""
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
        """Take one note, in the order of the log."""
        if isinstance(note, Cancelled):
            self.cancelled.add(note.offset)
            return
        self.undo(note.topic_offset)
        self.fired_ms = max(self.fired_ms, note.fired_ms)
        self._intents.append(_CarriedOut(note))

    def undo(self, end_offset: int) -> None:
        """Nothing that was meant to lie at this offset of the topic, or beyond it, has come to lie there."""
        intents = self._intents
        while intents and intents[-1].topic_offset >= end_offset:
            del intents[-1]
        if intents and intents[-1].end_offset > end_offset:
            intents[-1].cut(end_offset)

    def forwarded(self) -> RangeSet:
        """The records that lie in the topic."""
        return _set_of(self._intents)

    def early(self) -> RangeSet:
        """Those of them that were forwarded whether they were due or not, and neighbours of theirs."""
        return _set_of([each for each in self._intents if each.is_early])


def _set_of(intents: list[_CarriedOut]) -> RangeSet:
    """Sorted first: a set grows cheaply at its end only."""
    ranges = sorted(
        start << _COUNT_BITS | count
        for each in intents
        for start, count in zip(each.ranges[::2], each.ranges[1::2], strict=True)
    )
    return RangeSet((each >> _COUNT_BITS, (each >> _COUNT_BITS) + (each & _COUNT_MASK)) for each in ranges)
