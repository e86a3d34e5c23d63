"""Keeping a machine up to date with a log."""

from collections import deque
from collections.abc import Callable

from conveyor.broker.coordinators.log_follower import LogFollower
from conveyor.broker.coordinators.machine_services import Turns
from conveyor.kernel.errors import ErrorKind, OutOfFiles, RequestError, StorageFailure
from conveyor.kernel.ports import FileSlice
from conveyor.log.record_source import StillPacked
from conveyor.records.batch import read_header
from conveyor.records.checked_batch import own_batch
from conveyor.replication.machine_runner import Respond
from conveyor.testing import ManualClock, MemoryDisk
from tests.unit.log.logs import batch
from tests.unit.replication.parts import Owner


class HandTurns(Turns):
    """Later turns of the event loop, which the test takes."""

    def __init__(self) -> None:
        self.soon: deque[Callable[[], None]] = deque()

    def call_soon(self, work: Callable[[], None]) -> None:
        self.soon.append(work)


class Reader:
    """Scans one record at a time. raises: the failure of the next scan."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.owner = Owner()
        self.turns = HandTurns()
        self.seen = 0
        self.looked = 0
        self.raises: Exception | None = None
        self.unpacked: list[Respond[None]] = []
        self.follower = LogFollower(self.owner.partition, self, self.clock, self.turns)
        self.follower.follow(self.owner.partition)

    def scan(self, limit_offset: int) -> bool:
        error, self.raises = self.raises, None
        if error is not None:
            raise error
        self.seen = min(limit_offset, self.seen + 1)
        return self.seen == limit_offset

    def unpack(self, packed: StillPacked, unpacked: Respond[None]) -> None:
        self.unpacked.append(unpacked)

    def scanned(self) -> None:
        self.looked += 1

    def publish(self, count: int = 1) -> None:
        for _ in range(count):
            self.owner.partition.append(own_batch(batch(b"x")), self.clock.now_ms())
        self.owner.settle()


def packed() -> StillPacked:
    disk = MemoryDisk()
    return StillPacked(read_header(batch(b"x")), FileSlice(disk.open("packed", create=True), 0, 0))


def test_what_is_new_is_looked_through_a_part_in_each_tick() -> None:
    reader = Reader()
    reader.publish(3)
    seen = [reader.seen]
    while reader.turns.soon:
        reader.turns.soon.popleft()()
        seen.append(reader.seen)
    assert (seen, reader.looked) == ([1, 2, 3], 4)
    reader.publish()
    assert reader.seen == 4


def test_batch_that_takes_long_to_unpack_is_waited_for() -> None:
    reader = Reader()
    reader.raises = packed()
    reader.publish()
    reader.publish()
    assert reader.seen == 0
    reader.unpacked.pop()(None)
    while reader.turns.soon:
        reader.turns.soon.popleft()()
    assert reader.seen == 2


def test_what_cannot_be_read_for_now_is_read_after_a_pause() -> None:
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


def test_log_that_cannot_be_read_takes_its_partition_offline() -> None:
    reader = Reader()
    reader.raises = StorageFailure("the disk is gone")
    reader.publish()
    assert reader.owner.partition.offline.reason == "the disk is gone"
    reader.clock.advance(seconds=60)
    assert reader.seen == 0


def test_another_opening_of_the_log_is_followed_and_the_first_is_not() -> None:
    reader = Reader()
    first, second = reader.owner, Owner()
    reader.follower.follow(second.partition)
    reader.publish()
    assert reader.seen == 0
    reader.owner = second
    reader.publish()
    assert reader.seen == 1
    reader.follower.stop()
    reader.owner = first
    reader.publish()
    reader.owner = second
    reader.publish()
    assert reader.seen == 1
