"""A partition's idempotent producers: their epochs and last ten batches, by which retries are recognised, and their
open transactions.

Rules (KIP-98, KIP-360):
- an older epoch is refused (INVALID_PRODUCER_EPOCH); a newer one starts at sequence 0;
- a batch with the sequences of one of the last ten is a duplicate and gets the offset of the first;
- any other batch continues after the last sequence, which wraps to 0 after 2**31 - 1;
- an unknown producer (new, or expired) may start at any sequence;
- while a transaction of a producer is open, its other batches belong to the transaction: a plain one is refused
  (INVALID_TXN_STATE), and one of a newer epoch has to wait for the marker (CONCURRENT_TRANSACTIONS);
- a marker with a newer epoch starts that epoch: sequence 0 is due. After a marker of the same epoch the sequences
  continue (KIP-890);
- the batches that coordinators append for a producer's transaction have no sequence, and none is checked;
- a producer with an open transaction is never forgotten (KAFKA-9144), so the number of open transactions is limited.

Leaders check batches and markers. Followers and recovery remember what is in the log. All state is rebuilt from the
log. The caller passes in the time for expiry.
"""

import logging
from collections import OrderedDict
from collections.abc import Sequence
from typing import NamedTuple

from conveyor.kernel.errors import ErrorKind, RequestError
from conveyor.kernel.ids import NO_SEQUENCE, Offset, ProducerIdentity
from conveyor.log.transactions.open_transactions import (
    EndedTransaction,
    OpenTransaction,
    OpenTransactions,
    UndecidedTransaction,
)
from conveyor.records.batch import TRANSACTIONAL, BatchHeader
from conveyor.records.transaction_marker import TransactionMarker

log = logging.getLogger(__name__)

REMEMBERED_BATCHES = 10
"""Clients have up to five in flight. If a leader is replaced while they are unanswered, its successor may have them,
and take five more, before the first one is sent again. Kafka remembers five.
"""
_SEQUENCES = 1 << 31
_EPOCH_BUMPED = 2
"""From this transaction version on, each transaction ends with an epoch above that of its batches (KIP-890)."""
_EXPIRED_AT_ONCE = 10_000


class RememberedBatch(NamedTuple):
    """One appended batch of a producer."""

    base_sequence: int
    last_sequence: int
    base_offset: int
    last_offset: int
    append_timestamp_ms: int


class RememberedProducer(NamedTuple):
    """The state of one producer: its newest epoch, the time of its last batch or marker, its last batches, oldest
    first, and the epoch of the coordinator that sent its last marker, or -1. A marker may leave no batches.

    Immutable: a snapshot of many producers needs no copy of each.
    """

    epoch: int
    last_timestamp_ms: int
    batches: tuple[RememberedBatch, ...]
    coordinator_epoch: int = -1

    @property
    def last_batch(self) -> RememberedBatch | None:
        return self.batches[-1] if self.batches else None


class ProducerEntries(NamedTuple):
    """A copy of the state: producer ids, and their producers in the same order, least recently used first. Two lists,
    because these are fast to copy. The other fields are those of `OpenTransactions`.
    """

    producer_ids: Sequence[int] = ()
    producers: Sequence[RememberedProducer] = ()
    opened: Sequence[tuple[int, OpenTransaction]] = ()
    undecided: Sequence[UndecidedTransaction] = ()
    last_marker_offset: int = -1


