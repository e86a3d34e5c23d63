"""Invalid requests about groups.

Source: Kafka's KafkaApis, GroupCoordinatorService, GroupMetadataManager and OffsetMetadataManager; KIP-848.
"""

from typing import Any

from kio.schema.errors import ErrorCode as E

from tests.unit.kafka_api.illegal_row import Given, Row, Values
from tests.unit.kafka_api.illegal_world import MEMBER_METADATA_MAX_BYTES, beat
from tests.unit.kafka_api.illegal_world import join_values as join


def commit(
    group_id: str = "g", member_id: Any = "", generation: Any = -1, topic: str = "t", number: int = 0, **more: Any
) -> Values:
    offset = {"partition_index": number, "committed_offset": 1, "committed_metadata": "note"} | more
    known_id = Given.TOPIC_ID if topic == "t" else Given.UNKNOWN_ID
    return {
        "group_id": group_id, "member_id": member_id, "group_instance_id": None, "retention_time": -1,
        "generation_id": generation, "generation_id_or_member_epoch": generation,
        "topics": [{"name": topic, "topic_id": known_id, "partitions": [offset]}],
    }  # fmt: skip


CLASSIC = ("classic", Given.CLASSIC_MEMBER)
CONSUMER = ("consumers", "m1")

OFFSET_COMMIT = [
    Row(8, (2, 9), "an unknown topic", commit(topic="nothing"), E.unknown_topic_or_partition),
    Row(8, (10,), "an unknown topic id", commit(topic="nothing"), E.unknown_topic_id),
    Row(8, (2, 9), "a partition beyond the last", commit(number=1), E.unknown_topic_or_partition),
    Row(8, (9,), "a negative partition", commit(number=-1), E.unknown_topic_or_partition),
    Row(8, (2, 10), "a note too long", commit(committed_metadata="n" * 4097), E.offset_metadata_too_large),
    Row(8, (2, 8), "a generation of an unknown group", commit("nobody", "m", 3), E.illegal_generation),
    Row(8, (9, 10), "a member of an unknown group", commit("nobody", "m", 3), E.group_id_not_found),
    Row(8, (2, 10), "a group that has members, from outside", commit("classic"), E.unknown_member_id),
    Row(8, (2, 10), "an unknown member", commit("classic", "m", 1), E.unknown_member_id),
    Row(8, (2, 10), "an old generation", commit(*CLASSIC, 0), E.illegal_generation),
    Row(
        8, (2, 10), "a member without assignment", commit("unsynced", Given.UNSYNCED_MEMBER, 1), E.rebalance_in_progress
    ),
    Row(
        8,
        (7, 10),
        "a fenced static member",
        commit("static", "other", 1) | {"group_instance_id": "desk"},
        E.fenced_instance_id,
    ),
    Row(8, (2, 8), "a consumer, in an old version", commit(*CONSUMER, Given.CONSUMER_EPOCH), E.unsupported_version),
    Row(8, (9, 10), "a consumer's wrong epoch", commit(*CONSUMER, Given.WRONG_EPOCH), E.stale_member_epoch),
    Row(8, (9, 10), "an unknown consumer", commit("consumers", "m9", 1), E.unknown_member_id),
]


def offset_fetch(group_id: str = "g", member_id: str | None = None, epoch: Any = -1, topic: str = "t") -> Values:
    known_id = Given.TOPIC_ID if topic == "t" else Given.UNKNOWN_ID
    topics = [{"name": topic, "topic_id": known_id, "partition_indexes": (0,)}]
    group = {"group_id": group_id, "member_id": member_id, "member_epoch": epoch, "topics": topics}
    return group | {"groups": [group], "require_stable": False}


OFFSET_FETCH = [
    Row(9, (1, 10), "an unknown group: it has no offsets", offset_fetch("nobody"), E.none),
    Row(9, (1, 9), "an unknown topic: it has no offsets", offset_fetch(topic="nothing"), E.none),
    Row(9, (10,), "an unknown topic id", offset_fetch(topic="nothing"), E.unknown_topic_id),
    Row(9, (9, 10), "an unknown consumer", offset_fetch("consumers", "m9", 1), E.unknown_member_id),
    Row(9, (9, 10), "a consumer's wrong epoch", offset_fetch(*CONSUMER, Given.WRONG_EPOCH), E.stale_member_epoch),
]


