"""Fetch sessions without a broker: partition order, changed results, and eviction."""

from collections.abc import Callable, Iterable
from functools import partial
from types import MappingProxyType
from uuid import UUID, uuid4

import pytest

from conveyor.broker.fetch.fetch_sessions import (
    NO_SESSION,
    STALE_MS,
    FetchSession,
    FetchSessions,
    PartitionKey,
    SessionPartition,
    TopicKey,
    epoch_after,
)
from conveyor.broker.fetch.fetcher import Fetched, FetchPosition
from conveyor.kernel.errors import ErrorKind, RequestError
from conveyor.kernel.ports import FileSlice
from conveyor.testing import MemoryDisk

NOW_MS = 1_700_000_000_000
LARGEST_EPOCH = 2**31 - 1
ID = UUID("f81d4fae-7dec-11d0-a765-00a0c91e6bf6")
RECORDS = FileSlice(MemoryDisk().open("log", create=True), 0, 100)
FAILED = Fetched(RequestError(ErrorKind.UNKNOWN_TOPIC, "gone"))


def partition(number: int, offset: int = 0, topic: TopicKey = "t") -> SessionPartition:
    return SessionPartition(topic, FetchPosition(topic if isinstance(topic, str) else "", number, offset, 1 << 20))


def idle(high_watermark: int = 0, log_start_offset: int = 0) -> Fetched:
    return Fetched(None, high_watermark, log_start_offset)


def found(high_watermark: int) -> Fetched:
    return Fetched(None, high_watermark, 0, RECORDS)


def by_key(partitions: Iterable[SessionPartition]) -> dict[PartitionKey, SessionPartition]:
    return {partition.key: partition for partition in partitions}


def session_of(*partitions: SessionPartition, by_id: bool = False) -> FetchSession:
    return FetchSession(7, by_id, by_key(partitions), NOW_MS)


def numbers(session: FetchSession) -> list[int]:
    return [position.partition for position in session.positions({})]


def news(session: FetchSession, *results: Fetched) -> list[int]:
    return [changed.position.partition for changed, _ in session.changes(results)]


def sessions(*, most: int = 1000, most_partitions: int = 500_000) -> FetchSessions:
    return FetchSessions(uuid4, max_fetch_sessions=most, max_partitions=most_partitions)


def opened(cache: FetchSessions, size: int = 1, now_ms: int = NOW_MS) -> int:
    return cache.open(by_key(map(partition, range(size))), by_id=False, now_ms=now_ms)


def continue_session(
    cache: FetchSessions, session_id: int, epoch: int, *named: SessionPartition, forget: int = 0, now_ms: int = NOW_MS
) -> FetchSession | None:
    forgotten = [("t", number) for number in range(forget)]
    return cache.continue_session(session_id, epoch, named, forgotten, by_id=False, now_ms=now_ms)


def refusal(act: Callable[[], object]) -> ErrorKind:
    with pytest.raises(RequestError) as caught:
        act()
    return caught.value.kind


def test_session_tells_only_what_is_new() -> None:
    session = session_of(*map(partition, range(4)))
    assert news(session, idle(), idle(), idle(), idle()) == [0, 1, 2, 3]
    assert news(session, idle(), idle(), idle(), idle()) == []
    assert news(session, idle(), idle(1), idle(0, 1), FAILED) == [1, 2, 3]


def test_session_tells_records_each_time() -> None:
    session = session_of(partition(0))
    assert [news(session, found(5)) for _ in range(2)] == [[0], [0]]


def test_session_tells_an_error_each_time_and_its_end() -> None:
    session = session_of(partition(0))
    results = [idle(3), FAILED, FAILED, idle(3), idle(3)]
    assert [news(session, result) for result in results] == [[0], [0], [0], [0], []]


def test_session_puts_partitions_that_gave_records_last() -> None:
    session = session_of(*map(partition, range(4)))
    assert news(session, found(1), idle(1), found(1), idle(1)) == [0, 1, 2, 3]
    assert numbers(session) == [1, 3, 0, 2]


def test_session_starves_nobody_when_one_partition_fits_an_answer() -> None:
    session = session_of(*map(partition, range(5)))
    served = []
    for _ in range(10):
        served.append(numbers(session)[0])
        session.changes([found(9)] + [idle(9)] * 4)
    assert served == [0, 1, 2, 3, 4] * 2


def test_session_takes_what_a_request_adds_moves_and_forgets() -> None:
    session = session_of(partition(0), partition(1))
    session.update([partition(2, 5), partition(0, 8)], [("t", 1), ("t", 9)])
    assert [(position.partition, position.offset) for position in session.positions({})] == [(0, 8), (2, 5)]


def test_session_of_the_same_partition_named_twice_has_it_once() -> None:
    assert len(session_of(partition(0), partition(0))) == 1


