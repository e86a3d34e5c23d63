"""Keeping a machine up to date with a log and with the time, in turns that it shares with others."""

import asyncio
from concurrent.futures import ThreadPoolExecutor

from conveyor.broker.coordinators.log_follower import LogFollower
from conveyor.broker.slices import TURN_ITEMS, Slices
from conveyor.broker.tasks import Tasks
from conveyor.kernel.errors import ErrorKind, OutOfFiles, RequestError, StorageFailure
from conveyor.kernel.ports import FileSlice
from conveyor.log.record_source import StillPacked
from conveyor.records.batch import read_header
from conveyor.records.checked_batch import own_batch
from conveyor.replication.machine_runner import Respond
from conveyor.testing import ManualClock, MemoryDisk
from tests.unit.log.logs import batch
from tests.unit.replication.parts import Owner


class Reader:
    """Scans one record at a time, which takes a whole turn. raises: the failure of the next scan."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.owner = Owner()
        self.bugs: list[BaseException] = []
        self.slices = Slices(ThreadPoolExecutor(1), Tasks(self.bugs.append))
        self.work_count = 0
        self.seen = 0
        self.looked = 0
        self.expired = 0
        self.raises: Exception | None = None
        self.unpacked: list[Respond[None]] = []
        self.follower = LogFollower(self.owner.partition, self, self.clock, self.slices)
        self.follower.follow(self.owner.partition)

    def scan(self, limit_offset: int) -> bool:
        error, self.raises = self.raises, None
        if error is not None:
            raise error
        self.work_count += TURN_ITEMS * (self.seen < limit_offset)
        self.seen = min(limit_offset, self.seen + 1)
        return self.seen == limit_offset

    def unpack(self, packed: StillPacked, unpacked: Respond[None]) -> None:
        self.unpacked.append(unpacked)

    def scanned(self) -> None:
        self.looked += 1

    def expire(self) -> None:
        self.expired += 1

    def publish(self, count: int = 1) -> None:
        for _ in range(count):
            self.owner.partition.append(own_batch(batch(b"x")), self.clock.now_ms())
        self.owner.settle()


async def turns(count: int = 10) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


def packed() -> StillPacked:
    disk = MemoryDisk()
    return StillPacked(read_header(batch(b"x")), FileSlice(disk.open("packed", create=True), 0, 0))


async def test_what_is_new_is_looked_through_a_part_in_each_tick() -> None:
    reader = Reader()
    reader.publish(3)
    seen = [reader.seen]
    while reader.seen < 3:
        await turns(1)
        seen.append(reader.seen)
    assert (seen, reader.looked) == ([1, 2, 3], 4)
    await turns(1)
    reader.publish()
    assert reader.seen == 4


async def test_batch_that_takes_long_to_unpack_is_waited_for() -> None:
    reader = Reader()
    reader.raises = packed()
    reader.publish()
    reader.publish()
    assert reader.seen == 0
    reader.unpacked.pop()(None)
    await turns()
    assert reader.seen == 2


async def test_what_cannot_be_read_for_now_is_read_after_a_pause() -> None:
    for error in (OutOfFiles("too many files are open"), packed()):
        reader = Reader()
        reader.raises = error
        reader.publish()
        for unpacked in reader.unpacked:
            unpacked(RequestError(ErrorKind.PARTITION_OFFLINE, "not now"))
        reader.follower.advance()
        assert (reader.seen, reader.owner.partition.offline.reason) == (0, None)
        reader.clock.advance(ms=1_000)
        assert reader.seen == 1


async def test_log_that_cannot_be_read_takes_its_partition_offline() -> None:
    reader = Reader()
    reader.raises = StorageFailure("the disk is gone")
    reader.publish()
    assert reader.owner.partition.offline.reason == "the disk is gone"
    reader.clock.advance(seconds=60)
    assert reader.seen == 0


async def test_another_opening_of_the_log_is_followed_and_the_first_is_not() -> None:
    reader = Reader()
    first, second = reader.owner, Owner()
    reader.follower.follow(second.partition)
    reader.publish()
    assert reader.seen == 0
    reader.owner = second
    reader.publish()
    assert reader.seen == 1
    await turns()
    reader.follower.stop()
    reader.owner = first
    reader.publish()
    reader.owner = second
    reader.publish()
    await turns()
    assert reader.seen == 1


async def test_deadlines_are_decided_on_at_once_or_after_the_work_of_others_and_not_after_the_end() -> None:
    reader = Reader()
    reader.follower.expire()
    assert reader.expired == 1
    reader.publish(2)
    reader.follower.expire()
    assert (reader.seen, reader.expired) == (1, 1)
    await turns()
    assert (reader.seen, reader.expired) == (2, 2)
    reader.publish(2)
    reader.follower.expire()
    reader.follower.stop()
    reader.follower.expire()
    await turns()
    assert (reader.seen, reader.expired) == (3, 2)


async def test_scan_that_waited_until_its_log_failed_reads_nothing() -> None:
    reader = Reader()
    reader.publish(2)
    reader.owner.partition.go_offline(StorageFailure("the disk is gone"))
    await turns()
    assert (reader.seen, reader.bugs) == (1, [])
