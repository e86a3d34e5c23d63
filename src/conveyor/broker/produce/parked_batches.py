"""Batches that wait for the end of another producer's transaction, in which one of their message ids is.

    parked -> the transaction has ended, or this broker no longer leads -> appended from the start
           -> the batch's own transaction has ended                     -> refused
           -> DECISION_TIMEOUT_MS have passed                           -> REQUEST_TIMED_OUT

A parked batch keeps no other producer waiting. Later batches of its own producer wait behind it, because their sequence
numbers follow.
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from conveyor.kernel.alarm import Alarm
from conveyor.kernel.errors import ErrorKind, RequestError
from conveyor.kernel.ids import LeaderEpoch
from conveyor.kernel.ports import Clock
from conveyor.log.transactions.open_transactions import OpenTransaction
from conveyor.replication.partition import Partition
from conveyor.replication.partition_refusals import COMMIT_TIMEOUT_MS
from conveyor.replication.roles import Leader

DECISION_TIMEOUT_MS = COMMIT_TIMEOUT_MS
"""As long as clients wait for replicas: shorter than Kafka's clients and other brokers wait for an answer."""


_Place = tuple[Partition, object]
"""A partition and a producer id, or an object of its own for a batch without one."""


class ParkedBatch(NamedTuple):
    """resume: append the batch from the start. refuse: answer it with an error. deadline_ms: on the steady clock.

    check: raises RequestError if the batch must not be appended any more.
    """

    resume: Callable[[], None]
    refuse: Callable[[RequestError], None]
    check: Callable[[], None]
    deadline_ms: int


class _Queue:
    """The parked batches of one producer in one partition. Only of the first one it is known what it waits for."""

    def __init__(self, partition: Partition, holder: int, transaction: OpenTransaction, first: ParkedBatch) -> None:
        self.partition = partition
        self.holder = holder
        self.batches = [first]
        self._transaction = transaction
        self._leader_epoch: LeaderEpoch = partition.leader_epoch

    def is_held(self) -> bool:
        """Return whether the holder's transaction is open, and this broker still leads the partition."""
        partition = self.partition
        return (
            partition.offline_reason is None
            and isinstance(partition.role, Leader)
            and partition.leader_epoch == self._leader_epoch
            and partition.log.producers.transactions.opened.get(self.holder) == self._transaction
        )


class ParkedBatches:
    """See the module's docstring."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._queues: dict[_Place, _Queue] = {}
        self._alarms: dict[_Place, Alarm] = {}
        self._is_ended = False

    def has(self, partition: Partition, producer_id: int) -> bool:
        """Return whether batches of a producer are parked; its later batches must `follow`."""
        return bool(self._queues) and (partition, producer_id) in self._queues

    def follow(self, partition: Partition, producer_id: int, batch: ParkedBatch) -> None:
        """Park a batch behind those of its producer."""
        self._queues[partition, producer_id].batches.append(batch)

    def park(self, partition: Partition, producer_id: int, holder: int, batch: ParkedBatch) -> bool:
        """Let a batch wait for the end of the holder's transaction. Returns False if that is not open any more.

        producer_id: the batch's; -1 if it has none. Batches of a producer that `has` parked ones must `follow`.
        """
        transaction = partition.log.producers.transactions.opened.get(holder)
        if transaction is None:
            return False
        wait_ms = batch.deadline_ms - self._clock.steady_ms()
        if wait_ms <= 0 or self._is_ended:
            batch.refuse(_timed_out(partition, holder))
            return True
        place = (partition, producer_id if producer_id >= 0 else object())
        self._queues[place] = _Queue(partition, holder, transaction, batch)
        self._alarms[place] = Alarm(self._clock, partial(self._time_out, place))
        self._alarms[place].time_out(wait_ms)
        partition.watch(partial(self._changed, place))
        return True

    def end(self) -> None:
        """Refuse all batches, and those to come: the broker stops."""
        self._is_ended = True
        for place in list(self._queues):
            self._time_out(place)

    def _changed(self, place: _Place) -> None:
        """The partition has changed. Called once more after the wait has timed out."""
        queue = self._queues.get(place)
        if queue is None:
            return
        first, *others = queue.batches
        try:
            first.check()
        except RequestError as error:
            self._remove(place)
            first.refuse(error)
        else:
            if queue.is_held():
                return queue.partition.watch(partial(self._changed, place))
            self._remove(place)
            first.resume()
        for batch in others:
            batch.resume()

    def _time_out(self, place: _Place) -> None:
        queue = self._remove(place)
        for batch in queue.batches:
            batch.refuse(_timed_out(queue.partition, queue.holder))

    def _remove(self, place: _Place) -> _Queue:
        self._alarms.pop(place).cancel()
        return self._queues.pop(place)


def _timed_out(partition: Partition, holder: int) -> RequestError:
    reason = f"{partition.identity}: producer {holder} has published the same message id in a transaction that is open"
    return RequestError(ErrorKind.REQUEST_TIMED_OUT, reason)
