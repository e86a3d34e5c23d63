"""Offsets that producers commit in their transactions."""

import sys
from typing import Any
from uuid import UUID

import pytest

from conveyor.groups.committed_offsets import CommittedOffsets
from conveyor.groups.group_commands import CommitOffsets, DeleteGroup, DeleteOffsets, FetchOffsets, UpdateTopics
from conveyor.groups.known_topics import KnownTopic, KnownTopics
from conveyor.groups.records.group_records import OffsetKey, OffsetValue
from conveyor.groups.replies import CommittedOffset
from conveyor.kernel.errors import ErrorKind
from conveyor.kernel.ids import ProducerEpoch, ProducerId, ProducerIdentity
from tests.unit.groups.coordinator import GROUP, Coordinator, kind_of

RETENTION_MS = 7 * 24 * 3_600_000
FIRST = ProducerIdentity(ProducerId(7), ProducerEpoch(0))
SECOND = ProducerIdentity(ProducerId(8), ProducerEpoch(3))
PLACE = ("topic", 0)


def offset(coordinator: Coordinator) -> int | None:
    """Return the committed offset."""
    offsets = [committed.offset for committed in coordinator.committed()]
    return offsets[0] if offsets else None


def make_topic(coordinator: Coordinator, number: int) -> None:
    """Let `topic` be the only topic, with this number as its id."""
    topic = KnownTopic(name="topic", topic_id=UUID(int=number), partition_count=1)
    coordinator.ask(UpdateTopics(topics=KnownTopics([topic])))


def is_unstable(coordinator: Coordinator) -> bool:
    fetch = FetchOffsets(group_id=GROUP, partitions=(PLACE,), requires_stable=True)
    [fetched] = coordinator.ask(fetch).offsets
    assert not fetched.is_unstable or fetched.offset == -1
    return bool(fetched.is_unstable)


@pytest.mark.parametrize("commit", [True, False])
@pytest.mark.parametrize("crash", [True, False])
def test_pending_offsets_count_when_the_transaction_is_committed(commit: bool, crash: bool) -> None:
    coordinator = Coordinator()
    coordinator.commit(3)
    assert coordinator.commit(9, producer=FIRST).errors == (None,)
    if crash:
        coordinator.crash()
    assert (offset(coordinator), is_unstable(coordinator)) == (3, True)
    coordinator.end_transaction(FIRST, commit=commit)
    if crash:
        coordinator.crash()
    assert (offset(coordinator), is_unstable(coordinator)) == (9 if commit else 3, False)


def test_a_plain_commit_after_a_pending_one_stays() -> None:
    coordinator = Coordinator()
    coordinator.commit(9, producer=FIRST)
    coordinator.commit(20)
    assert (offset(coordinator), is_unstable(coordinator)) == (20, False)
    coordinator.end_transaction(FIRST, commit=True)
    assert offset(coordinator) == 20


@pytest.mark.parametrize("first_ends_first", [True, False])
def test_the_later_of_two_pending_offsets_stays(first_ends_first: bool) -> None:
    coordinator = Coordinator()
    coordinator.commit(9, producer=FIRST)
    coordinator.commit(20, producer=SECOND)
    for producer in (FIRST, SECOND) if first_ends_first else (SECOND, FIRST):
        assert is_unstable(coordinator) == (producer is SECOND or first_ends_first)
        coordinator.end_transaction(producer, commit=True)
    assert (offset(coordinator), is_unstable(coordinator)) == (20, False)


def test_an_aborted_later_offset_brings_the_earlier_one() -> None:
    coordinator = Coordinator()
    coordinator.commit(9, producer=FIRST)
    coordinator.commit(20, producer=SECOND)
    coordinator.end_transaction(SECOND, commit=False)
    coordinator.end_transaction(FIRST, commit=True)
    assert offset(coordinator) == 9


def test_the_last_pending_offset_of_a_producer_counts() -> None:
    coordinator = Coordinator()
    for position in (5, 6):
        coordinator.commit(position, producer=FIRST)
    coordinator.end_transaction(FIRST, commit=True)
    coordinator.commit(7, producer=FIRST)
    coordinator.end_transaction(FIRST, commit=False)
    assert offset(coordinator) == 6


def test_only_who_asks_is_told_that_an_offset_is_unstable() -> None:
    coordinator = Coordinator()
    coordinator.commit(9, producer=FIRST)
    fetched = coordinator.ask(FetchOffsets(group_id=GROUP, partitions=(PLACE,)))
    assert fetched.offsets == (CommittedOffset(topic="topic", partition=0),)
    assert is_unstable(coordinator)


@pytest.mark.parametrize(
    ("member", "generation", "refusal"),
    [
        ("", -1, None),  # an older client, which does not know its member
        ("own", 0, None),
        ("own", 1, ErrorKind.ILLEGAL_GENERATION),
        ("own", -1, ErrorKind.ILLEGAL_GENERATION),
        ("stranger", 0, ErrorKind.UNKNOWN_MEMBER_ID),
    ],
)
def test_zombies_of_a_group_are_fenced(member: str, generation: int, refusal: ErrorKind | None) -> None:
    coordinator = Coordinator()
    [own], generation_id = coordinator.stable_group(1)
    sender = own if member == "own" else member
    given = generation_id + generation if generation >= 0 else -1
    reply: Any = coordinator.commit(9, sender, given, producer=FIRST, knows_member_epochs=False)
    if refusal is None:
        assert reply.errors == (None,)
    else:
        assert kind_of(reply) is refusal


