"""A group of the consumer protocol (KIP-848): hard state, changed by applied records only.

The group epoch rises with each change of the membership, a subscription or the subscribed topics. The target assignment
says which partitions each member is to read, and for which group epoch it was computed. Each member has an epoch of its
own and moves to the target's epoch at its own pace. It first revokes the partitions that other members are to get;
these get them once the member has confirmed the revocation. So no partition ever has two readers, and a member without
partitions to revoke never stops reading.
"""

from collections import ChainMap
from collections.abc import Container, Mapping
from typing import TypeVar

from conveyor.groups.known_topics import Assigned, TopicIdPartition
from conveyor.groups.records.consumer_member import Current, MemberState, MemberSubscription
from conveyor.groups.records.consumer_records import (
    ConsumerKey,
    ConsumerKeyKind,
    SubscribedTopics,
    decode_current,
    decode_epoch,
    decode_subscription,
    decode_target,
    decode_topics,
    member_key_bytes,
)
from conveyor.groups.static_members import StaticMembers
from conveyor.kernel.tally import Tally

EMPTY, ASSIGNING, RECONCILING, STABLE = "Empty", "Assigning", "Reconciling", "Stable"
"""The group states, by Kafka's names."""

Value = TypeVar("Value")

_NOTHING: Assigned = frozenset()
_JOINING = Current()


class ConsumerGroup:
    """One group; see the module's docstring.

    changed_ms: when the group epoch last rose.
    names: the topics to which members subscribe by name, with the number of these members. name_count: their sum.
    member_bytes: the sizes of the keys and the subscription of each member. member_bytes_in_all: their sum.
    """

    def __init__(self, group_id: str) -> None:
        self.group_id = group_id
        self.epoch = 0
        self.changed_ms = 0
        self.target_epoch = 0
        self.topics: SubscribedTopics = {}
        self.subscriptions: dict[str, MemberSubscription] = {}
        self.names: Tally[str] = Tally()
        self.name_count = 0
        self.member_bytes: dict[str, int] = {}
        self.member_bytes_in_all = 0
        self.static_members = StaticMembers()
        self._targets: dict[str, Assigned] = {}
        self._current: dict[str, Current] = {}
        self._owners: dict[TopicIdPartition, str] = {}

    @property
    def state(self) -> str:
        if not self.subscriptions:
            return EMPTY
        if self.epoch > self.target_epoch:
            return ASSIGNING
        return STABLE if all(self._has_arrived(member_id) for member_id in self.subscriptions) else RECONCILING

    @property
    def targets(self) -> Mapping[str, Assigned]:
        return self._targets

    def target(self, member_id: str) -> Assigned:
        return self._targets.get(member_id, _NOTHING)

    def current(self, member_id: str) -> Current:
        return self._current.get(member_id, _JOINING)

    def owner(self, partition: TopicIdPartition) -> str | None:
        """Return the member that reads a partition or has not confirmed its revocation."""
        return self._owners.get(partition)

    def subscribed_topics(self) -> Container[str]:
        """Return the topics to which a member subscribes, by name or by pattern."""
        return ChainMap(self.names, dict.fromkeys(self.topics, 0))

    def check_identity(self, member_id: str, instance_id: str | None) -> None:
        """Check that the group has this member. Raises RequestError: UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID."""
        self.static_members.check(self.group_id, self.subscriptions, member_id, instance_id)

    def apply(self, key: ConsumerKey, value: bytes | None, appended_ms: int) -> None:
        """Apply one record, except the tombstone that deletes the group."""
        match key.kind:
            case ConsumerKeyKind.GROUP:
                assert value is not None, "the owner applies the tombstone of a group"
                self.epoch, self.changed_ms = decode_epoch(value), appended_ms
            case ConsumerKeyKind.TOPICS:
                self.topics = {} if value is None else decode_topics(value)
            case ConsumerKeyKind.SUBSCRIPTION:
                self._subscribe(key.name, None if value is None else decode_subscription(value))
                self._measure(key.name, value)
            case ConsumerKeyKind.TARGET_EPOCH:
                self.target_epoch = 0 if value is None else decode_epoch(value)
            case ConsumerKeyKind.TARGET:
                _put(self._targets, key.name, None if value is None else decode_target(value))
            case ConsumerKeyKind.CURRENT:
                self._move(key.name, None if value is None else decode_current(value))

    def _subscribe(self, member_id: str, subscription: MemberSubscription | None) -> None:
        old = self.subscriptions.get(member_id)
        if old is not None:
            self.static_members.remove(old.instance_id, member_id)
        self._count_names(_names(old), _names(subscription))
        _put(self.subscriptions, member_id, subscription)
        if subscription is not None:
            self.static_members.add(subscription.instance_id, member_id)

    def _move(self, member_id: str, current: Current | None) -> None:
        """Move a member's partitions. After compaction, the next owner's record may precede the previous owner's
        release.
        """
        for partition in self.current(member_id).owned:
            if self._owners.get(partition) == member_id:
                del self._owners[partition]
        _put(self._current, member_id, current)
        if current is not None:
            self._owners.update(dict.fromkeys(current.owned, member_id))

    def _measure(self, member_id: str, subscription: bytes | None) -> None:
        size = 0 if subscription is None else member_key_bytes(self.group_id, member_id) + len(subscription)
        self.member_bytes_in_all += size - self.member_bytes.get(member_id, 0)
        _put(self.member_bytes, member_id, size or None)

    def _count_names(self, before: frozenset[str], after: frozenset[str]) -> None:
        self.name_count += len(after) - len(before)
        for name in after - before:
            self.names[name] += 1
        for name in before - after:
            self.names.remove(name)

    def _has_arrived(self, member_id: str) -> bool:
        current = self.current(member_id)
        return current.state is MemberState.STABLE and current.epoch == self.target_epoch


def _names(subscription: MemberSubscription | None) -> frozenset[str]:
    return frozenset() if subscription is None else subscription.topics


def _put(values: dict[str, Value], name: str, value: Value | None) -> None:
    if value is None:
        values.pop(name, None)
    else:
        values[name] = value
