"""Messages that open transactions have acknowledged: neither leased nor settled until the transaction ends."""

from collections.abc import Iterable, Iterator

from conveyor.kernel.ids import ProducerId, ProducerIdentity
from conveyor.kernel.range_set import ranges_of

Range = tuple[int, int]


class PendingAcks:
    """The pending messages of one subscription in one partition. A message is pending for one producer at most."""

    def __init__(self) -> None:
        self._producers: dict[int, ProducerIdentity] = {}
        self._offsets: dict[ProducerId, set[int]] = {}

    def __len__(self) -> int:
        return len(self._producers)

    def __iter__(self) -> Iterator[int]:
        return iter(self._producers)

    def __contains__(self, offset: int) -> bool:
        return offset in self._producers

    def producer_of(self, offset: int) -> ProducerIdentity | None:
        """Return the producer in whose transaction a message was acknowledged, if it is pending."""
        return self._producers.get(offset)

    def add(self, producer: ProducerIdentity, ranges: Iterable[Range]) -> None:
        for start, end in ranges:
            self.remove(start, end)
            self._producers |= dict.fromkeys(range(start, end), producer)
            self._offsets.setdefault(producer.producer_id, set()).update(range(start, end))

    def take(self, producer_id: ProducerId) -> list[int]:
        """Remove and return the messages of a producer, in order."""
        offsets = sorted(self._offsets.pop(producer_id, ()))
        for offset in offsets:
            del self._producers[offset]
        return offsets

    def remove(self, start: int, end: int) -> None:
        """Remove [start, end)."""
        if end - start <= len(self._producers):
            removed = [offset for offset in range(start, end) if offset in self._producers]
        else:
            removed = [offset for offset in self._producers if start <= offset < end]
        for offset in removed:
            producer_id = self._producers.pop(offset).producer_id
            offsets = self._offsets[producer_id]
            offsets.discard(offset)
            if not offsets:
                del self._offsets[producer_id]

    def ranges(self) -> Iterator[tuple[ProducerIdentity, list[Range]]]:
        """Yield the messages of each producer."""
        for offsets in self._offsets.values():
            yield self._producers[next(iter(offsets))], ranges_of(offsets)

    def reaches(self, offset: int) -> bool:
        """Return whether a message at or above an offset is pending."""
        return any(pending >= offset for pending in self._producers)
