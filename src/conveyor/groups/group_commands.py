"""What a coordinator can be asked. Times are in ms; `generation_id` -1 and `member_id` "" mean: not a member."""

from collections.abc import Mapping
from dataclasses import dataclass

from conveyor.groups.known_topics import Assigned, KnownTopics
from conveyor.settings.tree import GroupsSettings

NO_GENERATION = -1
NO_MEMBER = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinGroup:
    """Become a member, or say what one supports now. `protocols`: (name, subscription), the preferred one first.

    new_member_id: what the member is called if it has no id yet. requires_known_id: a new member is first told its id
    and joins with that (KIP-394), so that a lost answer leaves no ghost behind.
    """

    group_id: str
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


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncGroup:
    """Ask for one's assignment; the leader brings everybody's, by member id."""

    group_id: str
    generation_id: int
    member_id: str
    assignments: dict[str, bytes]
    group_instance_id: str | None = None
    protocol_type: str | None = None
    protocol_name: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Heartbeat:
    """Say that a member lives."""

    group_id: str
    generation_id: int
    member_id: str
    group_instance_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LeavingMember:
    """One who leaves: by member id, or a static member by its instance id."""

    member_id: str
    group_instance_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaveGroup:
    """Take members out of a group."""

    group_id: str
    members: tuple[LeavingMember, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetToCommit:
    """How far a group has read one partition: the next offset to read, its leader epoch (or -1), and a note."""

    topic: str
    partition: int
    offset: int
    leader_epoch: int
    metadata: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitOffsets:
    """Remember how far a group has read. In the consumer protocol, `generation_id` is the member's epoch.

    knows_member_epochs: the request is of a version that has them.
    """

    group_id: str
    generation_id: int
    member_id: str
    offsets: tuple[OffsetToCommit, ...]
    group_instance_id: str | None = None
    knows_member_epochs: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchOffsets:
    """Ask how far a group has read: some partitions, or (None) all that it has committed.

    member_id, member_epoch: given by members of the consumer protocol.
    """

    group_id: str
    partitions: tuple[tuple[str, int], ...] | None
    member_id: str | None = None
    member_epoch: int = NO_GENERATION


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerHeartbeat:
    """A member of the consumer protocol (KIP-848) joins (epoch 0), lives, or leaves (-1; -2: for a while).

    None and -1 mean: as it was. new_member_id: what the member is called if it has no id and need not have one.
    topics, pattern: what it wants to read. owned: what it reads now.
    """

    group_id: str
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
    owned: Assigned | None = None
    requires_member_id: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class ListGroups:
    """Ask which groups there are: those in one of these states and of one of these types, in lower case; empty: all."""

    states: frozenset[str] = frozenset()
    types: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeGroup:
    """Ask what a group of the classic protocol is doing, and who is in it."""

    group_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeConsumerGroup:
    """Ask what a group of the consumer protocol is doing, and who is in it."""

    group_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteGroup:
    """Forget a group without members, and its offsets."""

    group_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteOffsets:
    """Forget how far a group has read some partitions, of topics that none of its members reads now."""

    group_id: str
    partitions: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateTopics:
    """Be told which topics there are now."""

    topics: KnownTopics


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateSettings:
    """Take other settings. `own`: all that holds for a group with something of its own, by group id."""

    defaults: GroupsSettings
    own: Mapping[str, GroupsSettings]


OneGroupCommand = (
    JoinGroup
    | SyncGroup
    | Heartbeat
    | LeaveGroup
    | CommitOffsets
    | FetchOffsets
    | ConsumerHeartbeat
    | DescribeGroup
    | DescribeConsumerGroup
    | DeleteGroup
    | DeleteOffsets
)
GroupCommand = OneGroupCommand | ListGroups | UpdateTopics | UpdateSettings
