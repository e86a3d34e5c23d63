"""The producers that one coordinator runs requests with.

    free -> take -> (a transaction) -> give_back -> free

Each partition remembers a limited number of producers, so the same few run all requests. A producer can be used again
as soon as its transaction has ended, because the end of a transaction raises the producer's epoch. Its transactional id
names the partition of `__transaction_state` and a number, so each coordinator of the partition uses the same ids: it
fences the producers of the coordinator before it, and aborts their transactions.
"""

from itertools import count

import msgspec

from conveyor.kernel.coordinator_partition import partition_for_key
from conveyor.kernel.errors import ErrorKind, RequestError
from conveyor.kernel.ids import ProducerIdentity
from conveyor.transactions.transaction_machine import TransactionMachine
from conveyor.transactions.transaction_value import RESERVED_PREFIX


class PooledProducer(msgspec.Struct, eq=False):
    """One producer. identity: for its next transaction, if it is known, until this time on the steady clock."""

    transactional_id: str
    identity: ProducerIdentity | None = None
    known_until_ms: int = 0


class ProducerPool:
    """See the module's docstring. number: of the partition, of as many as `partition_count`."""

    def __init__(self, number: int, partition_count: int, max_count: int) -> None:
        self.used_count = 0
        """The number of producers that run a transaction."""
        self._number = number
        self._partition_count = partition_count
        self._max_count = max_count
        self._free: list[PooledProducer] = []

    def take(self, machine: TransactionMachine) -> PooledProducer:
        """Return a producer whose last transaction has ended, if there is one; the one that was used last, so that few
        are in use. Raises RequestError (THROTTLING_QUOTA_EXCEEDED).
        """
        total = self.used_count + len(self._free)
        ended = (one for one in reversed(self._free) if not machine.is_ending(one.transactional_id))
        producer = next(ended, None)
        if producer is not None:
            self._free.remove(producer)
        elif total < self._max_count:
            producer = PooledProducer(_transactional_id(self._number, total, self._partition_count))
        elif self._free:
            producer = self._free.pop(0)
        else:
            raise RequestError(
                ErrorKind.THROTTLING_QUOTA_EXCEEDED, f"{total} transactions of this kind are open: retry later"
            )
        self.used_count += 1
        return producer

    def give_back(self, producer: PooledProducer) -> None:
        """Let the next transaction use a producer."""
        self.used_count -= 1
        self._free.append(producer)


def _transactional_id(partition: int, number: int, partition_count: int) -> str:
    """Return a transactional id that the coordinator of this partition coordinates."""
    names = (f"{RESERVED_PREFIX}{partition}.{number}.{salt}" for salt in count())
    return next(name for name in names if partition_for_key(name, partition_count) == partition)
