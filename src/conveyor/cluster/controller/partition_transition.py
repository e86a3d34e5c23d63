"""The transitions of one partition: its ISR, its eligible leaders, its leader and its epochs after any change.

`settled` takes the partition, the change that a decision wants, and the rules that apply. All decisions end here, in
this order:

    complete   all targets of a reassignment are in the ISR: the targets become the replicas; also after an election,
               whose winner may be the only target
    shrink     brokers that are fenced or stopping leave the ISR, unless no other member is live
    elect      see the table
    ELR        replicas that leave an ISR below its minimum stay eligible (KIP-966)

    leader before          condition                                     leader after      ISR after
    live, in the ISR       not stopping, or no other member is ready     the same          as shrunk
    any other, or none     a member of the ISR is ready                  first in order    as shrunk
                           else an eligible replica is ready             first in order    the leader
                           else unclean elections are allowed and a      last known,      the leader
                           replica is ready                              then in order
                           else                                          none              as shrunk

A broker is ready if it is live and not stopping. The order is that of the replicas.

    leader epoch      rises with a new leader, with the loss of the leader, with an unclean election, and when a
                      replica is dropped, which might be added again with an empty log: what it has reported must not
                      count then; before a replica's log begins again; not with a change of the ISR alone (KAFKA-15021)
    partition epoch   rises with every stored change, see `ImageDraft`

Invariants: the leader is in the ISR. The ISR and the ELR are disjoint parts of the replicas. A partition with as many
in-sync replicas as it needs has no ELR. The ISR loses its last members only if their records are lost.
"""

from collections.abc import Iterable
from enum import Enum, auto

import msgspec
from msgspec.structs import replace

from conveyor.cluster.controller.liveness import Liveness
from conveyor.cluster.image import NO_LEADER, PartitionImage
from conveyor.kernel.ids import LeaderEpoch, NodeId

_NOBODY: frozenset[NodeId] = frozenset()


class Election(Enum):
    """The candidates of an election. PREFERRED: the first replica takes over from a leader that is live."""

    CLEAN = auto()
    PREFERRED = auto()
    UNCLEAN = auto()


class Rules(msgspec.Struct, frozen=True, kw_only=True):
    """The rules of one transition.

    min_insync: `min.insync.replicas` of the topic. lost: brokers that may lack committed records: they leave the ISR
    and the ELR. wiped: those of them whose directory is new. begins_epoch: the leader epoch rises even if the leader
    stays, so that what replicas have reported in the present epoch no longer counts.
    """

    liveness: Liveness
    min_insync: int
    election: Election = Election.CLEAN
    lost: frozenset[NodeId] = _NOBODY
    wiped: frozenset[NodeId] = _NOBODY
    begins_epoch: bool = False


class _Elected(msgspec.Struct, frozen=True):
    """The winner of an election, and the ISR with which it begins."""

    leader: NodeId
    isr: tuple[NodeId, ...]
    is_unclean: bool = False


def settled(before: PartitionImage, wanted: PartitionImage, rules: Rules) -> PartitionImage:
    """Return the partition after a change. See the module's docstring.

    wanted: `before` with another ISR, or other replicas. Equal to `before` if nothing is to change.
    """
    completed = _completed(replace(wanted, isr=_ordered(wanted.replicas, set(wanted.isr) - rules.lost)))
    isr = _shrunk(completed.isr, rules.liveness)
    eligible = (set(before.isr) | set(before.elr)) - rules.lost
    elected = _elected(replace(completed, isr=isr, elr=_ordered(completed.replicas, eligible)), rules)
    completed = _completed(replace(completed, isr=elected.isr))
    is_enough = len(completed.isr) >= effective_min_insync(completed, rules.min_insync)
    elr = () if is_enough or elected.is_unclean else _ordered(completed.replicas, eligible - set(completed.isr))
    is_new_term = elected.leader != before.leader or elected.is_unclean or _drops_replicas(before, completed)
    is_new_term |= rules.begins_epoch
    epoch = LeaderEpoch(before.leader_epoch + is_new_term)
    return replace(
        completed,
        leader=elected.leader,
        leader_epoch=epoch,
        elr=elr,
        last_known_leader=_last_known_leader(before, completed, elected.leader, rules.wiped),
        unclean_epoch=epoch if elected.is_unclean else before.unclean_epoch,
    )


