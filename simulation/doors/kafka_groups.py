"""The requests of group members over Kafka's protocol. Every function raises Disconnected and RequestError."""

from collections.abc import Collection, Mapping
from typing import NamedTuple
from uuid import UUID

from simulation.doors.kafka_requests import SpeaksKafka, check_code

PROTOCOL_TYPE, PROTOCOL = "consumer", "rounds"


class JoinedGroup(NamedTuple):
    """A member of a generation of the classic protocol. member_ids: of all members, for the leader alone."""

    member_id: str
    generation: int
    is_leader: bool
    member_ids: list[str]


class Beat(NamedTuple):
    """The answer to a heartbeat of the consumer protocol. partitions: None if they have not changed."""

    epoch: int
    partitions: frozenset[int] | None


class MemberIdGiven(Exception):  # noqa: N818 - named for what it is
    """The coordinator has given the member an id, with which it must join again."""

    def __init__(self, member_id: str) -> None:
        super().__init__(member_id)
        self.member_id = member_id


async def join_group(
    door: SpeaksKafka, group: str, member_id: str, session_timeout_ms: int, rebalance_timeout_ms: int
) -> JoinedGroup:
    """Join the next generation (JoinGroup). Raises MemberIdGiven."""
    body = {
        "group_id": group,
        "session_timeout": session_timeout_ms,
        "rebalance_timeout": rebalance_timeout_ms,
        "member_id": member_id,
        "group_instance_id": None,
        "protocol_type": PROTOCOL_TYPE,
        "protocols": [{"name": PROTOCOL, "metadata": b""}],
        "reason": None,
    }
    response = await door.kafka(11, 9, body)
    if response.error_code.name == "member_id_required":
        raise MemberIdGiven(response.member_id)
    check_code(response.error_code)
    own, leader = str(response.member_id), str(response.leader)
    return JoinedGroup(own, response.generation_id, own == leader, sorted(one.member_id for one in response.members))


async def sync_group(
    door: SpeaksKafka, group: str, joined: JoinedGroup, assignments: Mapping[str, Collection[int]]
) -> frozenset[int]:
    """Return the partitions of a member (SyncGroup). assignments: of all members, from the leader."""
    body = {
        "group_id": group,
        "generation_id": joined.generation,
        "member_id": joined.member_id,
        "group_instance_id": None,
        "protocol_type": PROTOCOL_TYPE,
        "protocol_name": PROTOCOL,
        "assignments": [
            {"member_id": member_id, "assignment": bytes(sorted(partitions))}
            for member_id, partitions in assignments.items()
        ],
    }
    response = await door.kafka(14, 5, body)
    check_code(response.error_code)
    return frozenset(response.assignment)


async def heartbeat(door: SpeaksKafka, group: str, joined: JoinedGroup) -> None:
    """Stay a member of a generation (Heartbeat)."""
    body = {"group_id": group, "generation_id": joined.generation, "member_id": joined.member_id}
    response = await door.kafka(12, 4, body | {"group_instance_id": None})
    check_code(response.error_code)


async def leave_group(door: SpeaksKafka, group: str, member_id: str) -> None:
    """Leave a group of the classic protocol (LeaveGroup)."""
    member = {"member_id": member_id, "group_instance_id": None, "reason": None}
    response = await door.kafka(13, 5, {"group_id": group, "members": [member]})
    check_code(response.error_code)


async def consumer_heartbeat(
    door: SpeaksKafka,
    group: str,
    member: tuple[str, int],
    topic: tuple[str, UUID],
    owned: Collection[int],
    rebalance_timeout_ms: int,
) -> Beat:
    """Join, stay in or leave a group of the consumer protocol (ConsumerGroupHeartbeat, KIP-848).

    member: its id and epoch; 0 to join, -1 to leave. topic: the name and id of the one topic that it reads.
    """
    member_id, epoch = member
    body = {
        "group_id": group,
        "member_id": member_id,
        "member_epoch": epoch,
        "instance_id": None,
        "rack_id": None,
        "rebalance_timeout": rebalance_timeout_ms,
        "subscribed_topic_names": (topic[0],),
        "subscribed_topic_regex": None,
        "server_assignor": None,
        "topic_partitions": [{"topic_id": topic[1], "partitions": sorted(owned)}] if owned else (),
    }
    response = await door.kafka(68, 1, body)
    check_code(response.error_code, response.error_message)
    if response.assignment is None:
        return Beat(response.member_epoch, None)
    return Beat(
        response.member_epoch,
        frozenset(number for of_topic in response.assignment.topic_partitions for number in of_topic.partitions),
    )
