"""The steps by which a member comes from what it reads to what it shall read. Source: KIP-848, "Assignment
reconciliation"; the table is in `consumer_member`."""

from collections.abc import Callable
from dataclasses import replace

from conveyor.groups.known_topics import Assigned, TopicIdPartition
from conveyor.groups.records.consumer_member import Current, MemberState

_NOTHING: Assigned = frozenset()


def reconciled(
    current: Current,
    target: Assigned,
    target_epoch: int,
    owned: Assigned | None,
    is_taken: Callable[[TopicIdPartition], bool],
) -> Current:
    """A member's next step, or where it is.

    owned: what the member says that it reads; None if it does not say. is_taken: whether another member reads it still.
    """
    if current.state is MemberState.STABLE and current.epoch == target_epoch:
        return current
    if current.state is MemberState.UNREVOKED and (owned is None or owned & current.revoking):
        return current
    kept = current.assigned & target
    revoking = current.assigned - kept
    if revoking and (owned is None or owned & revoking):
        return replace(
            current,
            state=MemberState.UNREVOKED,
            previous_epoch=current.epoch,
            assigned=kept,
            revoking=revoking,
        )
    taken = frozenset(each for each in target - kept if is_taken(each))
    return Current(
        epoch=target_epoch,
        previous_epoch=current.epoch,
        state=MemberState.UNRELEASED if taken else MemberState.STABLE,
        assigned=target - taken,
        revoking=_NOTHING,
    )