def coordinator(key: str, key_type: int) -> Values:
    return {"key": key, "key_type": key_type, "coordinator_keys": (key,)}


FIND_COORDINATOR = [
    Row(10, (1, 4, 6), "a share group: they are not offered", coordinator("x", 2), E.invalid_request),
    Row(10, (1, 4, 6), "an unknown type of key", coordinator("x", 9), E.invalid_request),
    Row(10, (1, 4, 6), "a negative type of key", coordinator("x", -1), E.invalid_request),
    Row(10, (0, 4, 6), "an empty group id: it may have offsets", coordinator("", 0), E.none),
]

TOO_MUCH = [{"name": "range", "metadata": bytes(MEMBER_METADATA_MAX_BYTES + 1)}]
NO_PROTOCOL: dict[str, Any] = {"protocols": []}

JOIN_GROUP = [
    Row(11, (0, 9), "an empty group id", join(""), E.invalid_group_id),
    Row(11, (0, 9), "a session too short", join("g", session_timeout=1), E.invalid_session_timeout),
    Row(11, (0, 9), "a session too long", join("g", session_timeout=1_800_001), E.invalid_session_timeout),
    Row(11, (9,), "a negative session", join("g", session_timeout=-1), E.invalid_session_timeout),
    Row(11, (0, 9), "no protocol", join("g", **NO_PROTOCOL), E.inconsistent_group_protocol),
    Row(11, (0, 9), "no type of protocol", join("g", protocol_type=""), E.inconsistent_group_protocol),
    Row(11, (0, 9), "another type", join("classic", protocol_type="consumer"), E.inconsistent_group_protocol),
    Row(
        11,
        (0, 9),
        "protocols that nobody shares",
        join("classic", protocols=[{"name": "own", "metadata": b""}]),
        E.inconsistent_group_protocol,
    ),
    Row(11, (0, 9), "a member of an unknown group", join("nobody", "m"), E.unknown_member_id),
    Row(11, (0, 9), "an unknown member", join("classic", "m"), E.unknown_member_id),
    Row(11, (4, 9), "no member id yet", join("newcomers"), E.member_id_required),
    Row(11, (5, 9), "a fenced static member", join("static", "m", group_instance_id="desk"), E.fenced_instance_id),
    Row(11, (0, 9), "a full group", join("waiting"), E.group_max_size_reached),
    Row(11, (9,), "subscriptions too large", join("g", protocols=TOO_MUCH), E.message_too_large),
    Row(11, (0, 9), "another type, where consumers are", join("consumers"), E.inconsistent_group_protocol),
]


def member(group_id: str, member_id: Any = "m", generation: int = 1, **more: Any) -> Values:
    identity = {"group_id": group_id, "member_id": member_id, "generation_id": generation, "group_instance_id": None}
    return identity | {"assignments": []} | more


def sync(group_id: str, member_id: Any = "m", generation: int = 1, **more: Any) -> Values:
    return member(group_id, member_id, generation, **{"protocol_type": "connect", "protocol_name": "range"} | more)


WAITING = ("waiting", Given.WAITED_FOR_MEMBER)

HEARTBEAT = [
    Row(12, (0, 4), "an empty group id", member(""), E.invalid_group_id),
    Row(12, (0, 4), "an unknown group", member("nobody"), E.unknown_member_id),
    Row(12, (0, 4), "an unknown member", member("classic"), E.unknown_member_id),
    Row(12, (0, 4), "an old generation", member(*CLASSIC, 0), E.illegal_generation),
    Row(12, (4,), "a negative generation", member(*CLASSIC, -1), E.illegal_generation),
    Row(12, (0, 4), "a group that rebalances", member(*WAITING), E.rebalance_in_progress),
    Row(12, (3, 4), "a fenced static member", member("static", group_instance_id="desk"), E.fenced_instance_id),
    Row(12, (0, 4), "a member of the consumer protocol", member(*CONSUMER), E.unknown_member_id),
]

