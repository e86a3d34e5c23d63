"""What a coordinator answers. A refusal is a `RequestError` instead."""

from dataclasses import dataclass

from conveyor.groups.known_topics import Assigned
from conveyor.groups.records.consumer_member import Current, Subscription
from conveyor.kernel.errors import RequestError


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinedMember:
    """A member as the leader sees it: `metadata` is its subscription in the chosen protocol."""

    member_id: str
    group_instance_id: str | None
    metadata: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Joined:
    """A new generation. `members` is given to the leader only, who assigns."""

    generation_id: int
    protocol_type: str
    protocol_name: str
    leader: str
    member_id: str
    members: tuple[JoinedMember, ...] = ()
    skip_assignment: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinRefused:
    """Why a member may not join now; `member_id` is the one to join with, for MEMBER_ID_REQUIRED."""

    error: RequestError
    member_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Synced:
    """A member's assignment."""

    protocol_type: str
    protocol_name: str
    assignment: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Alive:
    """The heartbeat was heard, and nothing has changed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Left:
    """For each member that was to leave, in order: None, or why it could not."""

    errors: tuple[RequestError | None, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Committed:
    """For each offset, in order: None, or why it was not taken."""

    errors: tuple[RequestError | None, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CommittedOffset:
    """How far a group has read; offset -1 if it has committed nothing there."""

    topic: str
    partition: int
    offset: int = -1
    leader_epoch: int = -1
    metadata: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchedOffsets:
    """What was asked for, in order; or all, by topic and partition."""

    offsets: tuple[CommittedOffset, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedGroup:
    """A group in a list. `protocol_type` is empty if it has never had a member."""

    group_id: str
    protocol_type: str
    state: str
    group_type: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedGroups:
    """The groups of one coordinator partition, by name."""

    groups: tuple[ListedGroup, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribedMember:
    """A member of a classic group; `metadata` and `assignment` are empty while the group rebalances."""

    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    metadata: bytes
    assignment: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribedGroup:
    """A classic group; `protocol_name` is known while it is stable."""

    state: str
    protocol_type: str
    protocol_name: str
    members: tuple[DescribedMember, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Deleted:
    """The group is forgotten."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetsDeleted:
    """For each partition, in order: None, or why its offset is kept."""

    errors: tuple[RequestError | None, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class HeartbeatAnswer:
    """Where a member of the consumer protocol is; `assignment` is None if it knows what it reads."""

    member_id: str
    member_epoch: int
    heartbeat_interval_ms: int
    assignment: Assigned | None


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribedConsumer:
    """A member of a consumer group: who it is, where it is, and where it shall be."""

    member_id: str
    subscription: Subscription
    current: Current
    target: Assigned


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribedConsumerGroup:
    """A group of the consumer protocol."""

    state: str
    epoch: int
    target_epoch: int
    assignor: str
    members: tuple[DescribedConsumer, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicsUpdated:
    """The topics are known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingsUpdated:
    """The settings are in force."""
