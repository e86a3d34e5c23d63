"""Any commands of both protocols, in any order: the coordinator answers all of them, and its log tells what it knows.

`PROPERTY_EXAMPLES` sets how many histories are tried.
"""

import os
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from conveyor.groups.classic.embedded_protocol import encode_assignment
from conveyor.groups.group_commands import (
    CommitOffsets,
    ConsumerHeartbeat,
    DeleteGroup,
    DeleteOffsets,
    DescribeConsumerGroup,
    FetchOffsets,
    GroupCommand,
    Heartbeat,
    LeaveGroup,
    LeavingMember,
    OffsetToCommit,
    SyncGroup,
)
from tests.unit.groups.consumers import place, tell_topics
from tests.unit.groups.coordinator import GROUP, REBALANCE_MS, SESSION_MS, Coordinator
from tests.unit.groups.migration.test_protocol_change import subscription

EXAMPLES = int(os.environ.get("PROPERTY_EXAMPLES", "300"))
LONG_MS = 20 * 24 * 3_600_000

member_ids = st.sampled_from(["", "member-1", "member-2", "member-3", "member-4"])
instances = st.sampled_from([None, None, "one", "two"])
epochs = st.integers(-2, 9)
owned = st.sampled_from([None, frozenset(), place("topic", 0), place("topic", 0, 1, 2)])
names = st.sampled_from([None, (), ("topic",), ("other", "topic")])
metadata = st.sampled_from([subscription(), subscription(0), subscription(0, 1, 2), b"", b"\x00"])
assignments = st.dictionaries(
    member_ids,
    st.sampled_from([encode_assignment(1, [("topic", 0)]), encode_assignment(1, [("topic", 1), ("gone", 2)]), b"x"]),
)


def joins() -> st.SearchStrategy[tuple[str, dict[str, Any]]]:
    fields = {
        "member_id": member_ids,
        "group_instance_id": instances,
        "protocol_type": st.sampled_from(["consumer", "consumer", "connect"]),
        "protocols": st.lists(st.tuples(st.sampled_from(["range", "sticky"]), metadata), min_size=1, max_size=2).map(
            tuple
        ),
        "requires_known_id": st.booleans(),
        "rebalance_timeout_ms": st.sampled_from([-1, 0, REBALANCE_MS]),
    }
    return st.tuples(st.just("join"), st.fixed_dictionaries(fields))


def built(kind: Any, **fields: st.SearchStrategy[Any]) -> st.SearchStrategy[tuple[str, GroupCommand[object]]]:
    return st.tuples(st.just("command"), st.builds(kind, group_id=st.just(GROUP), **fields))


def heartbeats(epoch: st.SearchStrategy[int]) -> st.SearchStrategy[tuple[str, GroupCommand[object]]]:
    return built(
        ConsumerHeartbeat,
        member_id=member_ids,
        new_member_id=member_ids.filter(bool),
        member_epoch=epoch,
        client_id=st.just("client"),
        client_host=st.just("/127.0.0.1"),
        instance_id=instances,
        rebalance_timeout_ms=st.sampled_from([-1, 0, REBALANCE_MS]),
        topics=names,
        pattern=st.sampled_from([None, "", "to.*", "("]),
        assignor=st.sampled_from([None, "range", "sticky"]),
        owned=owned,
        requires_member_id=st.booleans(),
    )


offset = OffsetToCommit(topic="topic", partition=0, offset=1, leader_epoch=-1, metadata="")
steps = st.one_of(
    joins(),
    built(SyncGroup, generation_id=epochs, member_id=member_ids, assignments=assignments, group_instance_id=instances),
    built(Heartbeat, generation_id=epochs, member_id=member_ids, group_instance_id=instances),
    built(
        LeaveGroup,
        members=st.lists(st.builds(LeavingMember, member_id=member_ids, group_instance_id=instances), max_size=2).map(
            tuple
        ),
    ),
    heartbeats(epochs),
    heartbeats(st.just(0)),
    built(CommitOffsets, generation_id=epochs, member_id=member_ids, offsets=st.just((offset,))),
    built(FetchOffsets, partitions=st.none(), member_id=st.none() | member_ids, member_epoch=epochs),
    built(DeleteGroup),
    built(DeleteOffsets, partitions=st.just((("topic", 0),))),
    st.tuples(st.just("topics"), st.dictionaries(st.sampled_from(["topic", "other"]), st.integers(1, 4))),
    st.tuples(st.just("advance"), st.sampled_from([1, SESSION_MS, REBALANCE_MS, LONG_MS])),
    st.tuples(st.just("crash"), st.none()),
)


@settings(max_examples=EXAMPLES, deadline=None)
@given(history=st.lists(steps, min_size=5, max_size=60))
def test_every_command_is_answered_and_the_log_tells_everything(history: list[tuple[str, Any]]) -> None:
    coordinator = Coordinator()
    topics: dict[str, int] = {"topic": 3}
    tell_topics(coordinator, **topics)
    for action, value in history:
        match action:
            case "join":
                coordinator.start_join(**value)
            case "command":
                token = coordinator.submit(value)
                assert isinstance(value, SyncGroup) or token in coordinator.replies
            case "topics":
                topics = value
                tell_topics(coordinator, **topics)
                coordinator.advance(0)  # The offsets of deleted topics are deleted at the next deadline.
            case "advance":
                coordinator.advance(value)
            case _:
                coordinator.crash()
                tell_topics(coordinator, **topics)
                coordinator.advance(0)
        assert told(coordinator) == told(replayed(coordinator))
    coordinator.advance(LONG_MS)
    assert coordinator.listed() == (), "nobody was heard: everything is forgotten"
    assert not coordinator.waiting


def told(coordinator: Coordinator) -> tuple[object, object]:
    reply = coordinator.ask(DescribeConsumerGroup(group_id=GROUP))
    return None if isinstance(reply, Exception) else reply, coordinator.committed()


def replayed(coordinator: Coordinator) -> Coordinator:
    again = Coordinator()
    again.log = list(coordinator.log)
    again.now_ms = coordinator.now_ms
    again.crash()
    return again