def test_session_looks_the_names_of_ids_up_again_when_topics_change() -> None:
    session = session_of(partition(0, topic=ID), by_id=True)
    for names, name in [({ID: "t"}, "t"), ({}, ""), ({uuid4(): "t"}, ""), ({ID: "t"}, "t")]:
        assert [position.topic for position in session.positions(MappingProxyType(names))] == [name]


def test_sessions_give_ids_that_are_positive_and_free() -> None:
    wanted = iter([UUID(int=0), UUID(int=5), UUID(int=5), UUID(int=1 << 31), UUID(int=(1 << 80) + 6)])
    cache = FetchSessions(lambda: next(wanted))
    assert [opened(cache) for _ in range(2)] == [5, 6]


def test_sessions_go_on_with_rising_epochs() -> None:
    cache = sessions()
    session_id = opened(cache)
    for epoch in (1, 2, 3):
        assert refusal(lambda: continue_session(cache, session_id, 9)) is ErrorKind.INVALID_FETCH_SESSION_EPOCH
        assert continue_session(cache, session_id, epoch) is not None


def test_sessions_after_the_largest_epoch_go_on_with_one() -> None:
    cache = sessions()
    session_id = opened(cache)
    session = continue_session(cache, session_id, 1)
    assert session is not None
    session.next_epoch = LARGEST_EPOCH
    continue_session(cache, session_id, LARGEST_EPOCH)
    assert session.next_epoch == epoch_after(LARGEST_EPOCH) == 1


def test_sessions_know_nothing_of_an_unknown_id() -> None:
    cache = sessions()
    closed = opened(cache)
    cache.close(closed)
    for session_id in (NO_SESSION, 5, -1, closed):
        assert refusal(partial(continue_session, cache, session_id, 1)) is ErrorKind.FETCH_SESSION_NOT_FOUND


def test_sessions_name_topics_as_they_did_at_first() -> None:
    cache = sessions()
    session_id = opened(cache)
    mixed = refusal(lambda: cache.continue_session(session_id, 1, [], [], by_id=True, now_ms=NOW_MS))
    assert mixed is ErrorKind.FETCH_SESSION_TOPIC_ID_ERROR
    assert continue_session(cache, session_id, 1) is not None


def test_sessions_end_when_nothing_is_left_of_them() -> None:
    cache = sessions()
    session_id = opened(cache, 2)
    assert continue_session(cache, session_id, 1, forget=2) is None
    assert (len(cache), cache.partition_count) == (0, 0)


def test_sessions_count_their_partitions() -> None:
    cache = sessions()
    first, second = opened(cache, 3), opened(cache, 2)
    continue_session(cache, first, 1, partition(5), partition(6), forget=1)
    assert cache.partition_count == 6
    cache.close(second)
    cache.close(second)
    assert cache.partition_count == 4


def test_sessions_in_use_keep_their_place() -> None:
    cache = sessions(most=2)
    kept = [opened(cache), opened(cache)]
    assert opened(cache, now_ms=NOW_MS + STALE_MS) == NO_SESSION
    assert all(continue_session(cache, session_id, 1) for session_id in kept)


def test_sessions_that_are_stale_lose_their_place_longest_unused_first() -> None:
    cache = sessions(most=2)
    first, second = opened(cache), opened(cache, now_ms=NOW_MS + 1)
    continue_session(cache, first, 1, now_ms=NOW_MS + 2)
    third = opened(cache, now_ms=NOW_MS + STALE_MS + 2)
    assert third != NO_SESSION
    assert refusal(lambda: continue_session(cache, second, 1)) is ErrorKind.FETCH_SESSION_NOT_FOUND
    assert continue_session(cache, first, 2) is not None
    assert len(cache) == 2


def test_sessions_hold_so_many_partitions_together() -> None:
    cache = sessions(most_partitions=10)
    first = opened(cache, 6)
    assert opened(cache, 5) == NO_SESSION
    second = opened(cache, 4)
    grown = refusal(lambda: continue_session(cache, second, 1, partition(77)))
    assert grown is ErrorKind.FETCH_SESSION_NOT_FOUND
    assert (len(cache), cache.partition_count) == (1, 6)
    assert opened(cache, 11, now_ms=NOW_MS + STALE_MS + 1) == NO_SESSION
    assert first not in (NO_SESSION, second)


def test_sessions_may_be_switched_off() -> None:
    assert opened(sessions(most=0)) == NO_SESSION


def test_session_ends_that_grows_beyond_what_one_request_may_name() -> None:
    cache = FetchSessions(uuid4, max_session_partitions=3)
    session_id = opened(cache, 2)
    grow = partial(cache.continue_session, session_id, forgotten=(), by_id=False, now_ms=NOW_MS + 1)
    assert len(grow(1, named=[partition(2)]) or ()) == 3
    with pytest.raises(RequestError) as refused:
        grow(2, named=[partition(3)])
    assert refused.value.kind is ErrorKind.FETCH_SESSION_NOT_FOUND
    assert (len(cache), cache.partition_count) == (0, 0)
