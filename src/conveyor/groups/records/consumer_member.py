"""A member of a group of the consumer protocol (KIP-848): its subscription and its reconciliation state. Immutable.

state        goes to                  when (always at a heartbeat)
STABLE       UNREVOKED | UNRELEASED   the target assignment has changed
UNREVOKED    UNRELEASED | STABLE      the member no longer owns the partitions that it had to revoke
UNRELEASED   STABLE                   other members have released all partitions that the member waits for
"""

from enum import Enum

import msgspec

from conveyor.groups.known_topics import Assigned

JOINING_EPOCH = 0
LEAVING_EPOCH = -1
TEMPORARY_LEAVE_EPOCH = -2
"""A static member leaves temporarily. It keeps its partitions until its session ends."""


class MemberState(Enum):
    """The states in the module's docstring. The values are those of the log's records."""

    STABLE = 0
    UNREVOKED = 1
    UNRELEASED = 2


class ClassicMember(msgspec.Struct, frozen=True, kw_only=True):
    """The additional state of a member that uses the classic protocol."""

    session_timeout_ms: int
    protocols: tuple[tuple[str, bytes], ...]


class MemberSubscription(msgspec.Struct, frozen=True, kw_only=True):
    """A member's identity and subscription: topics by name, and a pattern."""

    instance_id: str | None
    rack_id: str | None
    client_id: str
    client_host: str
    topics: frozenset[str]
    pattern: str | None
    rebalance_timeout_ms: int
    assignor: str | None
    classic: ClassicMember | None = None


class Current(msgspec.Struct, frozen=True, kw_only=True):
    """A member's reconciliation state. `revoking`: partitions that it must revoke before it advances."""

    epoch: int = JOINING_EPOCH
    previous_epoch: int = JOINING_EPOCH
    state: MemberState = MemberState.STABLE
    assigned: Assigned = frozenset()
    revoking: Assigned = frozenset()

    @property
    def owned(self) -> Assigned:
        """The partitions that no other member may read now."""
        return self.assigned | self.revoking
