"""A member of a group of the consumer protocol (KIP-848): what it wants, and where it has got to. Immutable.

state        goes to                  when (a heartbeat, each time)
STABLE       UNREVOKED | UNRELEASED   the target assignment has changed
UNREVOKED    UNRELEASED | STABLE      the member does not own what it had to give up any more
UNRELEASED   STABLE                   others have given up all that the member waits for
"""

from dataclasses import dataclass
from enum import Enum

from conveyor.groups.known_topics import Assigned

JOINING_EPOCH = 0
LEAVING_EPOCH = -1
LEAVING_FOR_A_WHILE_EPOCH = -2
"""A static member goes, and will be back: nobody gets its partitions until its session ends."""


class MemberState(Enum):
    """See the module's docstring. The values are those of the log."""

    STABLE = 0
    UNREVOKED = 1
    UNRELEASED = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassicMember:
    """What a member that speaks the classic protocol says besides."""

    session_timeout_ms: int
    protocols: tuple[tuple[str, bytes], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Subscription:
    """Who a member is, and what it wants to read: topics by name, and those that a pattern matches."""

    instance_id: str | None
    rack_id: str | None
    client_id: str
    client_host: str
    topics: tuple[str, ...]
    pattern: str | None
    rebalance_timeout_ms: int
    assignor: str | None
    classic: ClassicMember | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Current:
    """Where a member has got to. `revoking`: what it must give up before it goes on."""

    epoch: int = JOINING_EPOCH
    previous_epoch: int = JOINING_EPOCH
    state: MemberState = MemberState.STABLE
    assigned: Assigned = frozenset()
    revoking: Assigned = frozenset()

    @property
    def owned(self) -> Assigned:
        """What nobody else may read meanwhile."""
        return self.assigned | self.revoking
