"""The runner of a machine that takes part in transactions: its records wait for the marker, live and during replay."""

from random import Random

import pytest

from conveyor.kernel.errors import ErrorKind, InconsistentState, RequestError
from conveyor.kernel.ids import NO_SEQUENCE, LeaderEpoch, ProducerEpoch, ProducerId, ProducerIdentity
from conveyor.kernel.state_machine import Command, LogRecord, Outcome, Reply, StateMachine, Token
from conveyor.log.batch_reading import batches_between
from conveyor.log.compaction.key_compaction import compact
from conveyor.records.batch import is_transactional
from conveyor.records.transaction_marker import TransactionMarker
from conveyor.replication.machine_runner import MachineRunner, replay
from conveyor.replication.roles import Follower
from conveyor.settings.tree import TopicSettings
from conveyor.testing import ManualClock
from tests.unit.log.logs import all_below, open_topic_log
from tests.unit.replication.parts import Owner

COMPACTED = TopicSettings(
    cleanup_policy="compact",
    segment_bytes=400,
    min_cleanable_dirty_ratio=0,
    delete_retention_ms=10,
    index_interval_bytes=0,
)


class Put(Command[None], frozen=True, kw_only=True):
    """Set the value of a key, in the transaction of a producer if there is one."""

    key: bytes
    value: bytes
    producer: ProducerIdentity | None = None


class Values:
    """The last committed value of each key."""

    def __init__(self) -> None:
        self.values: dict[bytes, bytes] = {}
        self.pending: dict[ProducerIdentity, list[LogRecord]] = {}
        self.resolved: list[tuple[ProducerIdentity, bool]] = []
        self.resolved_ms: list[int] = []

    def handle(self, command: Put, token: Token, now_ms: int) -> Outcome:
        return Outcome((LogRecord(command.key, command.value),), (Reply(token, "done"),), producer=command.producer)

    def expire(self, now_ms: int) -> Outcome:
        return Outcome()

    def apply(self, record: LogRecord) -> None:
        if record.producer is None:
            self._set(record)
        else:
            self.pending.setdefault(record.producer, []).append(record)

    def resolve(self, producer: ProducerIdentity, commits: bool, now_ms: int) -> None:
        assert producer.producer_id != BUGGY.producer_id, "a bug"
        self.resolved.append((producer, commits))
        self.resolved_ms.append(now_ms)
        for record in self.pending.pop(producer, []):
            if commits:
                self._set(record)

    def loaded(self, now_ms: int) -> None:
        """Nothing to do."""

    def clock_set(self, by_ms: int) -> None:
        """Nothing to do."""

    def next_deadline_ms(self) -> int | None:
        return None

    def _set(self, record: LogRecord) -> None:
        """Keep the newest value, by its number: transactions do not end in the order in which they write."""
        assert record.key is not None
        assert record.value is not None
        if int(record.value) >= int(self.values.get(record.key, b"0")):
            self.values[record.key] = record.value


class Stage:
    """A machine on a partition in memory."""

    def __init__(self, topic: TopicSettings | None = None) -> None:
        self.clock = ManualClock()
        self.owner = Owner(topic)
        self.machine = Values()
        port: StateMachine[Put] = self.machine
        self.runner = MachineRunner(self.owner.partition, port, self.clock)
        self.replies: list[object] = []

    def put(self, value: int, producer: ProducerIdentity | None = None, key: bytes = b"k") -> None:
        self.runner.submit(Put(key=key, value=b"%d" % value, producer=producer), self.replies.append)

    def end(self, producer: ProducerIdentity, *, commits: bool, coordinator_epoch: int = 0, version: int = 1) -> None:
        marker = TransactionMarker(
            producer_id=producer.producer_id,
            producer_epoch=producer.producer_epoch,
            coordinator_epoch=coordinator_epoch,
            commits=commits,
        )
        self.runner.resolve_by_marker(marker, version)

    def replayed(self) -> Values:
        """Return a machine that has read the log."""
        self.settle()
        machine = Values()
        replay(open_topic_log(self.owner.disk, self.owner.partition.log.topic), machine)
        return machine

    def settle(self) -> None:
        if self.owner.partition.log.written_offset < self.owner.partition.log.log_end_offset:
            self.owner.settle()

    def compact(self) -> None:
        self.settle()
        log = self.owner.partition.log
        log.producers.transactions.forget_decided(log.log_end_offset)
        plan = log.compaction.plan(all_below(log.log_end_offset), self.clock.now_ms(), 100)
        if plan is not None:
            result = compact(self.owner.disk, plan)
            job = log.compaction.begin_swap(result)
            assert job is not None
            log.compaction.complete_swap(result, job.run())


def identity(number: int, epoch: int = 0) -> ProducerIdentity:
    return ProducerIdentity(ProducerId(number), ProducerEpoch(epoch))


FIRST, BUGGY = identity(7), identity(666)


