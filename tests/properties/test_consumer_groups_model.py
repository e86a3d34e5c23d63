"""A consumer protocol group under random members, topics, time, lost answers and crashes.

What must hold, whatever happens: no partition has two readers among those who believe in their membership; commits are
taken from members that know their epoch only; and a group that is left alone comes to rest, with every partition read.

`PROPERTY_EXAMPLES` sets how many histories are tried.
"""

import os
from collections import Counter
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from conveyor.groups.replies import Committed, HeartbeatAnswer
from conveyor.kernel.errors import ErrorKind
from tests.unit.groups.consumers import CONSUMER_SESSION_MS, ConsumerMember, described, settle, tell_topics, topic_id
from tests.unit.groups.coordinator import REBALANCE_MS, Coordinator, kind_of

EXAMPLES = int(os.environ.get("PROPERTY_EXAMPLES", "150"))
LOST = {ErrorKind.UNKNOWN_MEMBER_ID, ErrorKind.FENCED_MEMBER_EPOCH, ErrorKind.FENCED_INSTANCE_ID}
WISHES: list[dict[str, Any]] = [
    {"topics": ("one",), "pattern": ""},
    {"topics": ("one", "two"), "pattern": ""},
    {"topics": (), "pattern": "t.*"},
    {"topics": ("three",), "pattern": "on."},
]


class Reader(ConsumerMember):
    """A member that may be out of the group. After an answer that it did not get, it says all that it has to say."""

    missed_an_answer = False

    @property
    def is_in(self) -> bool:
        return self.epoch > 0

    def lose(self) -> None:
        self.epoch, self.owned = 0, frozenset()

    def live(self, *, is_lost: bool = False, **fields: Any) -> None:
        if self.missed_an_answer:
            fields = {"rebalance_timeout_ms": REBALANCE_MS, "owned": self.owned, **self.subscription, **fields}
        answer = self.send(**fields)
        self.missed_an_answer = is_lost
        if not is_lost:
            self.hear(answer)

    def hear(self, answer: object) -> None:
        self.missed_an_answer = False
        if isinstance(answer, HeartbeatAnswer):
            self.take(answer)
        else:
            assert kind_of(answer) in LOST | {ErrorKind.UNRELEASED_INSTANCE_ID}
            self.lose()


