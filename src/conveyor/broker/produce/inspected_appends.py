"""Batches whose records have to be looked at, on their way to their partition.

    add -> (turn in the partition's lane) -> (ids are loaded) -> prepare -> append -> `entered`

A small batch is prepared on the event loop at once, if no other stands before it. All others go through a lane, one for
each partition that has any under way: one after the other, so that a partition's batches keep their order, and prepared
on threads, so that a batch that unpacks to much stops nobody. A few are prepared at once in the whole broker, which
bounds the memory that unpacked records take.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from typing import NamedTuple

from conveyor.broker.produce.batch_preparation import Preparation, PreparedBatch, prepare
from conveyor.broker.produce.deduplication import Deduplication
from conveyor.broker.tasks import Tasks
from conveyor.kernel.errors import RequestError
from conveyor.kernel.ids import Offset
from conveyor.kernel.ports import Bytes, Clock
from conveyor.log.log import AppendInfo
from conveyor.records.batch import BatchHeader, check_batch
from conveyor.records.record import UnreadableBatch
from conveyor.records.record_checks import RefusedRecords, looks_at_records
from conveyor.records.repack import AS_PRODUCED, wants_recompression
from conveyor.replication.partition import Partition

AT_ONCE = 2
_SMALL_RECORDS = 1024
_SMALL_BYTES = 1 << 16


class Entry(NamedTuple):
    """Where a batch came to lie: in its partition, or in the inbox of that. duplicates: see `Published`."""

    into: Partition
    info: AppendInfo
    duplicates: Mapping[int, int]


Entered = Callable[[Entry | RequestError], None]


class _Arrival(NamedTuple):
    """A batch that `check_batch` has taken."""

    partition: Partition
    batch: Bytes
    header: BatchHeader
    deduplicates: bool
    entered: Entered


class Intake:
    """See the module's docstring."""

    def __init__(self, clock: Clock, threads: Executor, tasks: Tasks, deduplication: Deduplication) -> None:
        self._clock = clock
        self._threads = threads
        self._tasks = tasks
        self._deduplication = deduplication
        self._lanes: dict[Partition, deque[_Arrival]] = {}
        self._room = asyncio.Semaphore(AT_ONCE)
        self._idle = asyncio.Event()
        self._idle.set()

    def takes(self, partition: Partition, deduplicates: bool) -> bool:
        """Whether a partition's batches have to come this way, now."""
        topic = partition.log.topic
        return (
            topic.compression_type != AS_PRODUCED
            or looks_at_records(topic)
            or deduplicates
            or topic.dedup_enable
            or partition.inbox is not None
            or self._deduplication.covers(partition)
            or (bool(self._lanes) and partition in self._lanes)
        )

    def add(self, partition: Partition, batch: Bytes, deduplicates: bool, entered: Entered) -> None:
        """Take a batch; `entered` is called once, now or later, in the order of the calls of `add`.

        deduplicates: leave out records whose id is known, whatever `dedup.enable` says.
        Raises RequestError (see `check_batch`).
        """
        header = check_batch(batch, partition.log.topic.max_message_bytes)
        arrival = _Arrival(partition, batch, header, deduplicates, entered)
        lane = self._lanes.get(partition)
        if lane is not None:
            lane.append(arrival)
        elif not self._enter_at_once(arrival):
            self._lanes[partition] = deque([arrival])
            self._idle.clear()
            self._tasks.start(self._run(partition))

    async def drain(self) -> None:
        """Wait until nothing is under way."""
        await self._idle.wait()

    async def _run(self, partition: Partition) -> None:
        """Empty a partition's lane."""
        lane = self._lanes[partition]
        try:
            while lane:
                await self._enter(lane[0])
                lane.popleft()
        finally:
            del self._lanes[partition]
            if not self._lanes:
                self._idle.set()

    async def _enter(self, arrival: _Arrival) -> None:
        try:
            while not self._enter_at_once(arrival):
                into = _target(arrival)
                if self._must_load(arrival, into):
                    await self._deduplication.load(into)
                    continue
                wanted = self._preparation(arrival, into)
                async with self._room:
                    loop = asyncio.get_running_loop()
                    prepared = await loop.run_in_executor(self._threads, _prepare_off_loop, wanted)
                if isinstance(prepared, RequestError):
                    raise prepared
                if _target(arrival) is into:
                    return self._append(arrival, into, prepared)
        except RequestError as error:
            arrival.entered(error)
        await asyncio.sleep(0)  # The others have a turn, too.

    def _enter_at_once(self, arrival: _Arrival) -> bool:
        """Append a batch now, if that takes no time."""
        try:
            into = _target(arrival)
            if into.log.producers.find(arrival.header) is not None:
                self._append(arrival, into, PreparedBatch(batch=arrival.batch))
                return True
            if not _is_small(arrival) or self._must_load(arrival, into):
                return False
            prepared = prepare(self._preparation(arrival, into), _SMALL_BYTES)
        except UnreadableBatch:  # It may only be too large to be unpacked here.
            return False
        except RequestError as error:
            arrival.entered(error)
            return True
        self._append(arrival, into, prepared)
        return True

    def _drops(self, arrival: _Arrival, into: Partition) -> bool:
        return arrival.deduplicates or into.log.topic.dedup_enable

    def _must_load(self, arrival: _Arrival, into: Partition) -> bool:
        return self._drops(arrival, into) and not self._deduplication.covers(into)

    def _preparation(self, arrival: _Arrival, into: Partition) -> Preparation:
        return Preparation(
            batch=arrival.batch,
            header=arrival.header,
            topic=arrival.partition.log.topic,
            now_ms=self._clock.now_ms(),
            is_delayed=into is not arrival.partition,
            ids=self._deduplication.index(into) if self._deduplication.covers(into) else None,
            drops=self._drops(arrival, into),
        )

    def _append(self, arrival: _Arrival, into: Partition, prepared: PreparedBatch) -> None:
        base_offset, now_ms = into.log.log_end_offset, self._clock.now_ms()
        if prepared.batch is None:
            offsets = prepared.duplicates
            info = AppendInfo(Offset(offsets[0]), Offset(max(offsets.values())), now_ms, duplicate=True)
        else:
            try:
                info = into.append(prepared.batch, now_ms, is_checked=True)
            except RequestError as error:
                return arrival.entered(error)
            if prepared.fresh:
                self._deduplication.note(into, prepared.fresh, info)
        repeats = {number: base_offset + first for number, first in prepared.repeats.items()}
        arrival.entered(Entry(into, info, {**prepared.duplicates, **repeats}))


def _target(arrival: _Arrival) -> Partition:
    """Where a batch is appended: the inbox, unless it repeats what came into the topic before there was one.

    Raises RequestError (PARTITION_OFFLINE).
    """
    topic, header = arrival.partition, arrival.header
    topic.check_online()
    inbox = topic.inbox
    if inbox is None:
        return topic
    inbox.check_online()
    is_new = header.producer_id < 0 or inbox.log.producers.knows(header.producer_id)
    return inbox if is_new or topic.log.producers.find(header) is None else topic


def _is_small(arrival: _Arrival) -> bool:
    """Whether a batch is looked through within some milliseconds, unless it unpacks to much."""
    header = arrival.header
    return (
        header.records_count <= _SMALL_RECORDS
        and header.size <= _SMALL_BYTES
        and not wants_recompression(arrival.partition.log.topic, header)
    )


def _prepare_off_loop(wanted: Preparation) -> PreparedBatch | RequestError:
    """An error is made anew: its traceback would keep the unpacked records, for the event loop to give back."""
    try:
        return prepare(wanted)
    except RefusedRecords as refused:
        return RefusedRecords(refused.kind, refused.message, refused.record_errors)
    except RequestError as error:
        return RequestError(error.kind, error.message)