class ProducerState:
    """The producers of one partition, least recently used first."""

    def __init__(self, max_producers: int, expiration_ms: int) -> None:
        self._max_producers = max_producers
        self._expiration_ms = expiration_ms
        self._producers: OrderedDict[int, RememberedProducer] = OrderedDict()
        self.transactions = OpenTransactions()

    def __len__(self) -> int:
        return len(self._producers)

    def check(self, header: BatchHeader) -> RememberedBatch | None:
        """Check a batch of an idempotent producer. Returns the earlier batch that it duplicates, or None if it may be
        appended.

        Raises RequestError: INVALID_PRODUCER_EPOCH, OUT_OF_ORDER_SEQUENCE, INVALID_TXN_STATE, CONCURRENT_TRANSACTIONS;
        POLICY_VIOLATION if it begins a transaction and too many are open.
        """
        producer = self._producers.get(header.producer_id)
        if producer is None:
            if header.attributes & TRANSACTIONAL:
                self._check_room()
            return None
        if header.producer_epoch != producer.epoch:
            _check_new_epoch(producer, header)
            if self.transactions.opened:
                self._check_open_transaction(header, producer)
            return None
        earlier = _earlier(producer, header)
        if earlier is None:
            if header.base_sequence != NO_SEQUENCE:
                _check_next_sequence(producer, header)
            if self.transactions.opened:
                self._check_open_transaction(header, producer)
        return earlier

    def is_early(self, header: BatchHeader) -> bool:
        """Return whether an earlier batch of the producer may be on its way, because sequences are missing before this
        one; or, if the producer is not known, because it does not begin at 0.
        """
        producer = self._producers.get(header.producer_id)
        if producer is None or header.producer_epoch > producer.epoch:
            return header.base_sequence > 0
        if header.producer_epoch < producer.epoch or header.base_sequence == NO_SEQUENCE:
            return False
        return is_later(header.base_sequence, _next_sequence(producer))

    def is_past(self, producer_id: int, epoch: int, sequence: int) -> bool:
        """Return whether a producer has gone on behind a sequence number."""
        producer = self._producers.get(producer_id, _UNKNOWN)
        return producer.epoch > epoch or (producer.epoch == epoch and is_later(_next_sequence(producer), sequence))

    def check_marker(self, marker: TransactionMarker, transaction_version: int) -> bool:
        """Check a marker of a coordinator. Returns False for a repeated one, which ends nothing.

        transaction_version: from 2 on, the marker of an open transaction must have a newer epoch than its batches, so
        that a late marker cannot end the producer's next transaction (KIP-1228).
        Raises RequestError: INVALID_PRODUCER_EPOCH, TRANSACTION_COORDINATOR_FENCED.
        """
        producer = self._producers.get(marker.producer_id)
        if producer is None:
            return True
        if marker.coordinator_epoch < producer.coordinator_epoch:
            raise RequestError(
                ErrorKind.TRANSACTION_COORDINATOR_FENCED,
                f"coordinator epoch {marker.coordinator_epoch} is older than {producer.coordinator_epoch}",
            )
        is_open = marker.producer_id in self.transactions.opened
        if marker.producer_epoch == producer.epoch and not is_open:
            return False
        lowest = producer.epoch + 1 if is_open and transaction_version >= _EPOCH_BUMPED else producer.epoch
        if marker.producer_epoch < lowest:
            raise RequestError(
                ErrorKind.INVALID_PRODUCER_EPOCH,
                f"producer {marker.producer_id} has epoch {producer.epoch}: a marker of epoch {marker.producer_epoch}"
                " is too old",
            )
        return True

    def remembered(self, producer_id: int) -> RememberedProducer:
        """Return what the state remembers of a producer; an unknown one has epoch -1."""
        return self._producers.get(producer_id, _UNKNOWN)

    def has_open(self, producer_id: int, producer_epoch: int) -> bool:
        """Return whether a transaction of a producer is open, and of this epoch."""
        producer = self._producers.get(producer_id)
        return producer is not None and producer.epoch == producer_epoch and producer_id in self.transactions.opened

    def check_epoch(self, header: BatchHeader | ProducerIdentity) -> None:
        """Raise RequestError (INVALID_PRODUCER_EPOCH) if the producer has a newer epoch."""
        producer = self._producers.get(header.producer_id)
        if producer is not None and header.producer_epoch < producer.epoch:
            raise _old_epoch(producer, header)

    def check_participant(self, producer: ProducerIdentity) -> None:
        """Check that a coordinator can append to a producer's transaction. Raises RequestError: see `check`."""
        self.check_epoch(producer)
        if producer.producer_id not in self.transactions.opened:
            self._check_room()
        elif self._producers[producer.producer_id].epoch != producer.producer_epoch:
            raise _still_open(producer, self._producers[producer.producer_id])

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
        coordinator_epoch = -1 if producer is None else producer.coordinator_epoch
        self._producers[header.producer_id] = RememberedProducer(
            header.producer_epoch, append_timestamp_ms, batches, coordinator_epoch
        )
        self._producers.move_to_end(header.producer_id)
        if header.attributes & TRANSACTIONAL:
            self.transactions.open(header.producer_id, base_offset, append_timestamp_ms)
        if producer is None:
            self._make_room()

    def record_marker(
        self, marker: TransactionMarker, offset: int, append_timestamp_ms: int
    ) -> EndedTransaction | None:
        """Remember a marker. Returns the transaction that it ends; None if that has no batch in this log.

        A marker that `check_marker` would refuse counts too, because it is in the log; it cannot lower an epoch.
        """
        producer_id = marker.producer_id
        producer = self._producers.get(producer_id, _UNKNOWN)
        if marker.producer_epoch < producer.epoch or marker.coordinator_epoch < producer.coordinator_epoch:
            log.warning(
                "old marker in the log offset=%d producer_id=%d epoch=%d current_epoch=%d coordinator_epoch=%d"
                " current_coordinator_epoch=%d", offset, producer_id, marker.producer_epoch, producer.epoch,
                marker.coordinator_epoch, producer.coordinator_epoch,
            )  # fmt: skip
        self._producers[producer_id] = RememberedProducer(
            max(marker.producer_epoch, producer.epoch),
            append_timestamp_ms,
            producer.batches if marker.producer_epoch <= producer.epoch else (),
            max(marker.coordinator_epoch, producer.coordinator_epoch),
        )
        self._producers.move_to_end(producer_id)
        if producer is _UNKNOWN:
            self._make_room()
        return self.transactions.end(producer_id, offset)

    def empty(self) -> "ProducerState":
        """Return a state without producers that has the same limits."""
        return ProducerState(self._max_producers, self._expiration_ms)

    def remembers_from(self, offset: int) -> bool:
        """Return whether the state depends on a batch from an offset on. The cost is proportional to the producers."""
        return self.transactions.last_marker_offset >= offset or any(
            producer.batches and producer.batches[-1].last_offset >= offset for producer in self._producers.values()
        )

    def last_offsets(self, limit_offset: int) -> list[int]:
        """Return the last offset of each producer's last remembered batch below a limit. 20 ms for 50,000 producers."""
        lasts = []
        for producer in self._producers.values():
            for batch in reversed(producer.batches):
                if batch.last_offset < limit_offset:
                    lasts.append(batch.last_offset)
                    break
        return lasts

    def epochs_without_batches(self) -> list[tuple[int, int]]:
        """Return the id and the epoch of each producer that only a marker tells of, because it began a new epoch."""
        return [
            (producer_id, producer.epoch) for producer_id, producer in self._producers.items() if not producer.batches
        ]

    def entries(self) -> ProducerEntries:
        """Return a copy of all producers."""
        transactions = self.transactions
        return ProducerEntries(
            list(self._producers),
            list(self._producers.values()),
            list(transactions.opened.items()),
            list(transactions.undecided),
            transactions.last_marker_offset,
        )

    def restore(self, entries: ProducerEntries) -> None:
        """Replace the state by a result of `entries`."""
        self._producers = OrderedDict(zip(entries.producer_ids, entries.producers, strict=True))
        self.transactions = OpenTransactions(entries.opened, entries.undecided, entries.last_marker_offset)

    def expire(self, now_ms: int) -> int:
        """Forget producers that have been idle for the expiration time, except those with an open transaction, and at
        most so many that it takes some 10 ms. Returns their number.
        """
        oldest = now_ms - self._expiration_ms
        expired: list[int] = []
        for producer_id, producer in self._producers.items():
            if producer.last_timestamp_ms >= oldest or len(expired) == _EXPIRED_AT_ONCE:
                break
            if producer_id not in self.transactions.opened:
                expired.append(producer_id)
        for producer_id in expired:
            del self._producers[producer_id]
        return len(expired)

    def _make_room(self) -> None:
        """Forget the producer that has been idle longest, but not the newest one, nor one with an open transaction."""
        if len(self._producers) > self._max_producers:
            newest = next(reversed(self._producers))
            for producer_id in self._producers:
                if producer_id not in self.transactions.opened and producer_id != newest:
                    del self._producers[producer_id]
                    return

    def _check_room(self) -> None:
        """Check that another transaction may be opened."""
        if len(self.transactions.opened) >= self._max_producers:
            reason = f"the partition has {self._max_producers} open transactions, which is the limit: try again later"
            raise RequestError(ErrorKind.POLICY_VIOLATION, reason)

    def _check_open_transaction(self, header: BatchHeader, producer: RememberedProducer) -> None:
        """Check a batch of a producer whose transaction may be open."""
        if header.producer_id not in self.transactions.opened:
            return self._check_room() if header.attributes & TRANSACTIONAL else None
        if not header.attributes & TRANSACTIONAL:
            raise RequestError(
                ErrorKind.INVALID_TXN_STATE,
                f"producer {header.producer_id} sent a batch outside of its open transaction",
            )
        if header.producer_epoch != producer.epoch:
            raise _still_open(header, producer)


