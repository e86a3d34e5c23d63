"""Refuses batches that come before an earlier batch of their idempotent producer.

A producer has several batches in flight. When one is refused for a passing reason, or is lost with a leader, the next
one may come first. The producer sends both again, in order; until then the next one must wait:

- A log that does not know the producer would accept any batch as its first one. A client may take that success for
  the success of all earlier batches, and report records as stored that are not there (KAFKA-19880).
- After OUT_OF_ORDER_SEQUENCE a client may begin a new epoch of its producer, and send all unanswered batches again in
  it, to all partitions. Some may be stored already: the new epoch hides that they are repeated.

So the early batch is refused with NOT_ENOUGH_REPLICAS, after which every Kafka client sends a batch again. If the same
batch is still the earliest one after some time, no earlier one comes, and the log decides: it refuses a gap, and lets a
producer that it has forgotten continue anywhere.

The log decides at once, as Kafka's does, where no batch can be on its way: this broker has refused none of the
partition that may come again, also not before it had opened or known the partition, and no other broker has led it.
"""

from http import HTTPStatus
from typing import NamedTuple
from weakref import WeakKeyDictionary

from conveyor.broker.services import Services
from conveyor.cluster.topic_creation import MAX_NAME_CHARACTERS
from conveyor.kernel.errors import ERRORS, ErrorKind, RequestError
from conveyor.kernel.ids import FIRST_LEADER_EPOCH, TopicPartition
from conveyor.log.append_info import AppendInfo
from conveyor.log.producers.producer_state import is_later
from conveyor.records.batch import BatchHeader
from conveyor.records.checked_batch import CheckedBatch
from conveyor.replication.partition import Partition

_REPEATED = (ErrorKind.UNKNOWN_TOPIC, ErrorKind.CORRUPT_BATCH, ErrorKind.MESSAGE_TOO_LARGE)
"""The refusals by a batch's own fault after which clients send its records again."""

_MAX_PARTITIONS = 10_000
"""If more partitions have refused a batch, any may have."""

_MAX_PRODUCERS = 10_000
"""For each partition. If more producers wait at a time, the one that began first is forgotten."""

_WAIT_MS = 5_000
"""A batch waits for so long while its producer sends it again and again."""

_PAUSE_MS = 30_000
"""After a pause as long, the wait begins again. Clients may send a batch again only after some seconds: they choose
their backoff, and a quota may throttle them.
"""


class _Earliest(NamedTuple):
    """The earliest waiting batch of a producer, and when (steady clock) it and any of its batches were refused first
    and last.
    """

    epoch: int
    sequence: int
    first_ms: int
    last_ms: int


class EarlyBatches:
    def __init__(self, services: Services) -> None:
        self._clock = services.clock
        self._is_alone = services.metadata.session.is_embedded
        self._waiting: WeakKeyDictionary[Partition, dict[int, _Earliest]] = WeakKeyDictionary()
        """By producer id."""
        self._refused: set[TopicPartition] = set()
        """The partitions that have refused a batch that may come again, since this broker started."""

    def refused(self, identity: TopicPartition, error: RequestError) -> None:
        """Note that this broker has refused a batch. The reason passes unless it is the batch: also its topic may be
        known, and its partition opened, later; the network may not damage its bytes again; and a producer may divide
        it. Without a topic, the client named it by an id that is not known here.
        """
        codes = ERRORS[error.kind]
        is_of_server = codes.retriable and codes.http_status >= HTTPStatus.INTERNAL_SERVER_ERROR
        is_name = len(identity.topic) <= MAX_NAME_CHARACTERS
        if (is_of_server or error.kind in _REPEATED) and is_name:
            self.may_come_again(identity)

    def hold(self, partition: Partition, header: BatchHeader) -> None:
        """Note that a batch was refused, and will be sent again: later ones of its producer have to wait."""
        if header.producer_id >= 0:
            self._note(partition, header)

    def append(self, partition: Partition, batch: CheckedBatch, now_ms: int) -> AppendInfo:
        """Append a batch, unless it has to wait. Raises RequestError: see `check`, `Partition.append`."""
        self.check(partition, batch.header)
        return partition.append(batch, now_ms)

    def check(self, partition: Partition, header: BatchHeader) -> None:
        """Raise RequestError (NOT_ENOUGH_REPLICAS) if the batch has to wait for an earlier one."""
        if header.producer_id < 0 or not partition.log.producers.is_early(header) or self._has_taken_all(partition):
            return
        earliest = self._note(partition, header)
        if header.base_sequence == earliest.sequence and earliest.last_ms - earliest.first_ms >= _WAIT_MS:
            return
        reason = f"{partition.identity}: an earlier batch of producer {header.producer_id} is not stored"
        raise RequestError(ErrorKind.NOT_ENOUGH_REPLICAS, f"{reason}: send both again, in order")

    def _has_taken_all(self, partition: Partition) -> bool:
        """Return whether no batch of a producer can be on its way; see the module's docstring."""
        term = partition.leader_term
        is_alone = self._is_alone and term is not None and len(term.role.replicas) <= 1
        is_only_leader = is_alone or partition.term.epoch == FIRST_LEADER_EPOCH
        may_have_refused = {partition.identity, TopicPartition("", partition.identity.partition)} & self._refused
        return is_only_leader and not may_have_refused and len(self._refused) <= _MAX_PARTITIONS

    def may_come_again(self, identity: TopicPartition) -> None:
        """Note that a batch of a partition is refused, or will be, however late, and may be sent again."""
        if len(self._refused) <= _MAX_PARTITIONS:
            self._refused.add(identity)

    def _note(self, partition: Partition, header: BatchHeader) -> _Earliest:
        waiting = self._waiting.setdefault(partition, {})
        earliest, now_ms = waiting.get(header.producer_id), self._clock.steady_ms()
        if earliest is None or _is_over(earliest, partition, header, now_ms):
            earliest = _Earliest(header.producer_epoch, header.base_sequence, now_ms, now_ms)
        waiting[header.producer_id] = earliest = earliest._replace(last_ms=now_ms)
        if len(waiting) > _MAX_PRODUCERS:
            del waiting[next(iter(waiting))]
        return earliest


def _is_over(earliest: _Earliest, partition: Partition, header: BatchHeader, now_ms: int) -> bool:
    """Return whether a batch begins another wait of its producer."""
    is_stored = partition.log.producers.is_past(header.producer_id, earliest.epoch, earliest.sequence)
    is_other = header.producer_epoch != earliest.epoch or is_later(earliest.sequence, header.base_sequence)
    return is_stored or is_other or now_ms - earliest.last_ms > _PAUSE_MS
