"""The role of this broker for one partition: it leads the partition in one leader epoch, or it follows.

Roles are values; `Partition.assume` exchanges them.

    from \\ to       Leader                                 Follower
    Leader, e       e: its ISR or its right to append      e: no leader (this broker has resigned)
                    has changed; above e: elected again    above e: another broker leads
    Follower, e     above e only                           e or above

Epochs never fall, and each epoch has at most one leader term: a leader that has resigned leads again only in a higher
epoch. Sources: KIP-101, KIP-320.
"""

from dataclasses import dataclass

from conveyor.kernel.errors import FencedLeaderEpoch
from conveyor.kernel.ids import LeaderEpoch, NodeId

NO_UNCLEAN_EPOCH = LeaderEpoch(-1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Leader:
    """This broker leads the partition.

    leader: this broker. isr: the replicas whose progress the high watermark waits for, including this broker.
    replicas: all that are assigned, also out of sync.
    is_read_only: the epoch began before a crash, and the metadata store had no space for the next epoch. Appends are
    refused: the crash may have lost records of this epoch that a consumer has read, and other records must not replace
    them in the same epoch.
    partition_epoch: of the image that shows this ISR; see `PartitionImage`. min_isr: the high watermark rises only
    while the ISR has at least this many members, so that each eligible replica outside of the ISR has all committed
    records (KIP-966).
    """

    leader: NodeId
    epoch: LeaderEpoch
    isr: tuple[NodeId, ...]
    is_read_only: bool = False
    partition_epoch: int = 0
    min_isr: int = 1
    replicas: tuple[NodeId, ...] = ()

    def __post_init__(self) -> None:
        assert self.leader in self.isr, f"broker {self.leader} leads, and is not in the ISR {self.isr}"

    @property
    def has_enough_replicas(self) -> bool:
        """True if the ISR is large enough for the high watermark to rise."""
        return len(self.isr) >= self.min_isr

    @property
    def needs_lease(self) -> bool:
        """True if another broker may lead unseen by this one, because no other replica has to confirm a record."""
        return len(self.isr) < min(2, len(self.replicas))

    def resigned(self) -> "Follower":
        """Return the role of a leader that stops before the next leader is known."""
        return Follower(leader=None, epoch=self.epoch)


@dataclass(frozen=True, slots=True, kw_only=True)
class Follower:
    """This broker does not lead the partition. leader: None while no leader is known. unclean_epoch: see
    `PartitionImage`. has_all_committed: the image shows this replica in the ISR or ELR.
    """

    leader: NodeId | None
    epoch: LeaderEpoch
    unclean_epoch: LeaderEpoch = NO_UNCLEAN_EPOCH
    has_all_committed: bool = False


Role = Leader | Follower


def fenced_epoch(role: Role, message: str) -> FencedLeaderEpoch:
    """Return the error of a client that knows an older epoch than this role's. Source: KIP-320, KIP-951."""
    return FencedLeaderEpoch(message, role.leader, role.epoch)


def check_succession(before: Role, after: Role) -> None:
    """Raises AssertionError if `after` must not follow `before`; see the module's docstring."""
    if after.epoch > before.epoch:
        return
    is_same_epoch = after.epoch == before.epoch
    if isinstance(after, Follower):
        is_sound = is_same_epoch and (isinstance(before, Follower) or after.leader is None)
    else:
        is_sound = is_same_epoch and isinstance(before, Leader)
    assert is_sound, f"{after} cannot follow {before}"
