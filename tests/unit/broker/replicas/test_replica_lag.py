"""When an in-sync replica lags: by time, by messages, and when it is not connected."""

from conveyor.broker.replicas.replica_lag import LagLimits, ReplicaLag
from conveyor.kernel.ids import LeaderEpoch, NodeId
from conveyor.replication.replica_progress import ReplicaReport
from conveyor.replication.roles import Leader
from tests.unit.log.logs import NOW_MS
from tests.unit.replication.parts import EPOCH, NODE, Owner, batch, led

TWO = NodeId(2)
NEXT = LeaderEpoch(EPOCH + 1)
BY_TIME = LagLimits(time_ms=10_000, messages=0)
BY_MESSAGES = LagLimits(time_ms=1 << 40, messages=2)


class Checks:
    """A leader with one follower, checked at times in seconds."""

    def __init__(self, limits: LagLimits = BY_TIME) -> None:
        self.owner, self.lag, self.limits = Owner(), ReplicaLag(), limits
        self.lead(NEXT)

    def lead(self, epoch: LeaderEpoch) -> None:
        self.owner.partition.assume(Leader(leader=NODE, epoch=epoch, isr=(NODE, TWO)))

    def append(self, count: int = 1) -> None:
        for _ in range(count):
            self.owner.partition.append(batch(b"a"), NOW_MS)

    def report(self, offset: int) -> None:
        led(self.owner.partition).replicas.reported(TWO, ReplicaReport(offset, offset))

    def lags(self, at_s: float, *, is_connected: bool = True) -> bool:
        return self.lag.lags(self.owner.partition, TWO, int(at_s * 1000), self.limits, is_connected=is_connected)


def test_a_replica_that_never_catches_up_gets_the_full_time() -> None:
    checks = Checks()
    checks.append()
    assert [checks.lags(at_s) for at_s in (100, 105, 110, 110.1)] == [False, False, False, True]


def test_an_idle_replica_does_not_lag_with_the_first_record() -> None:
    checks = Checks()
    checks.append()
    checks.report(1)
    assert not any(checks.lags(at_s) for at_s in (0, 1_000, 2_000))
    checks.append()
    assert [checks.lags(at_s) for at_s in (2_002, 2_010, 2_010.1)] == [False, False, True]


def test_a_replica_that_is_always_a_little_behind_does_not_lag() -> None:
    checks = Checks()
    for number in range(1, 50):
        checks.append()
        checks.report(number - 1)
        assert not checks.lags(number * 2.5)


def test_a_replica_that_falls_further_behind_lags() -> None:
    checks = Checks()
    found = []
    for number in range(1, 20):
        checks.append(10)
        checks.report(number)
        found.append(checks.lags(number * 2.5))
    assert found[-1]


def test_a_replica_that_joins_again_gets_the_full_time() -> None:
    checks = Checks()
    checks.append(2)
    assert [checks.lags(at_s) for at_s in (0, 10.1)] == [False, True]
    checks.report(2)
    checks.lag.joins(checks.owner.partition, TWO)
    checks.append()
    assert [checks.lags(at_s) for at_s in (20, 30, 30.1)] == [False, False, True]


def test_a_replica_that_is_not_connected_lags_although_it_has_all_records() -> None:
    checks = Checks()
    checks.append()
    checks.report(1)
    assert not checks.lags(0)
    assert [checks.lags(at_s, is_connected=False) for at_s in (5, 10, 10.1)] == [False, False, True]


def test_a_new_epoch_begins_the_time_again() -> None:
    checks = Checks()
    checks.append()
    assert [checks.lags(at_s) for at_s in (0, 11)] == [False, True]
    checks.lead(LeaderEpoch(NEXT + 1))
    assert [checks.lags(at_s) for at_s in (12, 22, 22.1)] == [False, False, True]


def test_too_many_missing_messages_count_after_a_second() -> None:
    checks = Checks(BY_MESSAGES)
    checks.append(3)
    checks.report(0)
    assert [checks.lags(at_s) for at_s in (0, 0.9)] == [False, False]
    checks.report(1)
    assert not checks.lags(1)
    checks.append()
    assert [checks.lags(at_s) for at_s in (2, 2.9, 3)] == [False, False, True]
