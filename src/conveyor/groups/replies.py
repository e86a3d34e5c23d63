"""The replies of a group coordinator. A refusal is a `RequestError` instead."""

import msgspec

from conveyor.groups.known_topics import Assigned
from conveyor.groups.records.consumer_member import Current, MemberSubscription
from conveyor.groups.records.group_records import MemberValue
from conveyor.kernel.errors import RequestError


class JoinedMember(msgspec.Struct, frozen=True, kw_only=True):
    """A member as the leader sees it. `metadata`: its subscription in the chosen protocol."""

    member_id: str
    group_instance_id: str | None
    metadata: bytes


class Joined(msgspec.Struct, frozen=True, kw_only=True):
    """A member's place in a new generation. Only the leader, which computes the assignment, gets `members`."""

    generation_id: int
    protocol_type: str
    protocol_name: str
    leader: str
    member_id: str
    members: tuple[JoinedMember, ...] = ()
    skip_assignment: bool = False


class JoinRefused(msgspec.Struct, frozen=True, kw_only=True):
    """The refusal of a join. For MEMBER_ID_REQUIRED, `member_id` is the id to join with."""

    error: RequestError
    member_id: str


class Synced(msgspec.Struct, frozen=True, kw_only=True):
    """A member's assignment."""

    protocol_type: str
    protocol_name: str
    assignment: bytes


class Alive(msgspec.Struct, frozen=True, kw_only=True):
    """The session is renewed and no rebalance is due."""


class Left(msgspec.Struct, frozen=True, kw_only=True):
    """For each member in the request, in order: None, or why it could not be removed."""

    errors: tuple[RequestError | None, ...]


class Committed(msgspec.Struct, frozen=True, kw_only=True):
    """For each offset in the request, in order: None, or why it was refused."""

    errors: tuple[RequestError | None, ...]


class CommittedOffset(msgspec.Struct, frozen=True, kw_only=True):
    """A partition's committed offset; -1 if the group has committed none. is_unstable: an open transaction may commit
    another one, and the client requires stable offsets (KIP-447).
    """

    topic: str
    partition: int
    offset: int = -1
    leader_epoch: int = -1
    metadata: str = ""
    is_unstable: bool = False


class FetchedOffsets(msgspec.Struct, frozen=True, kw_only=True):
    """The requested offsets in the request's order, or all committed offsets sorted by topic and partition."""

    offsets: tuple[CommittedOffset, ...]


class ListedGroup(msgspec.Struct, frozen=True, kw_only=True):
    """One entry of a group list. `protocol_type` is empty if the group never had a member."""

    group_id: str
    protocol_type: str
    state: str
    group_type: str


class ListedGroups(msgspec.Struct, frozen=True, kw_only=True):
    """The groups that a coordinator partition has listed."""

    groups: tuple[ListedGroup, ...]


class DescribedGroup(msgspec.Struct, frozen=True, kw_only=True):
    """A classic group. The protocol's name and the members' subscriptions and assignments are empty unless the group is
    stable.
    """

    state: str
    protocol_type: str
    protocol_name: str
    members: tuple[MemberValue, ...]


class Deleted(msgspec.Struct, frozen=True, kw_only=True):
    """The group is deleted, or a part of its committed offsets: the command is repeated until it `is_complete`."""

    is_complete: bool = True


class OffsetsDeleted(msgspec.Struct, frozen=True, kw_only=True):
    """For each partition in the request, in order: None, or why its offset is kept."""

    errors: tuple[RequestError | None, ...]


class HeartbeatAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """A member's state in the consumer protocol. `assignment` is None if it has not changed since the last reply."""

    member_id: str
    member_epoch: int
    heartbeat_interval_ms: int
    assignment: Assigned | None


class DescribedConsumer(msgspec.Struct, frozen=True, kw_only=True):
    """A member of a consumer group: its subscription, its current state and its target assignment."""

    member_id: str
    subscription: MemberSubscription
    current: Current
    target: Assigned


class DescribedConsumerGroup(msgspec.Struct, frozen=True, kw_only=True):
    """A group of the consumer protocol."""

    state: str
    epoch: int
    target_epoch: int
    assignor: str
    members: tuple[DescribedConsumer, ...]


class TopicsUpdated(msgspec.Struct, frozen=True, kw_only=True):
    """The coordinator uses the new topics."""


class SettingsUpdated(msgspec.Struct, frozen=True, kw_only=True):
    """The coordinator uses the new settings."""