def effective_min_insync(partition: PartitionImage, min_insync: int) -> int:
    """Return the size that the ISR needs for the high watermark to rise: no more than there are replicas.

    Below it no record is committed, so replicas that leave such an ISR have every committed record (KAFKA-15583).
    """
    return min(min_insync, partition.replication_factor)


def _completed(wanted: PartitionImage) -> PartitionImage:
    """End a reassignment if all of its targets are in the ISR, not only the added ones (KAFKA-15665)."""
    if not wanted.target or not set(wanted.target) <= set(wanted.isr):
        return wanted
    return replace(wanted, replicas=wanted.target, isr=wanted.target, origin=(), target=())


def _shrunk(isr: tuple[NodeId, ...], liveness: Liveness) -> tuple[NodeId, ...]:
    """Return the members that stay. If none is live all stay: each of them has every committed record (KAFKA-708)."""
    ready = tuple(node for node in isr if node in liveness.ready)
    return ready or tuple(node for node in isr if node in liveness.live) or isr


def _elected(partition: PartitionImage, rules: Rules) -> _Elected:
    """partition.elr: all replicas with every committed record, also those in the ISR."""
    ready, isr = rules.liveness.ready, partition.isr
    in_sync = [node for node in partition.replicas if node in isr and node in ready]
    if rules.election is Election.PREFERRED and partition.replicas[0] in in_sync:
        return _Elected(partition.replicas[0], isr)
    stays = partition.leader in isr and partition.leader in rules.liveness.live
    if stays and (partition.leader in ready or not in_sync):
        return _Elected(partition.leader, isr)
    if in_sync:
        return _Elected(in_sync[0], isr)
    eligible = [node for node in partition.elr if node in ready]
    if eligible:
        return _Elected(eligible[0], (eligible[0],))
    return _unclean(partition, rules) or _Elected(NO_LEADER, isr)


def _unclean(partition: PartitionImage, rules: Rules) -> _Elected | None:
    """Elect the last known leader, else the first replica; a replica that is being added comes last."""
    if rules.election is not Election.UNCLEAN:
        return None
    first = [partition.last_known_leader, *(node for node in partition.replicas if node not in partition.adding)]
    for node in (*first, *partition.adding):
        if node in rules.liveness.ready and node in partition.replicas:
            return _Elected(node, (node,), is_unclean=True)
    return None


def _drops_replicas(before: PartitionImage, after: PartitionImage) -> bool:
    """Return whether a reassignment, or its cancellation, drops replicas."""
    return not set(before.replicas) <= set(after.replicas)


def _last_known_leader(
    before: PartitionImage, after: PartitionImage, leader: NodeId, wiped: frozenset[NodeId]
) -> NodeId:
    """Return the leader before the partition lost it, as long as the partition has none. If its records are lost, it is
    the last one that an unclean election should choose: the next replica is preferred.
    """
    if leader != NO_LEADER:
        return NO_LEADER
    last = before.last_known_leader if before.leader == NO_LEADER else before.leader
    if last not in after.replicas:
        return NO_LEADER
    if last not in wiped:
        return last
    place = after.replicas.index(last)
    others = (*after.replicas[place + 1 :], *after.replicas[:place])
    return next((node for node in others if node not in wiped and node not in after.adding), NO_LEADER)


def _ordered(replicas: tuple[NodeId, ...], nodes: Iterable[NodeId]) -> tuple[NodeId, ...]:
    members = set(nodes)
    return tuple(node for node in replicas if node in members)
