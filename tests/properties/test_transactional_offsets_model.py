"""Offsets in transactions under random commits, ends of transactions, deletions, expiry, crashes and compaction: the
coordinator's answers follow from the log alone.

The model: a record counts if it was logged outside of a transaction, or if its transaction was committed. The last
record that counts has the offset of a partition. The offset is unstable while an open transaction has a later record.

`PROPERTY_EXAMPLES` sets how many histories are tried.
"""

import os
from collections.abc import Iterator
from enum import Enum, auto
from uuid import UUID

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from conveyor.groups.group_commands import DeleteGroup, DeleteOffsets, FetchOffsets, OffsetToCommit, UpdateTopics
from conveyor.groups.known_topics import KnownTopic, KnownTopics
from conveyor.groups.records.group_records import OffsetKey, OffsetValue, decode_key, decode_offset
from conveyor.groups.replies import Deleted
from conveyor.kernel.errors import ErrorKind
from conveyor.kernel.ids import ProducerEpoch, ProducerId, ProducerIdentity
from tests.unit.groups.coordinator import Coordinator, kind_of

EXAMPLES = int(os.environ.get("PROPERTY_EXAMPLES", "150"))
RETENTION_MS = 7 * 24 * 3_600_000
GROUPS = ("one", "two")
PLACES = (("a", 0), ("a", 1), ("b", 0))
PRODUCERS = tuple(ProducerIdentity(ProducerId(number), ProducerEpoch(number)) for number in range(3))

groups = st.sampled_from(GROUPS)
producers = st.sampled_from(PRODUCERS)
place_sets = st.lists(st.sampled_from(PLACES), min_size=1, max_size=4)


class Fate(Enum):
    COUNTS = auto()
    OPEN = auto()
    ABORTED = auto()


