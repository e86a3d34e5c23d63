"""A consumer group as it will be once the decided records are applied: a view of the group, and the records.

A draft never changes the group. The group changes when `records` are applied. The draft also advances members towards
their target assignment: the transition table is in `consumer_member`. Source: KIP-848, "Assignment reconciliation".
"""

from collections import Counter
from collections.abc import Callable, Iterable

import msgspec

from conveyor.groups.consumer.consumer_group import ConsumerGroup
from conveyor.groups.known_topics import Assigned, KnownTopics, TopicIdPartition
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
from conveyor.kernel.errors import ErrorKind, RequestError
from conveyor.kernel.state_machine import LogRecord

MAX_MEMBER_BYTES = 1 << 20
"""The most bytes of a member of the consumer protocol: the keys of its records, and its subscription. A change of one
field writes the whole subscription. Kafka takes a record of 1 MiB by default.
"""

MAX_MEMBERS_BYTES = 32 << 20
"""The most bytes of all members of a group, those of the classic protocol included."""


class GroupDraft:
    """A view of one group with pending changes; see the module's docstring."""

    def __init__(self, group: ConsumerGroup) -> None:
        self.group = group
        self.group_id = group.group_id
        self.epoch = group.epoch
        self.target_epoch = group.target_epoch
        self.topics = group.topics
        self.name_count = group.name_count
        self.records: list[LogRecord] = []
        self._subscriptions: dict[str, MemberSubscription | None] = {}
        self._current: dict[str, Current | None] = {}
        self._targets: dict[str, Assigned | None] = {}
        self._member_bytes: dict[str, int] = {}

    def subscriptions(self) -> dict[str, MemberSubscription]:
        merged = {**self.group.subscriptions, **self._subscriptions}
        return {member_id: value for member_id, value in merged.items() if value is not None}

    def subscription(self, member_id: str) -> MemberSubscription | None:
        return self._subscriptions.get(member_id, self.group.subscriptions.get(member_id))

    def patterns(self) -> set[str]:
        """Return the different patterns of the members."""
        return _patterns(self.subscriptions().values())

    def patterns_before(self) -> set[str]:
        """Return the different patterns that the members had before this draft."""
        return _patterns(self.group.subscriptions.values())

    def dropped(self) -> list[str]:
        """Return the members that the draft removes."""
        return [member_id for member_id, subscription in self._subscriptions.items() if subscription is None]

    def check_bytes(self) -> None:
        """Check that the members do not become too large. Raises RequestError (GROUP_MAX_SIZE_REACHED)."""
        before = self.group.member_bytes
        for member_id, size in self._member_bytes.items():
            subscription = self._subscriptions[member_id]
            is_classic = subscription is not None and subscription.classic is not None
            if not is_classic and size > max(MAX_MEMBER_BYTES, before.get(member_id, 0)):
                raise _too_large(f"member '{member_id}' of group '{self.group_id}'", size, MAX_MEMBER_BYTES)
        in_all = self.member_bytes_in_all()
        if in_all > max(MAX_MEMBERS_BYTES, self.group.member_bytes_in_all):
            raise _too_large(f"the members of group '{self.group_id}'", in_all, MAX_MEMBERS_BYTES)

    def member_bytes_in_all(self) -> int:
        before = self.group.member_bytes
        changes = (size - before.get(member_id, 0) for member_id, size in self._member_bytes.items())
        return self.group.member_bytes_in_all + sum(changes)

    def names_among(self, topics: KnownTopics) -> set[str]:
        """Return the existing topics to which members subscribe by name."""
        changes = Counter[str]()
        for member_id, subscription in self._subscriptions.items():
            old = self.group.subscriptions.get(member_id)
            changes.update(() if subscription is None else subscription.topics)
            changes.subtract(() if old is None else old.topics)
        names = self.group.names
        changed = changes.keys() & topics.by_name.keys()
        subscribed = {name for name in changed if names.get(name, 0) + changes[name] > 0}
        return (topics.by_name.keys() & names.keys()) - changed | subscribed

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

    def advance(self, member_id: str, owned: Assigned | None) -> None:
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
        self._subscriptions[member_id] = subscription
        self._member_bytes[member_id] = member_key_bytes(self.group_id, member_id) + len(record.value or b"")
        self.records.append(record)

    def put_current(self, member_id: str, current: Current) -> None:
        self._current[member_id] = current
        self.records.append(current_record(self.group_id, member_id, current))

    def put_target(self, member_id: str, target: Assigned) -> None:
        self._targets[member_id] = target
        self.records.append(target_record(self.group_id, member_id, target))

    def drop_member(self, member_id: str) -> None:
        self._subscriptions[member_id] = self._current[member_id] = self._targets[member_id] = None
        self._member_bytes[member_id] = 0
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
        revoking=frozenset(),
    )


def _patterns(subscriptions: Iterable[MemberSubscription]) -> set[str]:
    return {subscription.pattern for subscription in subscriptions if subscription.pattern}


def _too_large(subject: str, size: int, limit: int) -> RequestError:
    return RequestError(
        ErrorKind.GROUP_MAX_SIZE_REACHED, f"{subject} would have {size} bytes in ids and subscriptions: at most {limit}"
    )


def end_of_group(group: ConsumerGroup) -> list[LogRecord]:
    """Return the records that delete a group."""
    draft = GroupDraft(group)
    for member_id in group.subscriptions:
        draft.drop_member(member_id)
    kinds = (ConsumerKeyKind.TARGET_EPOCH, ConsumerKeyKind.TOPICS, ConsumerKeyKind.GROUP)
    return draft.records + [tombstone(kind, group.group_id) for kind in kinds]
