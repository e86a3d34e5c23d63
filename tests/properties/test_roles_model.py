"""A partition is given other roles at any moment, between appends, writes and flushes that are under way.

PROPERTY_EXAMPLES in the environment says how many such stories are
told; 400 by default.
"""

import os
from functools import partial

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from conveyor.kernel.errors import ErrorKind, NotLeader, RequestError, StorageFailure
from conveyor.kernel.ids import LeaderEpoch, NodeId
from conveyor.log.flush import FlushJob
from conveyor.replication.reads import read_available
from conveyor.replication.roles import Follower, Leader
from conveyor.settings.tree import TopicSettings
from tests.unit.log.logs import NOW_MS
from tests.unit.replication.parts import NODE, Owner, batch, leader, led

EXAMPLES = int(os.environ.get("PROPERTY_EXAMPLES", "400"))
pytestmark = pytest.mark.timeout(max(600, EXAMPLES))
KINDS = st.sampled_from(["written", "committed"])
OTHER = NodeId(2)


class Asked:
    """A waiter for an offset, and its answers."""

    def __init__(self, offset: int, kind: str) -> None:
        self.offset = offset
        self.kind = kind
        self.answers: list[RequestError | None] = []


class RolesAreExchanged(RuleBasedStateMachine):
    """A partition under test, and what is known of it."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[Asked] = []
        self.watched: list[int] = []
        self.watching = 0
        self.job: FlushJob | None = None
        self.highest = self.epoch = 0
        self.may_append = self.leads = self.is_online = True

    @initialize(policy=st.sampled_from(["ack", "os"]))
    def begin(self, policy: str) -> None:
        self.owner = Owner(TopicSettings(flush_policy=policy))
        self.partition = self.owner.partition
        self.highest, self.epoch = self.partition.term.high_watermark, self.partition.term.epoch

    # What clients do.

    @rule(backs=st.lists(st.integers(0, 3), max_size=3), kind=KINDS)
    def append(self, backs: list[int], kind: str) -> None:
        """And wait for the new record, and for some before it."""
        if self.is_online and self.may_append:
            info = self.partition.append(batch(b"a"), NOW_MS)
            assert info.last_offset + 1 == self.partition.log.log_end_offset
        else:
            with pytest.raises(RequestError) as refused:
                self.partition.append(batch(b"a"), NOW_MS)
            assert refused.value.kind is self.expected_refusal()
        for back in backs:
            self.wait(back, kind)

    @rule(back=st.integers(0, 3), kind=KINDS)
    def wait_again(self, back: int, kind: str) -> None:
        self.wait(back, kind)

    def wait(self, back: int, kind: str) -> None:
        asked = Asked(max(0, self.partition.log.log_end_offset - back), kind)
        self.asked.append(asked)
        wait = self.partition.term.when_written if kind == "written" else self.partition.term.when_committed
        wait(asked.offset, partial(self.answered, asked))

    @rule()
    def watch(self) -> None:
        self.watching += 1
        number = self.watching
        self.partition.changed.next(lambda _: self.watched.append(number))

    @rule(offset=st.integers(0, 5))
    def read(self, offset: int) -> None:
        if self.is_online and self.leads and offset <= self.partition.log.log_end_offset:
            self.read_now(offset)
        elif not self.is_online or not self.leads:
            with pytest.raises(RequestError) as refused:
                self.read_now(offset)
            assert refused.value.kind is self.expected_refusal()

    def read_now(self, offset: int) -> None:
        self.partition.leading()
        read_available(self.partition, offset, 1000, at_least_one=True)

    # What the disk does.

    @rule()
    def write(self) -> None:
        self.partition.write()

    @rule()
    def begin_flush(self) -> None:
        if self.job is None:
            self.job = self.partition.begin_flush()

    @rule()
    def end_flush(self) -> None:
        if self.job is not None:
            self.job.run()
            job, self.job = self.job, None
            self.partition.complete_flush(job, None)

    @rule(fails=st.sampled_from([False] * 49 + [True]))
    def fail(self, fails: bool) -> None:
        if fails:
            self.partition.go_offline(StorageFailure("the disk has failed"))
            self.is_online = False

    # What the cluster does.

    @rule(
        kind=st.sampled_from(["lead"] * 6 + ["follow"] * 3 + ["resign"] * 2 + ["read-only", "older"]),
        rise=st.integers(1, 3),
    )
    def change_role(self, kind: str, rise: int) -> None:
        if kind == "resign":
            return self.resign()
        if kind == "older":
            with pytest.raises(AssertionError):
                self.partition.assume(leader(LeaderEpoch(self.epoch - rise)))
            return
        self.epoch += rise
        epoch, is_read_only = LeaderEpoch(self.epoch), kind == "read-only"
        if kind == "follow":
            self.exchange(Follower(leader=OTHER, epoch=epoch), leads=False, may_append=False)
        else:
            role = Leader(leader=NODE, epoch=epoch, isr=(NODE,), is_read_only=is_read_only)
            self.exchange(role, leads=True, may_append=not is_read_only)

    def resign(self) -> None:
        if self.leads:
            self.partition.assume(led(self.partition).role.resigned())
            self.leads = self.may_append = False
            assert not self.waiting()

    def exchange(self, role: Leader | Follower, *, leads: bool, may_append: bool) -> None:
        self.leads, self.may_append = leads, may_append
        self.partition.assume(role)
        if not leads:
            assert not self.waiting()
        if self.is_online:
            assert len(self.watched) == self.watching

    # What holds at all times.

    @invariant()
    def the_high_watermark_never_goes_back(self) -> None:
        if hasattr(self, "partition"):
            assert self.partition.term.high_watermark >= self.highest
            self.highest = self.partition.term.high_watermark
            policy = self.partition.log.topic.flush_policy
            durable = (
                self.partition.log.flushes.flushed_offset if policy == "ack" else self.partition.log.written_offset
            )
            assert self.highest <= durable

    @invariant()
    def epochs_never_fall(self) -> None:
        if hasattr(self, "partition"):
            assert self.partition.term.epoch == self.epoch
            entries = self.partition.log.leader_epochs.entries
            assert list(entries) == sorted(set(entries))

    @invariant()
    def a_waiter_is_called_at_most_once(self) -> None:
        assert all(len(each.answers) <= 1 for each in self.asked)
        assert len(self.watched) == len(set(self.watched))

    @invariant()
    def a_waiter_waits_only_for_an_offset_that_is_not_reached(self) -> None:
        for each in self.waiting():
            assert self.leads
            assert self.is_online
            log = self.partition.log
            assert each.offset > (log.written_offset if each.kind == "written" else self.partition.term.high_watermark)

    def answered(self, asked: Asked, error: RequestError | None) -> None:
        asked.answers.append(error)
        if error is None:
            assert self.leads, "acknowledged by a broker that has resigned"
            log = self.partition.log
            assert asked.offset <= (
                log.written_offset if asked.kind == "written" else self.partition.term.high_watermark
            )
        elif isinstance(error, NotLeader):
            assert error.leader in (OTHER, None)
            assert error.leader_epoch == self.epoch
        else:
            assert error.kind is ErrorKind.PARTITION_OFFLINE

    def waiting(self) -> list[Asked]:
        return [each for each in self.asked if not each.answers]

    def expected_refusal(self) -> ErrorKind:
        if not self.is_online:
            return ErrorKind.PARTITION_OFFLINE
        return ErrorKind.DISK_FULL if self.leads else ErrorKind.NOT_LEADER


TestRolesAreExchanged = RolesAreExchanged.TestCase
TestRolesAreExchanged.settings = settings(
    max_examples=EXAMPLES,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
