"""A partition's idempotent producers: their epochs and last five batches, by which retries are recognised.

Rules (KIP-98, KIP-360):
- an older epoch is refused (INVALID_PRODUCER_EPOCH); a newer one starts at sequence 0;
- a batch with the sequences of one of the last five is a duplicate and gets the offset of the first;
- any other batch continues after the last sequence, which wraps to 0 after 2**31 - 1;
- an unknown producer (new, or expired) may start at any sequence.

All state is rebuilt from the log. The caller passes in the time for expiry.
"""

from collections import OrderedDict
from collections.abc import Sequence
from typing import NamedTuple

from conveyor.kernel.errors import ErrorKind, RequestError
from conveyor.kernel.ids import Offset
from conveyor.records.batch import CONTROL, BatchHeader

REMEMBERED_BATCHES = 5
_SEQUENCES = 1 << 31


class RememberedBatch(NamedTuple):
    """One appended batch of a producer."""

    base_sequence: int
    last_sequence: int
    base_offset: int
    last_offset: int
    append_timestamp_ms: int


class RememberedProducer(NamedTuple):
    """The state of one producer: its newest epoch, its last append time, and its last batches, oldest first.

    Immutable: a snapshot of many producers needs no copy of each.
    """

    epoch: int
    last_timestamp_ms: int
    batches: tuple[RememberedBatch, ...]


ProducerEntries = tuple[Sequence[int], Sequence[RememberedProducer]]
"""Producer ids, and their producers in the same order, least recently used first. Two lists, because these are fast
to copy.
"""


class ProducerState:
    """The producers of one partition, least recently used first."""

    def __init__(self, max_producers: int, expiration_ms: int) -> None:
        self._max_producers = max_producers
        self._expiration_ms = expiration_ms
        self._producers: OrderedDict[int, RememberedProducer] = OrderedDict()

    def __len__(self) -> int:
        return len(self._producers)

    def check(self, header: BatchHeader) -> RememberedBatch | None:
        """Check a batch of an idempotent producer. Returns the earlier batch that it duplicates, or None if it may be
        appended.

        Raises RequestError: INVALID_PRODUCER_EPOCH, OUT_OF_ORDER_SEQUENCE.
        """
        producer = self._producers.get(header.producer_id)
        if producer is None:
            return None
        if header.producer_epoch != producer.epoch:
            _check_new_epoch(producer, header)
            return None
        earlier = _earlier(producer, header)
        if earlier is None:
            _check_next_sequence(producer, header)
        return earlier

    def knows(self, producer_id: int) -> bool:
        """Whether the state remembers a producer."""
        return producer_id in self._producers

    def find(self, header: BatchHeader) -> RememberedBatch | None:
        """Return the earlier batch that this one duplicates, without any check."""
        producer = self._producers.get(header.producer_id)
        if producer is None or producer.epoch != header.producer_epoch:
            return None
        return _earlier(producer, header)

    def record(self, header: BatchHeader, base_offset: Offset, append_timestamp_ms: int) -> None:
        """Remember an appended batch."""
        producer = self._producers.get(header.producer_id)
        earlier = producer.batches if producer is not None and producer.epoch == header.producer_epoch else ()
        batch = RememberedBatch(
            header.base_sequence,
            _last_sequence(header),
            base_offset,
            base_offset + header.last_offset_delta,
            append_timestamp_ms,
        )
        batches = (*earlier[1 - REMEMBERED_BATCHES :], batch)
        self._producers[header.producer_id] = RememberedProducer(header.producer_epoch, append_timestamp_ms, batches)
        self._producers.move_to_end(header.producer_id)
        if producer is None:
            self._make_room()

    def replay(self, header: BatchHeader, append_timestamp_ms: int) -> None:
        """Remember a batch of the log without checking it: at recovery, and on a follower. Control batches and batches
        without a producer change nothing.
        """
        if header.producer_id >= 0 and not header.attributes & CONTROL:
            self.record(header, Offset(header.base_offset), append_timestamp_ms)

    def empty(self) -> "ProducerState":
        """Return a state without producers that has the same limits."""
        return ProducerState(self._max_producers, self._expiration_ms)

    def remembers_from(self, offset: int) -> bool:
        """Whether the state depends on a batch at or above an offset. The cost is proportional to the producers."""
        return any(producer.batches[-1].last_offset >= offset for producer in self._producers.values())

    def entries(self) -> ProducerEntries:
        """Return a copy of all producers."""
        return list(self._producers), list(self._producers.values())

    def restore(self, entries: ProducerEntries) -> None:
        """Replace the state by a result of `entries`."""
        self._producers = OrderedDict(zip(*entries, strict=True))

    def expire(self, now_ms: int) -> None:
        """Forget producers that have been idle for the expiration time. The cost is proportional to their number."""
        oldest = now_ms - self._expiration_ms
        while self._producers and next(iter(self._producers.values())).last_timestamp_ms < oldest:
            self._producers.popitem(last=False)

    def clear(self) -> None:
        self._producers.clear()

    def _make_room(self) -> None:
        if len(self._producers) > self._max_producers:
            self._producers.popitem(last=False)


def _last_sequence(header: BatchHeader) -> int:
    return (header.base_sequence + header.last_offset_delta) % _SEQUENCES


def _earlier(producer: RememberedProducer, header: BatchHeader) -> RememberedBatch | None:
    last_sequence = _last_sequence(header)
    for batch in producer.batches:
        if batch.base_sequence == header.base_sequence and batch.last_sequence == last_sequence:
            return batch
    return None


def _check_new_epoch(producer: RememberedProducer, header: BatchHeader) -> None:
    if header.producer_epoch < producer.epoch:
        raise RequestError(
            ErrorKind.INVALID_PRODUCER_EPOCH,
            f"producer {header.producer_id} uses epoch {header.producer_epoch},"
            f" but its current epoch is {producer.epoch}",
        )
    if header.base_sequence != 0:
        raise RequestError(
            ErrorKind.OUT_OF_ORDER_SEQUENCE,
            f"producer {header.producer_id} starts epoch {header.producer_epoch} at {header.base_sequence}, not 0",
        )


def _check_next_sequence(producer: RememberedProducer, header: BatchHeader) -> None:
    expected = (producer.batches[-1].last_sequence + 1) % _SEQUENCES
    if header.base_sequence != expected:
        raise RequestError(
            ErrorKind.OUT_OF_ORDER_SEQUENCE,
            f"producer {header.producer_id} sent sequence {header.base_sequence}, expected {expected}",
        )