@pytest.mark.parametrize("commits", [True, False])
def test_records_count_when_their_transaction_is_committed(commits: bool) -> None:
    stage = Stage()
    stage.put(1)
    stage.put(2, FIRST)
    assert stage.machine.values == stage.replayed().values == {b"k": b"1"}
    assert stage.replies == ["done", "done"], "the caller does not wait for the marker"
    stage.clock.advance(seconds=5)
    stage.end(FIRST, commits=commits)
    assert stage.machine.values == stage.replayed().values == {b"k": b"2" if commits else b"1"}
    assert stage.machine.resolved == stage.replayed().resolved == [(FIRST, commits)]
    assert stage.machine.resolved_ms == stage.replayed().resolved_ms == [stage.clock.now_ms()]


def test_records_are_a_batch_of_the_transaction() -> None:
    stage = Stage()
    stage.put(1, identity(7, 3))
    stage.owner.settle()
    log = stage.owner.partition.log
    [(header, _, _)] = batches_between(log, 0, log.written_offset)
    assert is_transactional(header)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (7, 3, NO_SEQUENCE)
    assert log.producers.has_open(ProducerId(7), ProducerEpoch(3))


def test_a_repeated_marker_resolves_nothing() -> None:
    stage = Stage()
    stage.put(1, FIRST)
    for _ in range(2):
        stage.end(FIRST, commits=True)
    assert stage.machine.resolved == stage.replayed().resolved == [(FIRST, True)]
    assert stage.owner.partition.log.log_end_offset == 2


def test_the_marker_of_an_earlier_coordinator_resolves_nothing() -> None:
    stage = Stage()
    stage.put(1, FIRST)
    stage.end(FIRST, commits=True, coordinator_epoch=5)
    stage.put(2, FIRST)
    with pytest.raises(RequestError) as refused:
        stage.end(FIRST, commits=True, coordinator_epoch=4)
    assert refused.value.kind is ErrorKind.TRANSACTION_COORDINATOR_FENCED
    assert stage.machine.values == {b"k": b"1"}
    assert list(stage.machine.pending) == [FIRST]


def test_a_marker_with_a_newer_epoch_ends_the_transaction_before_it() -> None:
    """As of transaction version 2, and whenever the coordinator aborts."""
    stage = Stage()
    stage.put(1, FIRST)
    stage.end(identity(7, 1), commits=False, version=2)
    assert stage.machine.resolved == stage.replayed().resolved == [(identity(7, 1), False)]
    assert not stage.owner.partition.log.producers.transactions.opened


def test_only_a_leader_appends_markers() -> None:
    stage = Stage()
    stage.put(1, FIRST)
    stage.owner.partition.assume(Follower(leader=None, epoch=LeaderEpoch(4)))
    with pytest.raises(RequestError) as refused:
        stage.end(FIRST, commits=True)
    assert refused.value.kind is ErrorKind.NOT_LEADER
    assert stage.machine.resolved == []
    assert stage.owner.partition.log.log_end_offset == 1


@pytest.mark.parametrize("operation", ["append", "sync"])
def test_a_marker_that_could_not_be_written_is_as_if_it_was_never_sent(operation: str) -> None:
    stage = Stage()
    stage.put(1, FIRST)
    stage.owner.settle()
    stage.owner.disk.faults.fail(operation)
    stage.end(FIRST, commits=True)
    stage.owner.settle()
    assert stage.owner.partition.offline.reason is not None, "so the machine is loaded again"
    with pytest.raises(RequestError):
        stage.end(FIRST, commits=True)


def test_a_bug_of_the_machine_stops_the_broker() -> None:
    with pytest.raises(InconsistentState):
        Stage().end(BUGGY, commits=True)


@pytest.mark.parametrize("seed", range(20))
def test_a_machine_that_is_loaded_knows_what_the_running_one_knows(seed: int) -> None:
    """Also after compaction, which drops replaced and aborted records, and markers that nothing needs any more."""
    random, stage = Random(seed), Stage(COMPACTED)
    for number in range(1, 150):
        producer = identity(random.randrange(3))
        match random.choices(["plain", "transactional", "end", "compact"], [4, 6, 5, 1])[0]:
            case "plain":
                stage.put(number, key=random.choice([b"a", b"b"]))
            case "transactional":
                stage.put(number, producer, key=random.choice([b"a", b"b", b"c"]))
            case "end":
                stage.end(producer, commits=random.random() < 0.5)
            case "compact":
                stage.compact()
                stage.clock.advance(ms=20)
                loaded = stage.replayed()
                assert loaded.values == stage.machine.values
                assert keys(loaded) == keys(stage.machine)
    assert stage.owner.partition.log.compaction.cleaned_offset > 0


def keys(machine: Values) -> dict[ProducerIdentity, list[tuple[bytes | None, bytes | None]]]:
    """Return the pending records of each transaction."""
    return {
        producer: [(record.key, record.value) for record in records] for producer, records in machine.pending.items()
    }
