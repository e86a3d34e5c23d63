"""The commands of a group coordinator. Times are in ms. `generation_id` -1 and `member_id` "" mean that the sender
is not a member.
"""

from collections.abc import Collection, Mapping

import msgspec

from conveyor.groups.known_topics import KnownTopics, TopicIdPartition
from conveyor.groups.replies import (
    Alive,
    Committed,
    Deleted,
    DescribedConsumerGroup,
    DescribedGroup,
    FetchedOffsets,
    HeartbeatAnswer,
    Joined,
    JoinRefused,
    Left,
    ListedGroups,
    OffsetsDeleted,
    SettingsUpdated,
    Synced,
    TopicsUpdated,
)
from conveyor.kernel.access.caller import NO_CONNECTION
from conveyor.kernel.ids import ProducerIdentity
from conveyor.kernel.state_machine import Answer_co, Command
from conveyor.settings.tree import GroupsSettings

NO_GENERATION = -1
NO_MEMBER = ""


class GroupCommand(Command[Answer_co], frozen=True):
    """A command of a group coordinator."""


class OneGroupCommand(GroupCommand[Answer_co], frozen=True, kw_only=True):
    """A command for one group."""

    group_id: str


class JoinGroup(OneGroupCommand[Joined | JoinRefused], frozen=True, kw_only=True):
    """Join a group, or rejoin with new protocols. `protocols`: (name, subscription) pairs, the preferred protocol
    first.

    new_member_id: the id for a member that has none yet.
    requires_known_id: the coordinator first replies with the new member's id, and the member joins again with it
    (KIP-394). A lost reply then leaves no unknown member in the group.
    """

    member_id: str
    new_member_id: str
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocol_type: str
    protocols: tuple[tuple[str, bytes], ...]
    group_instance_id: str | None = None
    requires_known_id: bool = False
    skips_assignment: bool = False


class SyncGroup(OneGroupCommand[Synced], frozen=True, kw_only=True):
    """Request the member's assignment. The leader's request carries the assignments of all members, by member id."""

    generation_id: int
    member_id: str
    assignments: dict[str, bytes]
    group_instance_id: str | None = None
    protocol_type: str | None = None
    protocol_name: str | None = None


class Heartbeat(OneGroupCommand[Alive], frozen=True, kw_only=True):
    """Renew a member's session."""

    generation_id: int
    member_id: str
    group_instance_id: str | None = None


class LeavingMember(msgspec.Struct, frozen=True, kw_only=True):
    """A member that leaves, identified by its member id or, if static, by its group instance id."""

    member_id: str
    group_instance_id: str | None = None


class LeaveGroup(OneGroupCommand[Left], frozen=True, kw_only=True):
    """Remove members from a group."""

    members: tuple[LeavingMember, ...]


class OffsetToCommit(msgspec.Struct, frozen=True, kw_only=True):
    """The offset to commit for one partition: the next offset to read, its leader epoch (or -1), and the client's
    metadata string.
    """

    topic: str
    partition: int
    offset: int
    leader_epoch: int
    metadata: str


class CommitOffsets(OneGroupCommand[Committed], frozen=True, kw_only=True):
    """Commit a group's offsets. In the consumer protocol, `generation_id` is the member epoch.

    knows_member_epochs: whether the request's version supports member epochs.
    producer: if the offsets belong to a transaction, the producer that has it.
    connection: a number that rises with each connection that this broker accepts, or NO_CONNECTION; see `Committers`.
    """

    generation_id: int
    member_id: str
    offsets: tuple[OffsetToCommit, ...]
    group_instance_id: str | None = None
    knows_member_epochs: bool = True
    producer: ProducerIdentity | None = None
    connection: int = NO_CONNECTION


class FetchOffsets(OneGroupCommand[FetchedOffsets], frozen=True, kw_only=True):
    """Fetch a group's committed offsets: of the given partitions, or of all partitions if None.

    member_id, member_epoch: sent by members of the consumer protocol. requires_stable: do not give an offset that an
    open transaction may replace.
    """

    partitions: tuple[tuple[str, int], ...] | None
    member_id: str | None = None
    member_epoch: int = NO_GENERATION
    requires_stable: bool = False


class ConsumerHeartbeat(OneGroupCommand[HeartbeatAnswer], frozen=True, kw_only=True):
    """A heartbeat of the consumer protocol (KIP-848). member_epoch 0 joins, -1 leaves, -2 lets a static member leave
    temporarily.

    A field that is None or -1 is unchanged since the last heartbeat.
    new_member_id: the id for a member that may join without one.
    topics, pattern: the subscription.
    owned: the partitions that the member reads now, as it says: no set, because a client can choose topic ids so that
    all have the same hash.
    """

    member_id: str
    new_member_id: str
    member_epoch: int
    client_id: str
    client_host: str
    instance_id: str | None = None
    rack_id: str | None = None
    rebalance_timeout_ms: int = -1
    topics: tuple[str, ...] | None = None
    pattern: str | None = None
    assignor: str | None = None
    owned: Collection[TopicIdPartition] | None = None
    requires_member_id: bool = True


class ListGroups(GroupCommand[ListedGroups], frozen=True, kw_only=True):
    """List those of a coordinator's groups that are in one of these states and of one of these types, both in lower
    case. An empty set matches all.
    """

    group_ids: tuple[str, ...] = ()
    states: frozenset[str] = frozenset()
    types: frozenset[str] = frozenset()


class DescribeGroup(OneGroupCommand[DescribedGroup], frozen=True, kw_only=True):
    """Describe a classic group and its members."""


class DescribeConsumerGroup(OneGroupCommand[DescribedConsumerGroup], frozen=True, kw_only=True):
    """Describe a group of the consumer protocol and its members."""


class DeleteGroup(OneGroupCommand[Deleted], frozen=True, kw_only=True):
    """Delete a group without members, with its committed offsets, or the next part of these: see `Deleted`."""


class DeleteOffsets(OneGroupCommand[OffsetsDeleted], frozen=True, kw_only=True):
    """Delete committed offsets of partitions whose topics no member reads."""

    partitions: tuple[tuple[str, int], ...]


class UpdateTopics(GroupCommand[TopicsUpdated], frozen=True, kw_only=True):
    """Replace the coordinator's view of the cluster's topics."""

    topics: KnownTopics


class UpdateSettings(GroupCommand[SettingsUpdated], frozen=True, kw_only=True):
    """Replace the group settings. `own`: by group id, the complete settings of each group that overrides some of
    the defaults.
    """

    defaults: GroupsSettings
    own: Mapping[str, GroupsSettings]
