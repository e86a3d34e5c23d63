"""A consumer group as it will be once the decided records are applied: a view of the group, and the records.

A draft never changes the group. The group changes when `records` are applied. The draft also advances members towards
their target assignment: the transition table is in `consumer_member`. Source: KIP-848, "Assignment reconciliation".
"""

from collections.abc import Callable, Collection

import msgspec

from conveyor.groups.consumer.consumer_group import ConsumerGroup
from conveyor.groups.consumer.subscriptions_draft import SubscriptionsDraft
from conveyor.groups.known_topics import Assigned, TopicIdPartition
from conveyor.groups.records.consumer_member import Current, MemberState, MemberSubscription
from conveyor.groups.records.consumer_records import (
    ConsumerKeyKind,
    SubscribedTopics,
    current_record,
    epoch_record,
    member_key_bytes,
    member_tombstones,
    subscription_record,
    target_epoch_record,
    target_record,
    tombstone,
    topics_record,
)
from conveyor.kernel.state_machine import LogRecord


class GroupDraft:
    """A view of one group with pending changes; see the module's docstring."""

    def __init__(self, group: ConsumerGroup) -> None:
        self.group = group
        self.group_id = group.group_id
        self.epoch = group.epoch
        self.target_epoch = group.target_epoch
        self.topics = group.topics
        self.subscriptions = SubscriptionsDraft(group)
        self.records: list[LogRecord] = []
        self._current: dict[str, Current | None] = {}
        self._targets: dict[str, Assigned | None] = {}

    def current(self, member_id: str) -> Current:
        if member_id in self._current:
            return self._current[member_id] or Current()
        return self.group.current(member_id)

    def target(self, member_id: str) -> Assigned:
        if member_id in self._targets:
            return self._targets[member_id] or frozenset()
        return self.group.target(member_id)

    def targets(self) -> dict[str, Assigned]:
        merged = {**self.group.targets, **self._targets}
        return {member_id: value for member_id, value in merged.items() if value is not None}

    def advance(self, member_id: str, owned: Collection[TopicIdPartition] | None) -> None:
        """Advance a member one step towards its target assignment, if it can advance. owned: see `reconciled`."""

        def is_taken(partition: TopicIdPartition) -> bool:
            owner = self.group.owner(partition)
            if owner is None or owner == member_id:
                return False
            moved = self._current.get(owner, self.group.current(owner))
            return moved is not None and (partition in moved.assigned or partition in moved.revoking)

        before = self.current(member_id)
        after = reconciled(before, self.target(member_id), self.target_epoch, owned, is_taken)
        if after != before:
            self.put_current(member_id, after)

    def put_subscription(self, member_id: str, subscription: MemberSubscription) -> None:
        record = subscription_record(self.group_id, member_id, subscription)
        size = member_key_bytes(self.group_id, member_id) + len(record.value or b"")
        self.subscriptions.put(member_id, subscription, size)
        self.records.append(record)

    def put_current(self, member_id: str, current: Current) -> None:
        self._current[member_id] = current
        self.records.append(current_record(self.group_id, member_id, current))

    def put_target(self, member_id: str, target: Assigned) -> None:
        self._targets[member_id] = target
        self.records.append(target_record(self.group_id, member_id, target))

    def drop_member(self, member_id: str) -> None:
        self.subscriptions.put(member_id, None, 0)
        self._current[member_id] = self._targets[member_id] = None
        self.records += member_tombstones(self.group_id, member_id)

    def put_topics(self, topics: SubscribedTopics) -> None:
        self.topics = topics
        self.records.append(topics_record(self.group_id, topics))

    def begin_at(self, epoch: int) -> None:
        """Start a converted group at an epoch; its members already have their target assignment."""
        self.epoch = self.target_epoch = epoch
        self.records += [epoch_record(self.group_id, epoch), target_epoch_record(self.group_id, epoch)]

    def raise_epoch(self) -> None:
        self.epoch += 1
        self.records.append(epoch_record(self.group_id, self.epoch))

    def finish_target(self) -> None:
        """Mark the target assignment as computed for the current group epoch."""
        self.target_epoch = self.epoch
        self.records.append(target_epoch_record(self.group_id, self.epoch))


def reconciled(
    current: Current,
    target: Assigned,
    target_epoch: int,
    owned: Collection[TopicIdPartition] | None,
    is_taken: Callable[[TopicIdPartition], bool],
) -> Current:
    """Return a member's next state, or its current state if it cannot advance.

    owned: the partitions that the member reports as owned; None if it reports none.
    is_taken: whether another member still owns a partition.
    """
    if current.state is MemberState.STABLE and current.epoch == target_epoch:
        return current
    if current.state is MemberState.UNREVOKED and (owned is None or not current.revoking.isdisjoint(owned)):
        return current
    kept = current.assigned & target
    revoking = current.assigned - kept
    if revoking and (owned is None or not revoking.isdisjoint(owned)):
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
        revoking=frozenset(),
    )


def end_of_group(group: ConsumerGroup) -> list[LogRecord]:
    draft = GroupDraft(group)
    for member_id in group.subscriptions:
        draft.drop_member(member_id)
    kinds = (ConsumerKeyKind.TARGET_EPOCH, ConsumerKeyKind.TOPICS, ConsumerKeyKind.GROUP)
    return draft.records + [tombstone(kind, group.group_id) for kind in kinds]
