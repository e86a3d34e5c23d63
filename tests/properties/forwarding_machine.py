"""One run of a broker with a delayed topic, its target and a forwarder, moved by hand."""

from collections import deque
from collections.abc import Callable
from typing import TypeVar, cast
from uuid import UUID

from conveyor.broker.coordinators.forwarder import DelayedPartitions, Forwarder, LoadedForwarder
from conveyor.broker.coordinators.machine_services import MachineServices
from conveyor.broker.partitions.disk_room import DiskRoom
from conveyor.broker.partitions.retention import Retention
from conveyor.broker.slices import CountsWork, Slices
from conveyor.kernel.errors import RequestError, StorageFailure
from conveyor.kernel.ids import LeaderEpoch, TopicId, TopicPartition
from conveyor.log.cache_share import CacheShare
from conveyor.log.flush import FlushJob
from conveyor.log.log_probe import LogProbe
from conveyor.log.recovery.recovery import open_log
from conveyor.records.batch import CONTROL, iterate_batches
from conveyor.records.record import Record, decode_records
from conveyor.records.transaction_marker import is_marker
from conveyor.replication.partition import Partition
from conveyor.replication.transactions import last_stable_offset
from conveyor.replication.trimming import RetainingReader, are_deleted, delete_records
from conveyor.settings.tree import DiskSettings, ProducerSettings, TopicSettings
from conveyor.testing import ManualClock, MemoryDisk
from tests.unit.broker.room_services import room_services
from tests.unit.replication.parts import NO_CALLS, leader

Result = TypeVar("Result")

TARGET, DELAYED, STATE = "orders", "later", "__delay_state.later"
PRODUCER_ID = 1000
TOPIC_ID = TopicId(UUID(int=1))


class HandSlices(Slices):
    """Work of machines that the test lets begin, as if each turn of the event loop were full."""

    def __init__(self) -> None:
        self.waiting: deque[Callable[[], None]] = deque()

    def soon(self, work: Callable[[], None], machine: CountsWork) -> None:
        if work not in self.waiting:
            self.waiting.append(work)

    def forget(self, work: Callable[[], None]) -> None:
        if work in self.waiting:
            self.waiting.remove(work)

    def off_loop(self, work: Callable[[], Result], done: Callable[[Result | StorageFailure], None]) -> None:
        self.waiting.append(lambda: done(work()))


