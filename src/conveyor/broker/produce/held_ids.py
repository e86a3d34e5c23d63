"""Refuses batches with a message id that another producer's open transaction has.

The producer sends the batch again; every Kafka client does so after NOT_ENOUGH_REPLICAS. Its next batches must not
overtake the refused one. The log ensures that by their sequence numbers, unless it does not know the producer yet: then
it would accept any batch as its first one, and then find the refused one out of order. So this class remembers the
first batch of such a producer.
"""

from weakref import WeakKeyDictionary

from conveyor.kernel.errors import ErrorKind, RequestError
from conveyor.records.batch import BatchHeader
from conveyor.replication.partition import Partition

_MAX_FIRST_BATCHES = 10_000
"""For each partition. If more producers are new and refused at a time, the earliest one is forgotten."""


class HeldIds:
    """See the module's docstring."""

    def __init__(self) -> None:
        self._first_batches: WeakKeyDictionary[Partition, dict[int, BatchHeader]] = WeakKeyDictionary()
        """By producer id."""

    def refuse(self, partition: Partition, header: BatchHeader, holder: int) -> RequestError:
        """Return the error for a batch. holder: the producer whose open transaction has one of the batch's ids."""
        producer_id = header.producer_id
        if producer_id >= 0 and not partition.log.producers.knows(producer_id):
            self._remember(self._first_batches.setdefault(partition, {}), header)
        reason = (
            f"{partition.identity}: the open transaction of producer {holder} has a message with the same"
            " conveyor-dedup-id: send the message again, it is published or a duplicate once that transaction has ended"
        )
        return RequestError(ErrorKind.NOT_ENOUGH_REPLICAS, reason)

    def check(self, partition: Partition, header: BatchHeader) -> None:
        """Raise RequestError if an earlier batch of the batch's producer was refused and is not appended yet."""
        first_batches = self._first_batches.get(partition) if self._first_batches else None
        first = None if first_batches is None else first_batches.get(header.producer_id)
        if first_batches is None or first is None:
            return
        if partition.log.producers.knows(header.producer_id) or header.producer_epoch != first.producer_epoch:
            del first_batches[header.producer_id]
        elif header.base_sequence > first.base_sequence:
            reason = f"{partition.identity}: an earlier batch of producer {header.producer_id} was refused"
            raise RequestError(ErrorKind.NOT_ENOUGH_REPLICAS, f"{reason}: send both again, in order")

    def _remember(self, first_batches: dict[int, BatchHeader], header: BatchHeader) -> None:
        """Keep the first one of the refused batches of a producer's epoch."""
        first = first_batches.get(header.producer_id)
        if first is None or first.producer_epoch != header.producer_epoch or first.base_sequence > header.base_sequence:
            first_batches[header.producer_id] = header
        if len(first_batches) > _MAX_FIRST_BATCHES:
            del first_batches[next(iter(first_batches))]
