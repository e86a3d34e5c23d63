"""The reconciliation of a member's current assignment with its target. Source: KIP-848, "Assignment reconciliation".
The transition table is in `consumer_member`.
"""

from collections.abc import Callable

import msgspec

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
    """Return a member's next state, or its current state if it cannot advance.

    owned: the partitions that the member reports as owned; None if it reports none.
    is_taken: whether another member still owns a partition.
    """
    if current.state is MemberState.STABLE and current.epoch == target_epoch:
        return current
    if current.state is MemberState.UNREVOKED and (owned is None or owned & current.revoking):
        return current
    kept = current.assigned & target
    revoking = current.assigned - kept
    if revoking and (owned is None or owned & revoking):
        return msgspec.structs.replace(
            current,
            state=MemberState.UNREVOKED,
            previous_epoch=current.epoch,
            assigned=kept,
            revoking=revoking,
        )
    taken = frozenset(partition for partition in target - kept if is_taken(partition))
    return Current(
        epoch=target_epoch,
        previous_epoch=current.epoch,
        state=MemberState.UNRELEASED if taken else MemberState.STABLE,
        assigned=target - taken,
        revoking=_NOTHING,
    )