class OffsetsModel(RuleBasedStateMachine):
    """Each commit has an offset of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.coordinator = Coordinator(offsets_retention_ms=RETENTION_MS)
        self.newest_offset = 0
        self.topics = {name: number for number, name in enumerate("ab", start=1)}
        self.tell_topics()

    @rule(group=groups, places=place_sets)
    def commit(self, group: str, places: list[tuple[str, int]]) -> None:
        reply = self.coordinator.commit(0, group_id=group, offsets=self.offsets(places))
        assert reply.errors == (None,) * len(places)

    @rule(group=groups, producer=producers, places=place_sets)
    def commit_in_a_transaction(self, group: str, producer: ProducerIdentity, places: list[tuple[str, int]]) -> None:
        reply = self.coordinator.commit(0, group_id=group, offsets=self.offsets(places), producer=producer)
        assert reply.errors == (None,) * len(places)

    @rule(producer=producers, commit=st.booleans())
    def end_a_transaction(self, producer: ProducerIdentity, commit: bool) -> None:
        """Also of a producer that has no offsets here."""
        self.coordinator.end_transaction(producer, commit=commit)

    @rule(group=groups)
    def delete_a_group(self, group: str) -> None:
        reply = self.coordinator.ask(DeleteGroup(group_id=group))
        assert reply == Deleted() or kind_of(reply) is ErrorKind.GROUP_ID_NOT_FOUND
        assert not self.unstable(group)
        assert not self.committed(group)

    @rule(group=groups, places=place_sets)
    def delete_offsets(self, group: str, places: list[tuple[str, int]]) -> None:
        self.coordinator.ask(DeleteOffsets(group_id=group, partitions=tuple(places)))
        assert not set(places) & {*self.unstable(group), *self.committed(group)}

    @rule(name=st.sampled_from("ab"))
    def delete_a_topic(self, name: str) -> None:
        """A new one with the same name comes at once. Nobody is told of its predecessor's offsets any more."""
        self.topics[name] += 100
        self.tell_topics()

    @rule()
    def write_what_is_due(self) -> None:
        """Without an open transaction, nothing of deleted topics is left in the log."""
        self.coordinator.advance(0)
        if Fate.OPEN not in self.fates():
            for group in GROUPS:
                assert {place: value.offset for place, value in self.values(group).items()} == self.committed(group)

    @rule(milliseconds=st.sampled_from([1, RETENTION_MS // 2, RETENTION_MS, 3 * RETENTION_MS]))
    def time_passes(self, milliseconds: int) -> None:
        before = {group: self.committed(group) for group in GROUPS}
        self.coordinator.advance(milliseconds)
        for group in GROUPS:
            if self.unstable(group):
                assert self.committed(group) == before[group], "a group with pending offsets has expired"
            elif milliseconds > RETENTION_MS:
                assert not self.committed(group), "an old offset has not expired"

    @rule()
    def crash(self) -> None:
        self.coordinator.crash()
        self.tell_topics()

    @rule()
    def compact_and_crash(self) -> None:
        """Keep the last record of each key below the first record of an open transaction."""
        fates = list(self.fates())
        limit = fates.index(Fate.OPEN) if Fate.OPEN in fates else len(fates)
        log, markers = self.coordinator.log, self.coordinator.markers
        last = {log[number].key: number for number in range(limit) if fates[number] is Fate.COUNTS}
        kept = [number for number in range(len(log)) if number >= limit or last.get(log[number].key) == number]
        self.coordinator.markers = [
            (sum(number < before for number in kept), producer, commit) for before, producer, commit in markers
        ]
        self.coordinator.log = [log[number] for number in kept]
        self.crash()

    @invariant()
    def answers_follow_from_the_log(self) -> None:
        for group in GROUPS:
            committed, unstable = self.committed(group), self.unstable(group)
            fetched = self.coordinator.ask(FetchOffsets(group_id=group, partitions=None)).offsets
            assert {(offset.topic, offset.partition): offset.offset for offset in fetched} == committed
            asked = FetchOffsets(group_id=group, partitions=PLACES, requires_stable=True)
            for place, answer in zip(PLACES, self.coordinator.ask(asked).offsets, strict=True):
                expected = (True, -1) if place in unstable else (False, committed.get(place, -1))
                assert (answer.is_unstable, answer.offset) == expected

    def offsets(self, places: list[tuple[str, int]]) -> tuple[OffsetToCommit, ...]:
        made = []
        for topic, partition in places:
            self.newest_offset += 1
            made.append(
                OffsetToCommit(
                    topic=topic, partition=partition, offset=self.newest_offset, leader_epoch=-1, metadata=""
                )
            )
        return tuple(made)

    def tell_topics(self) -> None:
        topics = [
            KnownTopic(name=name, topic_id=UUID(int=number), partition_count=2, is_internal=False)
            for name, number in self.topics.items()
        ]
        self.coordinator.ask(UpdateTopics(topics=KnownTopics(topics)))

    def fates(self) -> Iterator[Fate]:
        """Yield the fate of each record in the log."""
        for number, record in enumerate(self.coordinator.log):
            if record.producer is None:
                yield Fate.COUNTS
                continue
            ends = (
                commit
                for before, producer, commit in self.coordinator.markers
                if producer == record.producer and before > number
            )
            end = next(ends, None)
            yield Fate.OPEN if end is None else Fate.COUNTS if end else Fate.ABORTED

    def committed(self, group: str) -> dict[tuple[str, int], int]:
        """Return the offsets of a group by partition, without those of deleted topics."""
        return {place: value.offset for place, value in self.values(group).items() if self.is_current(place, value)}

    def is_current(self, place: tuple[str, int], value: OffsetValue) -> bool:
        return value.topic_id == UUID(int=self.topics[place[0]])

    def values(self, group: str) -> dict[tuple[str, int], OffsetValue]:
        values: dict[tuple[str, int], OffsetValue] = {}
        for record, fate in zip(self.coordinator.log, self.fates(), strict=True):
            key = decode_key(record.key or b"")
            if fate is not Fate.COUNTS or not isinstance(key, OffsetKey) or key.group_id != group:
                continue
            values.pop((key.topic, key.partition), None)
            if record.value is not None:
                values[key.topic, key.partition] = decode_offset(record.value)
        return values

    def unstable(self, group: str) -> set[tuple[str, int]]:
        """Return the partitions for which an open transaction has the last offset of a topic that exists."""
        last: dict[tuple[str, int], Fate] = {}
        for record, fate in zip(self.coordinator.log, self.fates(), strict=True):
            key = decode_key(record.key or b"")
            if fate is Fate.ABORTED or not isinstance(key, OffsetKey) or key.group_id != group:
                continue
            place = (key.topic, key.partition)
            if record.value is None or self.is_current(place, decode_offset(record.value)):
                last[place] = fate
        return {place for place, fate in last.items() if fate is Fate.OPEN}


def test_offsets_in_transactions_follow_the_model() -> None:
    limits = settings(max_examples=EXAMPLES, stateful_step_count=30, deadline=None)
    run_state_machine_as_test(OffsetsModel, settings=limits)
