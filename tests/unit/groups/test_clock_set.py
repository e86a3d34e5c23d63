"""The wall clock is set forward or back by an hour: the remaining time of sessions and rebalances stays the same."""

import pytest

from conveyor.groups.replies import Alive, HeartbeatAnswer, Joined
from conveyor.kernel.errors import ErrorKind
from tests.unit.groups.consumers import CONSUMER_SESSION_MS, ConsumerMember, coordinator_with, described, joined
from tests.unit.groups.coordinator import REBALANCE_MS, SESSION_MS, Coordinator, kind_of

HOUR_MS = 3_600_000
RETENTION_MS = 7 * 24 * HOUR_MS
by_an_hour = pytest.mark.parametrize("by_ms", [HOUR_MS, -HOUR_MS])


@by_an_hour
def test_session_of_a_classic_member_lasts_as_long_as_before(by_ms: int) -> None:
    coordinator = Coordinator()
    [member], generation_id = coordinator.stable_group(1)
    coordinator.advance(1)
    coordinator.set_clock(by_ms)
    coordinator.advance(SESSION_MS - 2)
    assert coordinator.heartbeat(member, generation_id) == Alive()
    coordinator.set_clock(by_ms)
    coordinator.advance(SESSION_MS)
    assert kind_of(coordinator.heartbeat(member, generation_id)) is ErrorKind.UNKNOWN_MEMBER_ID


@by_an_hour
def test_rebalance_lasts_as_long_as_before(by_ms: int) -> None:
    coordinator = Coordinator()
    coordinator.stable_group(1, session_timeout_ms=300_000)
    token = coordinator.start_join()
    coordinator.set_clock(by_ms)
    coordinator.advance(REBALANCE_MS - 1)
    assert coordinator.is_parked(token)
    coordinator.advance(1)
    assert isinstance(coordinator.reply(token), Joined)


@by_an_hour
def test_initial_delay_lasts_as_long_as_before(by_ms: int) -> None:
    coordinator = Coordinator(initial_rebalance_delay_ms=3_000)
    token = coordinator.start_join()
    coordinator.advance(2_000)
    other = coordinator.start_join()
    coordinator.set_clock(by_ms)
    coordinator.advance(3_999)
    assert coordinator.is_parked(token)
    coordinator.advance(1)
    assert isinstance(coordinator.reply(token), Joined)
    assert isinstance(coordinator.reply(other), Joined)


@by_an_hour
def test_member_id_that_is_not_used_is_forgotten_when_it_would_have_been(by_ms: int) -> None:
    coordinator = Coordinator()
    refused = coordinator.reply(coordinator.start_join(requires_known_id=True))
    coordinator.set_clock(by_ms)
    coordinator.advance(SESSION_MS - 1)
    assert isinstance(coordinator.join(refused.member_id), Joined)
    late = coordinator.reply(coordinator.start_join(requires_known_id=True))
    coordinator.set_clock(by_ms)
    coordinator.advance(SESSION_MS)
    assert kind_of(coordinator.reply(coordinator.start_join(late.member_id))) is ErrorKind.UNKNOWN_MEMBER_ID


@by_an_hour
def test_session_of_a_consumer_lasts_as_long_as_before(by_ms: int) -> None:
    coordinator = coordinator_with()
    [member] = joined(coordinator, "a")
    coordinator.set_clock(by_ms)
    coordinator.advance(CONSUMER_SESSION_MS - 1)
    assert isinstance(member.send(), HeartbeatAnswer)
    coordinator.set_clock(by_ms)
    coordinator.advance(CONSUMER_SESSION_MS)
    assert kind_of(member.send()) is ErrorKind.UNKNOWN_MEMBER_ID


@by_an_hour
def test_time_to_give_up_partitions_is_as_long_as_before(by_ms: int) -> None:
    coordinator = coordinator_with(partition_count=2)
    [first] = joined(coordinator, "a")
    ConsumerMember(coordinator, "b").join()
    first.send()
    coordinator.set_clock(by_ms)
    for _ in range(2):
        coordinator.advance(REBALANCE_MS // 2 - 1)
        first.send()
    coordinator.advance(2)
    assert "a" not in [member.member_id for member in described(coordinator).members]


def test_age_of_offsets_is_of_the_wall_clock() -> None:
    coordinator = Coordinator()
    coordinator.commit(5)
    coordinator.advance(RETENTION_MS - HOUR_MS - 1)
    assert len(coordinator.committed()) == 1
    coordinator.set_clock(HOUR_MS)
    coordinator.advance(1)
    assert coordinator.committed() == ()