SYNC_GROUP = [
    Row(14, (0, 5), "an empty group id", sync(""), E.invalid_group_id),
    Row(14, (0, 5), "an unknown group", sync("nobody"), E.unknown_member_id),
    Row(14, (0, 5), "an unknown member", sync("classic"), E.unknown_member_id),
    Row(14, (0, 5), "an old generation", sync(*CLASSIC, 0), E.illegal_generation),
    Row(14, (0, 5), "a group that rebalances", sync(*WAITING), E.rebalance_in_progress),
    Row(14, (3, 5), "a fenced static member", sync("static", group_instance_id="desk"), E.fenced_instance_id),
    Row(14, (5,), "no type of protocol", sync(*CLASSIC, protocol_type=None), E.inconsistent_group_protocol),
    Row(14, (5,), "no protocol", sync(*CLASSIC, protocol_name=None), E.inconsistent_group_protocol),
    Row(14, (5,), "another type of protocol", sync(*CLASSIC, protocol_type="x"), E.inconsistent_group_protocol),
    Row(14, (5,), "another protocol", sync(*CLASSIC, protocol_name="x"), E.inconsistent_group_protocol),
    Row(14, (0, 5), "a member of the consumer protocol", sync(*CONSUMER), E.unknown_member_id),
]


def leave(group_id: str, member_id: Any = "m", instance_id: str | None = None) -> Values:
    leaving = {"member_id": member_id, "group_instance_id": instance_id}
    return {"group_id": group_id, "member_id": member_id, "members": [leaving]}


LEAVE_GROUP = [
    Row(13, (0, 5), "an empty group id", leave(""), E.invalid_group_id),
    Row(13, (0, 3, 5), "an unknown group", leave("nobody"), E.unknown_member_id),
    Row(13, (0, 3, 5), "an unknown member", leave("classic"), E.unknown_member_id),
    Row(13, (3, 5), "an unknown instance", leave("static", "", "sofa"), E.unknown_member_id),
    Row(13, (3, 5), "a fenced static member", leave("static", "m", "desk"), E.fenced_instance_id),
    Row(13, (0, 5), "a member of the consumer protocol", leave(*CONSUMER), E.unknown_member_id),
]


def groups(*names: str) -> Values:
    return {"groups": names, "group_ids": names, "groups_names": names, "include_authorized_operations": False}


ADMINISTRATION = [
    Row(15, (6,), "an unknown group", groups("nobody"), E.group_id_not_found),
    Row(15, (0, 5), "an unknown group, in an old version: it is dead", groups("nobody"), E.none),
    Row(15, (6,), "a group of the consumer protocol", groups("consumers"), E.group_id_not_found),
    Row(15, (6,), "an empty group id", groups(""), E.group_id_not_found),
    Row(16, (4, 5), "a state that is none", {"states_filter": ("Sleepy",), "types_filter": ()}, E.none),
    Row(16, (5,), "a type that is none", {"states_filter": (), "types_filter": ("sleepy",)}, E.none),
    Row(42, (0, 2), "an unknown group", groups("nobody"), E.group_id_not_found),
    Row(42, (0, 2), "an empty group id", groups(""), E.group_id_not_found),
    Row(42, (0, 2), "a group with members", groups("classic"), E.non_empty_group),
    Row(42, (0, 2), "a group with consumers", groups("consumers"), E.non_empty_group),
    Row(69, (0, 1), "an unknown group", groups("nobody"), E.group_id_not_found),
    Row(69, (0, 1), "a group of the classic protocol", groups("classic"), E.group_id_not_found),
    Row(69, (0, 1), "an empty group id", groups(""), E.invalid_group_id),
]


def forget(group_id: str, topic: str = "t", partition: int = 0) -> Values:
    return {"group_id": group_id, "topics": [{"name": topic, "partitions": [{"partition_index": partition}]}]}


