"""Produced batches, their requests, and the last stage: a publisher is answered when its batches are as durable as it
requested.

acks 0: no answer. 1: written (page cache). -1, all: the high watermark has passed the batches, or cannot pass them
until more replicas are in sync.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

import msgspec

from conveyor.kernel.access.caller import Caller
from conveyor.kernel.errors import RequestError
from conveyor.kernel.ids import NO_TIMESTAMP, TopicPartition
from conveyor.log.append_info import AppendInfo
from conveyor.records.checked_batch import CheckedBatch
from conveyor.records.timestamps import stamps_records
from conveyor.replication.partition import Partition

ACKS_NONE, ACKS_LEADER, ACKS_ALL = 0, 1, -1


class Published(msgspec.Struct):
    """The result of one batch: its place, or the error. append_timestamp_ms: -1 unless the topic stamps records.

    error: a `RefusedRecords` names the refused records. log_start_offset: -1 if the partition does not exist.
    duplicates: by index in the batch, the place of the original of each record dropped as a duplicate.
    may_be_stored: the batch was appended before the error, so a copy may become visible later.
    """

    error: RequestError | None = None
    base_offset: int = -1
    append_timestamp_ms: int = NO_TIMESTAMP
    log_start_offset: int = -1
    duplicates: Mapping[int, int] | None = None
    may_be_stored: bool = False


Finished = Callable[[Sequence[Published]], None]
Refused = Callable[[TopicPartition, RequestError], None]


class PendingRequest:
    """A request, answered when all its batches are settled. Its construction counts as one more pending batch.

    caller: the publisher of the batches. refused: called for each batch that a partition refuses. appended: called
    once all batches are appended or refused.
    """

    __slots__ = (
        "_finished",
        "_open",
        "_unappended",
        "acks",
        "appended",
        "caller",
        "deduplicates",
        "refused",
        "results",
    )

    def __init__(
        self, caller: Caller, count: int, acks: int, deduplicates: bool, finished: Finished, refused: Refused
    ) -> None:
        self.caller = caller
        self.acks = acks
        self.deduplicates = deduplicates
        self.refused = refused
        self.results = [Published() for _ in range(count)]
        self._open = count + 1
        self._unappended = count
        self._finished = finished
        self.appended: Callable[[], None] | None = None

    def settle_when_safe(self, result: Published, partition: Partition, info: AppendInfo) -> None:
        """A batch was appended: settle it once it is as durable as `acks` demands."""
        result.base_offset = info.first_offset
        if self.appended is not None:
            self._settle_append(self.appended)
        if stamps_records(partition.log.topic):
            result.append_timestamp_ms = info.append_timestamp_ms
        if self.acks == ACKS_ALL:
            partition.term.when_acknowledged(info.last_offset + 1, partial(self.settle, result, partition.identity))
        elif self.acks == ACKS_LEADER:
            partition.term.when_written(info.last_offset + 1, partial(self.settle, result, partition.identity))
        else:
            self.settle_one()

    def settle(self, result: Published, identity: TopicPartition, error: RequestError | None) -> None:
        """A batch is stored, or is refused, perhaps after its append: its producer may send it again in either case."""
        if error is not None:
            self.refused(identity, error)
            result.error = error.detached()
            result.may_be_stored = result.base_offset >= 0
            if self.appended is not None and not result.may_be_stored:
                self._settle_append(self.appended)
            result.base_offset = -1
        self.settle_one()

    def _settle_append(self, appended: Callable[[], None]) -> None:
        self._unappended -= 1
        if not self._unappended:
            appended()

    def settle_one(self) -> None:
        self._open -= 1
        if self._open == 0:
            self._finished(self.results)


class Appended(NamedTuple):
    """The place of an appended batch. duplicates: see `Published`."""

    info: AppendInfo
    duplicates: Mapping[int, int]


class ProducedBatch:
    """A checked batch on its way to the append. result: of this batch in its request."""

    __slots__ = ("batch", "partition", "request", "result")

    def __init__(self, partition: Partition, batch: CheckedBatch, request: PendingRequest, result: Published) -> None:
        self.partition = partition
        self.batch = batch
        self.request = request
        self.result = result

    @property
    def deduplicates(self) -> bool:
        """True if records with known ids are dropped; otherwise their ids are only noted."""
        return self.request.deduplicates or self.partition.log.topic.dedup_enable

    def recheck(self) -> None:
        """Check directly before the append that the batch may still be appended. Raises RequestError."""

    def appended(self, appended: Appended) -> None:
        self.result.duplicates = appended.duplicates
        self.request.settle_when_safe(self.result, self.partition, appended.info)

    def refused(self, error: RequestError) -> None:
        self.request.settle(self.result, self.partition.identity, error)