_UNKNOWN = RememberedProducer(-1, 0, ())


def is_later(sequence: int, other: int) -> bool:
    """Return whether a sequence number follows another one. They wrap, so half of all do."""
    return 0 < (sequence - other) % _SEQUENCES < _SEQUENCES // 2


def _last_sequence(header: BatchHeader) -> int:
    if header.base_sequence == NO_SEQUENCE:
        return NO_SEQUENCE
    return (header.base_sequence + header.last_offset_delta) % _SEQUENCES


def _earlier(producer: RememberedProducer, header: BatchHeader) -> RememberedBatch | None:
    if header.base_sequence == NO_SEQUENCE:
        return None
    last_sequence = _last_sequence(header)
    for batch in producer.batches:
        if batch.base_sequence == header.base_sequence and batch.last_sequence == last_sequence:
            return batch
    return None


def _check_new_epoch(producer: RememberedProducer, header: BatchHeader) -> None:
    if header.producer_epoch < producer.epoch:
        raise _old_epoch(producer, header)
    if header.base_sequence not in (0, NO_SEQUENCE):
        raise RequestError(
            ErrorKind.OUT_OF_ORDER_SEQUENCE,
            f"producer {header.producer_id} starts epoch {header.producer_epoch} at {header.base_sequence}, not 0",
        )


def _still_open(header: BatchHeader | ProducerIdentity, producer: RememberedProducer) -> RequestError:
    return RequestError(
        ErrorKind.CONCURRENT_TRANSACTIONS,
        f"the transaction of producer {header.producer_id} in epoch {producer.epoch} has not ended yet",
    )


def _old_epoch(producer: RememberedProducer, header: BatchHeader | ProducerIdentity) -> RequestError:
    return RequestError(
        ErrorKind.INVALID_PRODUCER_EPOCH,
        f"producer {header.producer_id} uses epoch {header.producer_epoch}, but its current epoch is {producer.epoch}",
    )


def _check_next_sequence(producer: RememberedProducer, header: BatchHeader) -> None:
    expected = _next_sequence(producer)
    if header.base_sequence != expected:
        raise RequestError(
            ErrorKind.OUT_OF_ORDER_SEQUENCE,
            f"producer {header.producer_id} sent sequence {header.base_sequence}, expected {expected}",
        )


def _next_sequence(producer: RememberedProducer) -> int:
    return (producer.batches[-1].last_sequence + 1) % _SEQUENCES if producer.batches else 0