def test_a_member_commits_between_join_and_sync() -> None:
    coordinator = Coordinator()
    joined = coordinator.join()
    committed = coordinator.commit(9, joined.member_id, joined.generation_id, producer=FIRST)
    assert committed.errors == (None,)
    assert kind_of(coordinator.commit(9, joined.member_id, joined.generation_id)) is ErrorKind.REBALANCE_IN_PROGRESS


def test_a_generation_of_a_group_that_never_was_is_refused() -> None:
    refused = Coordinator().commit(9, "m", 1, producer=FIRST, knows_member_epochs=False)
    assert kind_of(refused) is ErrorKind.ILLEGAL_GENERATION


@pytest.mark.parametrize("commit", [True, False])
def test_a_group_with_pending_offsets_does_not_expire(commit: bool) -> None:
    """KAFKA-19163."""
    coordinator = Coordinator()
    coordinator.commit(3)
    coordinator.commit(9, producer=FIRST)
    coordinator.advance(2 * RETENTION_MS)
    assert offset(coordinator) == 3
    assert coordinator.machine.next_deadline_ms() is None
    coordinator.end_transaction(FIRST, commit=commit)
    coordinator.advance(2 * RETENTION_MS)
    assert offset(coordinator) is None


def test_deletion_drops_pending_offsets() -> None:
    for command in (DeleteGroup(group_id=GROUP), DeleteOffsets(group_id=GROUP, partitions=(PLACE,))):
        coordinator = Coordinator()
        coordinator.commit(9, producer=FIRST)
        coordinator.ask(command)
        assert not is_unstable(coordinator)
        coordinator.end_transaction(FIRST, commit=True)
        assert offset(coordinator) is None
        coordinator.crash()
        assert offset(coordinator) is None


def test_a_deleted_topic_takes_pending_offsets_along() -> None:
    coordinator = Coordinator()
    make_topic(coordinator, 1)
    coordinator.commit(9, producer=FIRST)
    coordinator.ask(UpdateTopics(topics=KnownTopics([])))
    coordinator.end_transaction(FIRST, commit=True)
    assert offset(coordinator) is None


@pytest.mark.parametrize("old_is_pending", [False, True])
@pytest.mark.parametrize("commit", [False, True])
def test_offset_of_a_new_topic_outlives_those_of_its_predecessor(old_is_pending: bool, commit: bool) -> None:
    """The offset in a transaction comes before the tombstone of the other one, and both have one key."""
    coordinator = Coordinator()
    for number in (1, 2):
        make_topic(coordinator, number)
        if number == 1:
            coordinator.commit(9, producer=SECOND if old_is_pending else None)
    coordinator.commit(3, producer=FIRST)
    coordinator.advance(1_000)
    assert is_unstable(coordinator)
    coordinator.end_transaction(FIRST, commit=commit)
    coordinator.advance(1_000)
    if old_is_pending:
        coordinator.end_transaction(SECOND, commit=True)
        coordinator.advance(1_000)
    for _ in range(2):
        assert offset(coordinator) == (3 if commit else None)
        coordinator.crash()
        make_topic(coordinator, 2)


def test_group_waits_for_no_transaction_whose_offset_is_replaced() -> None:
    coordinator = Coordinator()
    for number in (1, 2):
        make_topic(coordinator, number)
        coordinator.commit(9, producer=FIRST if number == 2 else None)
    coordinator.advance(1_000)
    assert coordinator.machine._deleted_topics._blocked
    coordinator.commit(3)
    coordinator.advance(1_000)
    assert not coordinator.machine._deleted_topics._blocked
    assert offset(coordinator) == 3


def test_a_commit_of_nothing_writes_nothing() -> None:
    coordinator = Coordinator()
    empty = CommitOffsets(group_id=GROUP, member_id="", generation_id=-1, offsets=(), producer=FIRST)
    assert coordinator.ask(empty).errors == ()
    assert coordinator.log == []


@pytest.mark.parametrize("commit", [False, True])
def test_end_of_a_transaction_takes_a_few_steps_for_each_offset(commit: bool) -> None:
    """It is done in one turn of the event loop, and a transaction may have 100,000 offsets."""
    offsets, calls = CommittedOffsets(), 0
    value = OffsetValue(offset=1, leader_epoch=-1, metadata="", commit_timestamp_ms=1, topic_id=None)
    for number in range(1_000):
        key = OffsetKey(group_id=f"g{number % 2}", topic="t", partition=number)
        offsets.apply(key, value, FIRST)

    def count(_: object, event: str, __: object) -> None:
        nonlocal calls
        calls += event in {"call", "c_call"}

    sys.setprofile(count)
    try:
        assert offsets.resolve(FIRST, commit) == {"g0", "g1"}
    finally:
        sys.setprofile(None)
    assert calls < 3 * 1_000
    assert [len(offsets.of(group_id)) for group_id in ("g0", "g1")] == [500 * commit] * 2
    assert not offsets.pending("g0")
