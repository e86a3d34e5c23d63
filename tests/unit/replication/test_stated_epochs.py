"""A machine's state says in its log which records of another log it is about."""

from random import Random

from conveyor.kernel.ids import LeaderEpoch
from conveyor.kernel.state_machine import LogRecord
from conveyor.log.batch_reading import batches_between
from conveyor.log.leader_epochs import LeaderEpochs
from conveyor.log.log import Log
from conveyor.records.checked_batch import own_batch
from conveyor.records.record import Header, Record, decode_records, encode_batch
from conveyor.replication.machine_runner import MachineRunner, replay
from conveyor.replication.stated_epochs import epochs_header, read_epochs, stated_end
from conveyor.testing import ManualClock, MemoryDisk
from tests.unit.log.logs import NOW_MS, open_topic_log
from tests.unit.replication.parts import Owner, leader
from tests.unit.replication.test_machine_runner import Counter, Order

ENTRIES = [(0, 0), (3, 10), (4, 25)]


def append(log: Log, epoch: int, value: bytes, *headers: Header) -> None:
    log.append(own_batch(encode_batch([(NOW_MS, b"a", value, headers)])), epoch, NOW_MS)
    log.write()


def records(log: Log) -> list[Record]:
    batches = batches_between(log, 0, log.log_end_offset)
    return [record for _, _, content in batches for record in decode_records(content)]


def log_with(*epochs: tuple[int, int]) -> Log:
    """Return a log with records of these leader epochs: so many of each."""
    log = open_topic_log(MemoryDisk())
    for epoch, count in epochs:
        log.copying.begin_epoch(epoch)
        for _ in range(count):
            append(log, epoch, b"1")
    return log


class Stage:
    """A counter whose state is about the records of a log."""

    def __init__(self) -> None:
        self.owner = Owner()
        self.described = log_with((0, 10))
        self.runner = MachineRunner(self.owner.partition, Counter(), ManualClock(), described=self.described)

    def submit(self, text: str) -> None:
        self.runner.submit(Order(text), lambda _: None)

    def stated(self) -> list[object]:
        """Return the epochs that each stored record states."""
        self.owner.settle()
        return [read_epochs(record.headers) for record in records(self.owner.partition.log)]


def test_form_of_the_header() -> None:
    name, value = epochs_header(LeaderEpochs([(1, 2), (3, 1 << 40)]))
    assert (name, value) == ("leader-epochs", bytes.fromhex("00000001 0000000000000002 00000003 0000010000000000"))
    assert read_epochs([("other", b""), (name, value)]) == [(1, 2), (3, 1 << 40)]
    assert read_epochs([("other", b"")]) is None


def test_newest_epochs_are_stated_if_there_are_many() -> None:
    many = [(number, number) for number in range(5_000)]
    assert read_epochs([epochs_header(LeaderEpochs(many))]) == many[-1_000:]


def test_epochs_are_stated_once_in_each_epoch_of_either_log() -> None:
    stage = Stage()
    for _ in range(3):
        stage.submit("add a")
    stage.described.copying.begin_epoch(2)
    for _ in range(2):
        stage.submit("add a")
    stage.owner.partition.assume(leader(LeaderEpoch(7)))
    stage.submit("add a")
    first, second = [(0, 0)], [(0, 0), (2, 10)]
    assert stage.stated() == [first, None, None, second, None, second]


def test_each_snapshot_states_the_epochs() -> None:
    stage = Stage()
    stage.submit("add a")
    assert stage.runner.append_applied([LogRecord(b"a", b"1"), LogRecord(b"b", b"0")]) == 1
    stage.submit("add a")
    assert stage.stated() == [[(0, 0)], [(0, 0)], None, None]


def test_runner_without_another_log_states_nothing() -> None:
    owner = Owner()
    MachineRunner(owner.partition, Counter(), ManualClock()).submit(Order("add a"), lambda _: None)
    owner.settle()
    assert [record.headers for record in records(owner.partition.log)] == [()]


def test_replay_returns_the_epochs_stated_last() -> None:
    stage = Stage()
    stage.submit("add a")
    stage.described.copying.begin_epoch(2)
    for _ in range(2):
        stage.submit("add a")
    stage.owner.settle()
    assert replay(stage.owner.partition.log, Counter()) == [(0, 0), (2, 10)]
    assert replay(open_topic_log(MemoryDisk()), Counter()) == ()


def test_state_is_about_what_the_log_still_has() -> None:
    log = log_with((0, 10), (5, 3))
    assert stated_end([(0, 0)], log) == 10
    assert stated_end([(0, 0), (5, 10)], log) == 13
    assert stated_end([(0, 0), (4, 6)], log) == 6
    assert stated_end((), log) == 0


def test_state_stated_during_a_trim_is_about_what_a_power_failure_leaves() -> None:
    """The failure takes the new log start, and all records of the last epoch."""
    disk = MemoryDisk()
    log = open_topic_log(disk)
    log.copying.begin_epoch(0)
    for epoch in (0, 5):
        for _ in range(10):
            append(log, epoch, b"1")
        if epoch == 0:
            log.flushes.begin().run()
    trim = log.start.trim(15)
    stated = read_epochs([epochs_header(log.leader_epochs)]) or ()
    again = open_topic_log(disk.power_cut(Random(0)))
    again.copying.begin_epoch(6)
    assert (again.log_start_offset, again.log_end_offset) == (0, 10)
    assert stated_end(stated, again) == 10
    trim.run()
    log.start.complete_trim()
    assert log.leader_epochs.entries == ((5, 15),)
