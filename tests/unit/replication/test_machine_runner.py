"""The runner of a state machine: decided, appended, applied, and answered only when it is safe."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from conveyor.kernel.errors import ErrorKind, InconsistentState, RequestError, StorageFailure
from conveyor.kernel.ids import LeaderEpoch, NodeId, ProducerIdentity
from conveyor.kernel.state_machine import Command, LogRecord, Outcome, Reply, StateMachine, Token
from conveyor.records.record import encode_batch
from conveyor.replication.machine_runner import MachineRunner, Withdraw, replay
from conveyor.replication.replica_progress import ReplicaReport
from conveyor.replication.roles import Leader
from conveyor.settings.tree import TopicSettings
from conveyor.testing import ManualClock, MemoryDisk
from tests.unit.log.logs import NOW_MS, append, open_topic_log
from tests.unit.replication.parts import Owner, led

WAIT_MS = 1000


class Order(Command[object], frozen=True):
    text: str

    @property
    def is_repeatable(self) -> bool:
        return not self.text.startswith("once")


class Counter:
    """Counts by name. `add NAME` and `once NAME` count one more; `get NAME` tells; `wait NAME` is told when the count
    next rises, or `gave up` after a second; `large NAME` writes more than a batch may hold; `peek NAME` tells at once.
    """

    def __init__(self) -> None:
        self.counts: dict[bytes, int] = {}
        self.waiting: dict[Token, tuple[bytes, int]] = {}
        self.applied: list[LogRecord] = []

    def handle(self, command: Order, token: Token, now_ms: int) -> Outcome:
        action, _, text = command.text.partition(" ")
        name = text.encode()
        assert action != "crash", "a bug"
        if action == "wait":
            self.waiting[token] = (name, now_ms + WAIT_MS)
            return Outcome()
        if action in ("get", "peek"):
            return Outcome(replies=(Reply(token, self.counts.get(name, 0)),), at_once=action == "peek")
        count = self.counts.get(name, 0) + 1
        told = [each for each, (wanted, _) in self.waiting.items() if wanted == name]
        for each in told:
            del self.waiting[each]
        value = b"%d" % count if action in ("add", "once") else bytes(10_000)
        return Outcome((LogRecord(name, value),), tuple(Reply(each, count) for each in (token, *told)))

    def expire(self, now_ms: int) -> Outcome:
        due = [token for token, (_, deadline_ms) in self.waiting.items() if deadline_ms <= now_ms]
        for token in due:
            del self.waiting[token]
        return Outcome(replies=tuple(Reply(token, "gave up") for token in due))

    def apply(self, record: LogRecord) -> None:
        self.applied.append(record)
        assert record.key is not None
        assert record.value is not None
        self.counts[record.key] = int(record.value)

    def resolve(self, producer: ProducerIdentity, commits: bool, now_ms: int) -> None:
        """Nothing to do."""

    def loaded(self, now_ms: int) -> None:
        """Nothing to do."""

    def clock_set(self, by_ms: int) -> None:
        self.waiting = {token: (name, deadline_ms + by_ms) for token, (name, deadline_ms) in self.waiting.items()}

    def next_deadline_ms(self) -> int | None:
        return min((deadline_ms for _, deadline_ms in self.waiting.values()), default=None)


class Stage:
    """A counter on a partition in memory, and the answers that its callers got."""

    def __init__(self, topic: TopicSettings | None = None) -> None:
        self.clock = ManualClock()
        self.owner = Owner(topic)
        self.machine = Counter()
        port: StateMachine[Order] = self.machine
        self.holds_lease = True
        self.runner = MachineRunner(self.owner.partition, port, self.clock, holds_lease=lambda: self.holds_lease)
        self.answers: list[tuple[str, object]] = []

    def submit(self, command: str) -> Withdraw:
        return self.runner.submit(Order(command), self.respond_to(command))

    def respond_to(self, command: str) -> Callable[[object], None]:
        def respond(value: object) -> None:
            self.answers.append((command, value.kind if isinstance(value, RequestError) else value))

        return respond


def test_reply_waits_until_its_records_are_safe() -> None:
    stage = Stage()
    stage.submit("add a")
    assert (stage.answers, stage.machine.counts) == ([], {b"a": 1})
    stage.owner.partition.write()
    assert stage.answers == []
    stage.owner.flush()
    assert stage.answers == [("add a", 1)]


def test_reply_without_records_waits_for_what_it_has_seen() -> None:
    stage = Stage()
    stage.submit("add a")
    stage.submit("get a")
    assert stage.answers == []
    stage.owner.settle()
    assert stage.answers == [("add a", 1), ("get a", 1)]


def test_reply_is_given_at_once_when_all_is_safe() -> None:
    stage = Stage()
    stage.submit("get a")
    assert stage.answers == [("get a", 0)]


def test_reply_at_once_needs_a_broker_that_surely_leads() -> None:
    stage = Stage()
    stage.submit("add a")
    stage.submit("peek a")
    assert stage.answers == [("peek a", 1)]
    stage.holds_lease = False
    stage.submit("peek a")
    assert stage.answers[1:] == [("peek a", ErrorKind.COORDINATOR_NOT_AVAILABLE)]
    stage.owner.settle()
    assert stage.answers[2:] == [("add a", 1)]


def test_commands_of_one_turn_see_each_other() -> None:
    stage = Stage()
    for _ in range(3):
        stage.submit("add a")
    stage.owner.settle()
    assert stage.answers == [("add a", 1), ("add a", 2), ("add a", 3)]


def test_caller_that_waits_is_told_by_a_later_outcome() -> None:
    stage = Stage()
    stage.submit("wait a")
    stage.submit("add b")
    stage.submit("add a")
    stage.owner.settle()
    assert sorted(stage.answers, key=str) == [("add a", 1), ("add b", 1), ("wait a", 1)]


def test_alarm_rings_at_the_deadline() -> None:
    stage = Stage()
    stage.submit("wait a")
    stage.clock.advance(ms=WAIT_MS - 1)
    assert stage.answers == []
    stage.clock.advance(ms=1)
    assert stage.answers == [("wait a", "gave up")]
    assert stage.machine.waiting == {}


@pytest.mark.parametrize("by_seconds", [3600, -3600])
def test_alarm_rings_when_it_would_have_if_the_wall_clock_was_not_set(by_seconds: int) -> None:
    stage = Stage()
    stage.submit("wait a")
    stage.clock.set_wall_clock(by_seconds=by_seconds)
    stage.clock.advance(ms=WAIT_MS - 1)
    assert stage.answers == []
    stage.clock.advance(ms=1)
    assert stage.answers == [("wait a", "gave up")]


def test_runner_that_was_stopped_does_not_follow_the_clock() -> None:
    stage = Stage()
    stage.submit("wait a")
    waiting = stage.machine.waiting
    stage.runner.stop()
    stage.clock.set_wall_clock(by_seconds=3600)
    assert stage.machine.waiting is waiting


def test_alarms_follow_the_next_deadline() -> None:
    stage = Stage()
    stage.submit("wait a")
    stage.clock.advance(ms=300)
    stage.submit("wait b")
    stage.submit("add a")
    stage.owner.settle()
    stage.clock.advance(ms=WAIT_MS - 1)
    assert ("wait b", "gave up") not in stage.answers
    stage.clock.advance(ms=1)
    assert stage.answers[-1] == ("wait b", "gave up")


def test_forgotten_caller_is_not_told() -> None:
    stage = Stage()
    stage.submit("add a")()
    stage.owner.settle()
    assert stage.answers == []
    assert stage.machine.counts == {b"a": 1}


def test_records_are_applied_live_as_they_are_replayed() -> None:
    stage = Stage()
    stage.submit("add a")
    stage.clock.advance(ms=5)
    stage.submit("add a")
    stage.owner.partition.write()
    again = Counter()
    replay(open_topic_log(stage.owner.disk), again)
    assert again.applied == stage.machine.applied
    assert [record.timestamp_ms for record in again.applied] == [NOW_MS, NOW_MS + 5]


@pytest.mark.parametrize("operation", ["append", "sync"])
def test_failing_disk_answers_everybody(operation: str) -> None:
    stage = Stage()
    stage.submit("add a")
    stage.owner.disk.faults.fail(operation)
    stage.owner.settle()
    assert stage.answers == [("add a", ErrorKind.COORDINATOR_NOT_AVAILABLE)]


@pytest.mark.parametrize("command", ["add a", "get a"])
def test_command_to_an_offline_partition_is_answered_at_once(command: str) -> None:
    stage = Stage()
    stage.submit("add b")
    stage.submit("wait b")
    stage.owner.partition.go_offline(StorageFailure("the reason"))
    stage.answers.clear()
    stage.submit(command)
    assert (command, ErrorKind.COORDINATOR_NOT_AVAILABLE) in stage.answers


def test_append_that_is_refused_changes_nothing_and_answers_everybody() -> None:
    stage = Stage(TopicSettings(max_message_bytes=1000))
    stage.submit("wait b")
    stage.submit("large a")
    unavailable = ErrorKind.COORDINATOR_NOT_AVAILABLE
    assert stage.answers == [("wait b", unavailable), ("large a", unavailable)]
    assert stage.machine.counts == {}


def test_replicas_are_asked_for_before_the_machine_decides() -> None:
    stage = Stage(TopicSettings(min_insync_replicas=2))
    stage.submit("add a")
    assert (stage.answers, stage.machine.counts) == ([("add a", ErrorKind.NOT_ENOUGH_REPLICAS)], {})
    assert stage.owner.partition.offline.reason is None


def test_callers_are_answered_when_the_isr_shrinks_and_the_decision_stands() -> None:
    """As the companion of a topic with `min.insync.replicas`, whose own settings have the default."""
    stage = Stage()
    partition, one, two = stage.owner.partition, NodeId(1), NodeId(2)
    role = Leader(leader=one, epoch=LeaderEpoch(partition.term.epoch + 1), isr=(one, two), min_isr=2)
    partition.assume(role)
    stage.submit("wait b")
    stage.submit("add a")
    stage.owner.settle()
    assert stage.answers == []
    partition.assume(replace(role, isr=(one,), partition_epoch=1))
    assert stage.answers == [("add a", ErrorKind.NOT_ENOUGH_REPLICAS_AFTER_APPEND)]
    stage.submit("peek a")
    assert stage.answers[1:] == [("peek a", ErrorKind.NOT_ENOUGH_REPLICAS)]
    led(partition).replicas.reported(two, ReplicaReport(1, 1))
    partition.assume(replace(role, partition_epoch=2))
    stage.submit("get a")
    stage.clock.advance(ms=2 * WAIT_MS)
    assert stage.answers[2:] == [("get a", 1), ("wait b", "gave up")]


def test_bug_of_the_machine_is_told_from_a_bug_of_the_request() -> None:
    with pytest.raises(InconsistentState, match="t-0: Order"):
        Stage().submit("crash now")


def test_what_is_due_waits_for_replicas() -> None:
    stage = Stage()
    stage.submit("wait a")
    stage.owner.partition.log.use(TopicSettings(min_insync_replicas=2))
    stage.clock.advance(ms=WAIT_MS)
    assert stage.answers == []
    stage.owner.partition.log.use(TopicSettings())
    stage.clock.advance(ms=WAIT_MS)
    assert stage.answers == [("wait a", "gave up")]


def test_what_is_due_waits_until_the_broker_is_sure_that_it_leads() -> None:
    stage = Stage()
    stage.submit("wait a")
    stage.owner.holds_lease = False
    role = led(stage.owner.partition).role
    stage.owner.partition.assume(replace(role, epoch=LeaderEpoch(role.epoch + 1), replicas=(*role.isr, NodeId(9))))
    stage.clock.advance(ms=WAIT_MS)
    assert stage.answers == []
    stage.owner.holds_lease = True
    stage.clock.advance(ms=WAIT_MS)
    assert stage.answers == [("wait a", "gave up")]


def test_leader_that_may_not_append_decides_nothing() -> None:
    """A decision that cannot be written would take the partition offline, and leases with it."""
    stage = Stage()
    role = stage.owner.partition.term.role
    assert isinstance(role, Leader)
    stage.owner.partition.assume(replace(role, epoch=LeaderEpoch(role.epoch + 1), is_read_only=True))
    stage.submit("add a")
    assert (stage.answers, stage.machine.counts) == ([("add a", ErrorKind.COORDINATOR_NOT_AVAILABLE)], {})
    assert stage.owner.partition.offline.reason is None


def test_broker_that_leads_no_more_says_so_and_keeps_its_partition() -> None:
    stage = Stage()
    stage.submit("wait b")
    stage.submit("add a")
    stage.owner.partition.assume(led(stage.owner.partition).role.resigned())
    assert stage.answers == [("add a", ErrorKind.NOT_LEADER)]
    stage.submit("get a")
    stage.runner.stop()
    not_leader = ErrorKind.NOT_LEADER
    assert stage.answers[1:] == [("get a", not_leader), ("wait b", not_leader)]
    assert stage.owner.partition.offline.reason is None


def test_a_decision_that_the_next_leader_may_have_is_not_left_to_it() -> None:
    """A caller asks the next leader after NOT_LEADER; a command that was refused may go there."""
    stage = Stage()
    stage.submit("once a")
    stage.submit("add a")
    stage.owner.partition.assume(led(stage.owner.partition).role.resigned())
    stage.submit("once b")
    not_leader = ErrorKind.NOT_LEADER
    assert stage.answers == [("once a", ErrorKind.REQUEST_TIMED_OUT), ("add a", not_leader), ("once b", not_leader)]


def test_offline_partition_lets_alarms_pass() -> None:
    stage = Stage()
    stage.submit("wait a")
    stage.owner.partition.go_offline(StorageFailure("the reason"))
    stage.clock.advance(ms=WAIT_MS)
    assert stage.answers == []


def test_runner_that_was_stopped_accepts_nothing_although_its_partition_is_led() -> None:
    """Another runner may have the partition by now."""
    stage = Stage()
    stage.runner.stop()
    stage.submit("add a")
    assert (stage.answers, stage.machine.counts) == ([("add a", ErrorKind.COORDINATOR_NOT_AVAILABLE)], {})
    stage.runner.expire()
    assert not stage.runner._alarm.is_set


def test_stop_answers_everybody_and_sets_no_alarm() -> None:
    stage = Stage()
    stage.submit("wait a")
    stage.submit("add b")
    stage.runner.stop()
    stage.clock.advance(ms=WAIT_MS)
    stage.owner.settle()
    unavailable = ErrorKind.COORDINATOR_NOT_AVAILABLE
    assert stage.answers == [("wait a", unavailable), ("add b", unavailable)]


def test_replay_reads_every_record_of_every_segment_once() -> None:
    log = open_topic_log(MemoryDisk(), TopicSettings(segment_bytes=200))
    for number in range(20):
        records = [(NOW_MS, b"a", b"%d" % (2 * number), ()), (NOW_MS, b"b", b"%d" % (2 * number + 1), ())]
        append(log, encode_batch(records))
    machine = Counter()
    replay(log, machine)
    assert [record.value for record in machine.applied] == [b"%d" % number for number in range(40)]
    assert machine.counts == {b"a": 38, b"b": 39}


def test_replay_of_nothing_applies_nothing() -> None:
    machine = Counter()
    replay(open_topic_log(MemoryDisk()), machine)
    assert machine.applied == []