OFFSET_DELETE = [
    Row(47, (0,), "an empty group id", forget(""), E.invalid_group_id),
    Row(47, (0,), "an unknown group", forget("nobody"), E.group_id_not_found),
    Row(47, (0,), "a group with members that are no consumers", forget("classic"), E.non_empty_group),
    Row(47, (0,), "a topic that is read", forget("consumers"), E.group_subscribed_to_topic),
    Row(47, (0,), "an unknown topic", forget("consumers", "nothing"), E.unknown_topic_or_partition),
    Row(47, (0,), "a negative partition", forget("consumers", "t", -1), E.unknown_topic_or_partition),
]


OWNED = [{"topic_id": Given.TOPIC_ID, "partitions": (0,)}]
NOTHING_SAID: Values = {"subscribed_topic_names": None, "subscribed_topic_regex": None}

CONSUMER_GROUP_HEARTBEAT = [
    Row(68, (0, 1), "an empty group id", beat(""), E.invalid_request),
    Row(68, (1,), "no member id", beat("g", ""), E.invalid_request),
    Row(68, (0,), "no member id, when in the group", beat("consumers", "", 1), E.invalid_request),
    Row(68, (0, 1), "an epoch below -2", beat("g", member_epoch=-3), E.invalid_request),
    Row(68, (0, 1), "an empty instance id", beat("g", instance_id=""), E.invalid_request),
    Row(68, (0, 1), "an empty rack", beat("g", rack_id=""), E.invalid_request),
    Row(68, (0, 1), "no rebalance timeout", beat("g", rebalance_timeout=-1), E.invalid_request),
    Row(68, (0, 1), "partitions of a new member", beat("g", topic_partitions=OWNED), E.invalid_request),
    Row(68, (0, 1), "null partitions of a new member", beat("g", topic_partitions=None), E.invalid_request),
    Row(68, (0, 1), "no subscription", beat("g", **NOTHING_SAID), E.invalid_request),
    Row(68, (0, 1), "a leave for a while without instance", beat("consumers", member_epoch=-2), E.invalid_request),
    Row(68, (0, 1), "an unknown assignor", beat("g", server_assignor="x"), E.unsupported_assignor),
    Row(68, (1,), "a pattern that is none", beat("g", subscribed_topic_regex="("), E.invalid_regular_expression),
    Row(68, (0, 1), "an epoch in an unknown group", beat("nobody", "m", 3), E.group_id_not_found),
    Row(68, (0, 1), "a leave from an unknown group", beat("nobody", "m", -1), E.group_id_not_found),
    Row(68, (0, 1), "an unknown member", beat("consumers", "m9", 1), E.unknown_member_id),
    Row(68, (0, 1), "a leave of an unknown member", beat("consumers", "m9", -1), E.unknown_member_id),
    Row(68, (0, 1), "an epoch yet to come", beat(member_epoch=Given.WRONG_EPOCH), E.fenced_member_epoch),
    Row(68, (0, 1), "an instance in use", beat("consumers", "m9", instance_id="chair"), E.unreleased_instance_id),
    Row(68, (0, 1), "another's instance", beat("consumers", "m9", 1, instance_id="chair"), E.fenced_instance_id),
    Row(68, (0, 1), "an unknown instance", beat("consumers", "m1", 1, instance_id="sofa"), E.unknown_member_id),
    Row(68, (0, 1), "a full group", beat("crowd", "c9"), E.group_max_size_reached),
    Row(68, (0, 1), "a group of the classic protocol", beat("classic", "m9"), E.group_id_not_found),
]

ROWS = [
    *OFFSET_COMMIT,
    *OFFSET_FETCH,
    *FIND_COORDINATOR,
    *JOIN_GROUP,
    *HEARTBEAT,
    *SYNC_GROUP,
    *LEAVE_GROUP,
    *ADMINISTRATION,
    *OFFSET_DELETE,
    *CONSUMER_GROUP_HEARTBEAT,
]