class ConsumerGroupModel(RuleBasedStateMachine):
    """The model: what each reader reads, and the topics that there are."""

    def __init__(self) -> None:
        super().__init__()
        self.coordinator = Coordinator()
        self.counts = {"one": 3}
        self.readers: list[Reader] = []
        self.offset: int | None = None
        tell_topics(self.coordinator, **self.counts)

    @initialize(static=st.lists(st.booleans(), min_size=2, max_size=4))
    def start(self, static: list[bool]) -> None:
        for number, is_static in enumerate(static):
            instance = {"instance_id": f"instance-{number}"} if is_static else {}
            self.readers.append(Reader(self.coordinator, f"reader-{number}", **WISHES[0], **instance))

    @rule(number=st.integers(0, 3), wish=st.sampled_from(WISHES), assignor=st.sampled_from([None, "range", "uniform"]))
    def join(self, number: int, wish: dict[str, Any], assignor: str | None) -> None:
        reader = self.pick(number)
        reader.lose()
        reader.subscription |= wish | {"assignor": assignor}
        reader.hear(reader.send(rebalance_timeout_ms=REBALANCE_MS, owned=frozenset(), **reader.subscription))

    @rule(number=st.integers(0, 3), is_lost=st.booleans(), tells=st.booleans())
    def heartbeat(self, number: int, is_lost: bool, tells: bool) -> None:
        reader = self.pick(number)
        if reader.is_in:
            told: dict[str, Any] = {"owned": reader.owned} if tells else {}
            reader.live(is_lost=is_lost, **told)

    @rule(number=st.integers(0, 3), wish=st.sampled_from(WISHES))
    def change_wishes(self, number: int, wish: dict[str, Any]) -> None:
        reader = self.pick(number)
        if reader.is_in:
            reader.subscription |= wish
            reader.live(owned=reader.owned, **wish)

    @rule(number=st.integers(0, 3), for_a_while=st.booleans())
    def leave(self, number: int, for_a_while: bool) -> None:
        reader = self.pick(number)
        if reader.is_in:
            is_static = "instance_id" in reader.subscription
            reader.send(member_epoch=-2 if for_a_while and is_static else -1)
            reader.lose()
            if is_static:
                reader.member_id += "'"

    @rule(milliseconds=st.sampled_from([1, 5_000, CONSUMER_SESSION_MS - 1, CONSUMER_SESSION_MS, REBALANCE_MS]))
    def time_passes(self, milliseconds: int) -> None:
        """Who is silent for a session, or has not given up what it had to, takes itself to be out."""
        self.coordinator.advance(milliseconds)
        members = {each.member_id for each in described(self.coordinator).members} if self.exists() else set()
        for reader in self.readers:
            if reader.is_in and reader.member_id not in members:
                reader.lose()

    @rule(name=st.sampled_from(["one", "two", "three", "four"]), count=st.integers(0, 5))
    def topics_change(self, name: str, count: int) -> None:
        """Topics come, grow and go; one that is there does not shrink."""
        if count == 0:
            self.counts.pop(name, None)
        else:
            self.counts[name] = max(count, self.counts.get(name, 0))
        tell_topics(self.coordinator, **self.counts)

    @rule()
    def coordinator_crashes(self) -> None:
        self.coordinator.crash()
        tell_topics(self.coordinator, **self.counts)

    @rule(number=st.integers(0, 3), age=st.integers(0, 2), offset=st.integers(0, 1000))
    def commit(self, number: int, age: int, offset: int) -> None:
        reader = self.pick(number)
        if not reader.is_in:
            return
        known = {each.member_id: each.current.epoch for each in described(self.coordinator).members}
        reply = self.coordinator.commit(offset, reader.member_id, reader.epoch - age)
        if known.get(reader.member_id) == reader.epoch - age:
            assert isinstance(reply, Committed)
        else:
            assert kind_of(reply) in {ErrorKind.STALE_MEMBER_EPOCH, ErrorKind.UNKNOWN_MEMBER_ID}

    @rule()
    def everybody_settles(self) -> None:
        for reader in self.readers:
            if not reader.is_in:
                reader.hear(reader.send(rebalance_timeout_ms=REBALANCE_MS, owned=frozenset(), **reader.subscription))
        for reader in self.readers:
            if reader.is_in:
                reader.live(owned=reader.owned)
        living = [each for each in self.readers if each.is_in]
        if len(living) < len(self.readers):
            return
        settle(*living)
        found = described(self.coordinator)
        if {each.member_id for each in found.members} == {each.member_id for each in living}:
            assert found.state == "Stable"
            self.everything_is_read(living)

    def everything_is_read(self, living: list[Reader]) -> None:
        wanted = {name for reader in living for name in self.wished(reader)}
        expected = {(topic_id(name), number) for name in wanted for number in range(self.counts[name])}
        assert {each for reader in living for each in reader.owned} == expected
        for reader in living:
            assert {topic for topic, _ in reader.owned} <= {topic_id(name) for name in self.wished(reader)}

    @invariant()
    def no_partition_has_two_readers(self) -> None:
        readers = Counter(each for reader in self.readers if reader.is_in for each in reader.owned)
        assert all(count == 1 for count in readers.values()), readers

    @invariant()
    def a_crash_would_change_nothing(self) -> None:
        if self.exists():
            before = described(self.coordinator)
            again = Coordinator()
            again.log = list(self.coordinator.log)
            again.now_ms = self.coordinator.now_ms
            again.crash()
            assert described(again) == before

    def exists(self) -> bool:
        return self.coordinator.machine._consumers.find("readers") is not None

    def pick(self, number: int) -> Reader:
        return self.readers[number % len(self.readers)]

    def wished(self, reader: Reader) -> set[str]:
        names = set(reader.subscription["topics"])
        by_pattern = {"t.*": {"two", "three"}, "on.": {"one"}}.get(reader.subscription["pattern"], set())
        return (names | by_pattern) & self.counts.keys()


def test_consumer_group_behaves_as_its_model() -> None:
    limits = settings(max_examples=EXAMPLES, stateful_step_count=40, deadline=None)
    run_state_machine_as_test(ConsumerGroupModel, settings=limits)