class Machine:
    """One run of a broker: three partitions on a disk, a forwarder between them, and an event loop moved by hand."""

    def __init__(self, disk: MemoryDisk, clock: ManualClock, target: TopicSettings, at_once: int) -> None:
        self.disk = disk
        self.clock = clock
        self.services = room_services(self)
        self.services.slices = slices = HandSlices()
        self.soon = slices.waiting
        self.is_down = False
        self.jobs: dict[str, FlushJob] = {}
        self.readers: dict[Partition, RetainingReader] = {}
        delayed = TopicSettings(segment_bytes=600, cleanup_policy="acknowledged", retention_ms=-1)
        state = TopicSettings(segment_bytes=300, retention_ms=-1)
        self.sides = {
            name: self._open(name, each) for name, each in ((TARGET, target), (DELAYED, delayed), (STATE, state))
        }
        self.restart_forwarder(at_once)

    def restart_forwarder(self, at_once: int) -> None:
        partitions = DelayedPartitions(self.delayed, self.target, self.sides[STATE])
        room = DiskRoom(self.disk, DiskSettings())
        loaded = LoadedForwarder(partitions, last_stable_offset(self.delayed), room, records_at_once=at_once)
        loaded.read_state()
        loaded.read_target(PRODUCER_ID)
        loaded.read_delayed()
        services = MachineServices(
            common=self.services,
            cache=CacheShare(1 << 20),
            room=room,
            retention=cast("Retention", self),
        )
        self.forwarder = Forwarder(loaded, services, bytes_at_once=at_once, snapshot_bytes=400)
        self.forwarder.failed.listen(_never_stopped)
        self.forwarder.start()

    @property
    def target(self) -> Partition:
        return self.sides[TARGET]

    @property
    def delayed(self) -> Partition:
        return self.sides[DELAYED]

    def keep_for(self, reader: RetainingReader, partition: Partition) -> None:
        """As `Retention` does it."""
        self.readers[partition] = reader

    def release(self, reader: RetainingReader, partition: Partition) -> None:
        if self.readers.get(partition) is reader:
            del self.readers[partition]

    @staticmethod
    def trim_later(partition: Partition, offset: int) -> None:
        """As `Retention` does it, at once."""
        if not are_deleted(partition, offset):
            job = delete_records(partition, offset)
            job.run()
            partition.log.start.complete_trim()

    def now_ms(self) -> int:
        return self.clock.now_ms()

    def steady_ms(self) -> int:
        return self.clock.steady_ms()

    def call_at(self, when_ms: int, callback: Callable[[], None]) -> Callable[[], None]:
        """As the clock does it; what has crashed hears nothing any more."""
        return self.clock.call_at(when_ms, lambda: None if self.is_down else callback())

    def call_later(self, delay_ms: int, callback: Callable[[], None]) -> Callable[[], None]:
        return self.clock.call_later(delay_ms, lambda: None if self.is_down else callback())

    def time_out(self, wait_ms: int, callback: Callable[[], None]) -> Callable[[], None]:
        return self.call_later(wait_ms, callback)

    def when_set(self, callback: Callable[[int], None]) -> Callable[[], None]:
        return self.clock.when_set(lambda by_ms: None if self.is_down else callback(by_ms))

    def _open(self, name: str, settings: TopicSettings) -> Partition:
        now_ms = self.clock.now_ms()
        log = open_log(self.disk, f"logs/{name}-0", TOPIC_ID, settings, ProducerSettings(), LogProbe(), now_ms)
        return Partition(TopicPartition(name, 0), log, leader(LeaderEpoch(0)), NO_CALLS)

    def begin_flush(self, name: str) -> None:
        if name not in self.jobs and (job := self.sides[name].begin_flush()) is not None:
            self.jobs[name] = job

    def end_flush(self, name: str) -> None:
        job = self.jobs.pop(name, None)
        if job is None:
            return
        try:
            job.run()
        except StorageFailure as failure:
            self.sides[name].complete_flush(job, failure)
        else:
            self.sides[name].complete_flush(job, None)

    def run_some(self) -> None:
        if self.soon:
            self.soon.popleft()()

    def go_on(self, steps: int) -> None:
        """Do a few of the next steps, in their usual order: the power may be cut after any of them."""
        for _ in range(steps):
            for name in (DELAYED, STATE, TARGET):
                side = self.sides[name]
                if name in self.jobs:
                    self.end_flush(name)
                elif side.log.written_offset < side.log.log_end_offset:
                    side.write()
                elif side.log.flushes.is_due:
                    self.begin_flush(name)
                else:
                    continue
                break
            else:
                self.run_some()

    def settle(self) -> None:
        """Until nothing is left to do now."""
        for _ in range(1000):
            before = [side.term.high_watermark for side in self.sides.values()]
            while self.soon:
                self.run_some()
            for name, side in self.sides.items():
                side.write()
                self.end_flush(name)
                self.begin_flush(name)
                self.end_flush(name)
            if not self.soon and before == [side.term.high_watermark for side in self.sides.values()]:
                return
        raise AssertionError("the forwarder does not come to rest")

    def records(self) -> list[Record]:
        return [record for record in records(self.target) if record.offset < self.target.term.high_watermark]


def records(partition: Partition) -> list[Record]:
    log = partition.log
    found: list[Record] = []
    offset = int(log.log_start_offset)
    while offset < log.written_offset:
        stored = log.read(offset, 1 << 20, log.written_offset, at_least_one=True)
        assert stored is not None
        content = stored.file.read(stored.position, stored.length)
        for position, header in iterate_batches(content):
            if not is_marker(header):
                assert not header.attributes & CONTROL
                found += decode_records(content[position : position + header.size])
            offset = header.next_offset
    return found


def _never_stopped(failure: RequestError) -> None:
    raise AssertionError("this disk does not run out of files, and this broker surely leads") from failure


def _ignore(partition: Partition) -> None:
    """The test writes and flushes when it likes."""
