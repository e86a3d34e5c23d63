"""A group whose members speak both protocols, and which goes from one to the other and back as they come and go.

What must hold: no partition has two readers among those who are members; and a group that is left alone comes to rest
with every partition read. The members of the classic protocol are eager: they give up everything before they join.

`PROPERTY_EXAMPLES` sets how many histories are tried.
"""

import os
from collections import Counter

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from conveyor.groups.classic.embedded_protocol import decode_assignment, encode_assignment
from conveyor.groups.group_commands import DescribeConsumerGroup, DescribeGroup
from conveyor.groups.replies import (
    Alive,
    DescribedConsumerGroup,
    DescribedGroup,
    HeartbeatAnswer,
    Joined,
    JoinRefused,
    Synced,
)
from conveyor.kernel.errors import ErrorKind
from conveyor.kernel.state_machine import Token
from tests.unit.groups.consumers import ConsumerMember, tell_topics
from tests.unit.groups.coordinator import GROUP, REBALANCE_MS, SESSION_MS, Coordinator, kind_of
from tests.unit.groups.migration.test_protocol_change import subscription

EXAMPLES = int(os.environ.get("PROPERTY_EXAMPLES", "150"))
PARTITIONS = 4
ROUNDS = 12


class Old:
    """A member that speaks the classic protocol; `parked`: the answer that it waits for."""

    def __init__(self, coordinator: Coordinator) -> None:
        self.coordinator = coordinator
        self.member_id = ""
        self.generation_id = -1
        self.owned: set[int] = set()
        self.parked: Token | None = None

    def lose(self, *, forget_id: bool = True) -> None:
        self.owned, self.generation_id, self.parked = set(), -1, None
        if forget_id:
            self.member_id = ""

    def step(self) -> None:
        """Look for an answer, else give a sign of life, else join."""
        if self.parked is not None:
            return self.collect()
        if self.generation_id < 0:
            return self.join()
        reply = self.coordinator.heartbeat(self.member_id, self.generation_id)
        if reply != Alive():
            self.refused(kind_of(reply))

    def join(self) -> None:
        self.owned = set()
        protocols = (("range", subscription()),)
        self.parked = self.coordinator.start_join(self.member_id, protocols=protocols, requires_known_id=True)
        self.collect()

    def collect(self) -> None:
        if self.parked not in self.coordinator.replies:
            return
        reply, self.parked = self.coordinator.replies[self.parked], None
        if isinstance(reply, Joined):
            self.joined(reply)
        elif isinstance(reply, Synced):
            assignment = decode_assignment(reply.assignment)
            assert assignment is not None
            self.owned = {number for _, number in assignment.partitions}
        elif isinstance(reply, JoinRefused) and reply.error.kind is ErrorKind.MEMBER_ID_REQUIRED:
            self.member_id = reply.member_id
        else:
            self.refused(kind_of(reply))

    def joined(self, reply: Joined) -> None:
        """A leader gives each partition to one member."""
        self.member_id, self.generation_id = reply.member_id, reply.generation_id
        ids = [each.member_id for each in reply.members]
        told = {
            each: encode_assignment(1, [("topic", number) for number in range(place, PARTITIONS, len(ids))])
            for place, each in enumerate(ids)
        }
        self.parked = self.coordinator.start_sync(self.member_id, self.generation_id, assignments=told)
        self.collect()

    def refused(self, kind: ErrorKind) -> None:
        if kind is ErrorKind.REBALANCE_IN_PROGRESS:
            return self.join()
        assert kind in {ErrorKind.UNKNOWN_MEMBER_ID, ErrorKind.ILLEGAL_GENERATION}, kind
        self.lose(forget_id=kind is ErrorKind.UNKNOWN_MEMBER_ID)

    def leave(self) -> None:
        self.coordinator.leave(self.member_id)
        self.lose()


class MigrationModel(RuleBasedStateMachine):
    """The model: what each member reads."""

    def __init__(self) -> None:
        super().__init__()
        self.coordinator = Coordinator()
        tell_topics(self.coordinator, topic=PARTITIONS)
        self.old = [Old(self.coordinator) for _ in range(3)]
        self.new = [ConsumerMember(self.coordinator, f"new-{number}") for number in range(2)]

    @rule(number=st.integers(0, 2))
    def old_member_lives(self, number: int) -> None:
        self.old[number].step()

    @rule(number=st.integers(0, 1))
    def new_member_lives(self, number: int) -> None:
        self.step(self.new[number])

    @rule(number=st.integers(0, 2))
    def old_member_leaves(self, number: int) -> None:
        if self.old[number].member_id:
            self.old[number].leave()

    @rule(number=st.integers(0, 1))
    def new_member_leaves(self, number: int) -> None:
        member = self.new[number]
        if member.epoch > 0:
            member.send(member_epoch=-1)
            self.lose(member)

    @rule(milliseconds=st.sampled_from([1, SESSION_MS // 2, SESSION_MS, REBALANCE_MS]))
    def time_passes(self, milliseconds: int) -> None:
        self.coordinator.advance(milliseconds)
        self.notice_who_is_out()

    @rule()
    def coordinator_crashes(self) -> None:
        self.coordinator.crash()
        tell_topics(self.coordinator, topic=PARTITIONS)
        for member in self.old:
            member.parked = None
        self.notice_who_is_out()

    @rule(olds=st.integers(0, 3), news=st.integers(0, 2))
    def some_come_to_rest_without_the_others(self, olds: int, news: int) -> None:
        for old in self.old[olds:]:
            if old.member_id:
                old.leave()
        for new in self.new[news:]:
            if new.epoch > 0:
                new.send(member_epoch=-1)
                self.lose(new)
        for _ in range(ROUNDS):
            for old in self.old[:olds]:
                old.step()
            for new in self.new[:news]:
                self.step(new)
        if olds + news > 0 and len(self.members()) == olds + news:
            assert sorted(self.reading()) == list(range(PARTITIONS))

    @invariant()
    def no_partition_has_two_readers(self) -> None:
        assert all(count == 1 for count in Counter(self.reading()).values())

    def reading(self) -> list[int]:
        return [each for old in self.old for each in old.owned] + [each for new in self.new for _, each in new.owned]

    def step(self, member: ConsumerMember) -> None:
        fields = {"rebalance_timeout_ms": REBALANCE_MS, **member.subscription} if member.epoch == 0 else {}
        answer = member.send(owned=member.owned, **fields)
        if isinstance(answer, HeartbeatAnswer):
            member.take(answer)
        else:
            assert kind_of(answer) in {ErrorKind.UNKNOWN_MEMBER_ID, ErrorKind.GROUP_ID_NOT_FOUND}
            self.lose(member)

    def lose(self, member: ConsumerMember) -> None:
        member.epoch, member.owned = 0, frozenset()

    def members(self) -> set[str]:
        for command in (DescribeConsumerGroup(group_id=GROUP), DescribeGroup(group_id=GROUP)):
            found = self.coordinator.ask(command)
            if isinstance(found, DescribedConsumerGroup | DescribedGroup):
                return {each.member_id for each in found.members}
        return set()

    def notice_who_is_out(self) -> None:
        """Who was silent for too long stops reading by itself."""
        members = self.members()
        for old in self.old:
            if old.generation_id >= 0 and old.member_id not in members:
                old.lose()
        for new in self.new:
            if new.member_id not in members:
                self.lose(new)


def test_group_that_changes_its_protocol_behaves_as_its_model() -> None:
    limits = settings(max_examples=EXAMPLES, stateful_step_count=40, deadline=None)
    run_state_machine_as_test(MigrationModel, settings=limits)
