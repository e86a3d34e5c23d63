"""Converts groups between the protocols. A group without members converts at once, a group with members online.

An active classic group of consumers becomes a consumer group when the first consumer protocol member joins. Its classic
members stay in it; `classic_in_consumers` handles them. A consumer group becomes a classic group when its last consumer
protocol member leaves and classic members stay. `groups.consumer_migration_policy` says which conversions are allowed.
Source: KIP-848, "Online migration".
"""

from typing import NamedTuple

from conveyor.groups.classic.classic_group import ClassicGroup, GroupState, rejoin_error
from conveyor.groups.classic.classic_groups import ClassicGroups
from conveyor.groups.classic.classic_member import Member
from conveyor.groups.classic.embedded_protocol import (
    MAX_GROUP_ITEMS,
    PROTOCOL_TYPE,
    ClassicAssignment,
    ClassicSubscription,
    decode_assignment,
    decode_subscription,
    encode_assignment,
)
from conveyor.groups.consumer.consumer_group import ConsumerGroup
from conveyor.groups.consumer.consumer_groups import ConsumerGroups
from conveyor.groups.consumer.group_draft import GroupDraft, end_of_group
from conveyor.groups.consumer.subscriptions_draft import MAX_MEMBERS_BYTES
from conveyor.groups.group_commands import ConsumerHeartbeat
from conveyor.groups.group_settings import SettingsByGroup
from conveyor.groups.migration.classic_in_consumers import assigned_by_id, consumer_subscription, partitions_by_name
from conveyor.groups.records.consumer_member import JOINING_EPOCH, Current, MemberSubscription
from conveyor.groups.records.consumer_records import ConsumerKey
from conveyor.groups.records.group_records import decode_key
from conveyor.kernel.decision import Decision
from conveyor.kernel.errors import ErrorKind, RequestError
from conveyor.kernel.state_machine import LogRecord

_PLAIN_ASSIGNORS = ("range", "roundrobin", "sticky", "cooperative-sticky")
"""Assignors whose user data in an assignment may be lost (librdkafka's sticky assignors write some). A group of any
other assignor with user data is not converted.
"""
_UPGRADES, _DOWNGRADES = ("bidirectional", "upgrade"), ("bidirectional", "downgrade")


class Upgrade(NamedTuple):
    """A classic group, and the consumer group that it is converted to, with its records; None if it has no members."""

    classic: ClassicGroup
    consumers: ConsumerGroup | None
    records: list[LogRecord]


class ProtocolChange:
    """Converts groups; see the module's docstring."""

    def __init__(self, settings: SettingsByGroup, classic: ClassicGroups, consumers: ConsumerGroups) -> None:
        self._settings = settings
        self._classic = classic
        self._consumers = consumers

    def upgrade(self, command: ConsumerHeartbeat, now_ms: int) -> Upgrade | None:
        """Return what takes the place of a classic group when a member of the consumer protocol joins; None if there is
        no classic group. Nothing has changed until it is carried out.

        Raises RequestError (GROUP_ID_NOT_FOUND).
        """
        group = self._classic.find(command.group_id)
        if group is None or command.member_epoch != JOINING_EPOCH:
            return None
        if group.state is GroupState.EMPTY:
            return Upgrade(group, None, [])
        draft = self._upgraded(group)
        return Upgrade(group, _group_of(draft, now_ms), draft.records)

    def carry_out(self, upgrade: Upgrade, decision: Decision) -> None:
        """Delete the classic group or convert it."""
        if upgrade.consumers is not None:
            for member in upgrade.classic.members:
                member.refuse(rejoin_error(upgrade.classic.group_id), decision)
        decision.records += self._classic.forget(upgrade.classic.group_id)
        decision.records += upgrade.records

    def downgrade(self, group: ConsumerGroup, removed: list[str], now_ms: int, decision: Decision) -> None:
        """Convert the group to the classic protocol if all members that remain use it, and it is allowed."""
        members = {name: subscription for name, subscription in group.subscriptions.items() if name not in removed}
        is_classic = (
            bool(removed)
            and bool(members)
            and all(subscription.classic is not None for subscription in members.values())
        )
        settings = self._settings.of(group.group_id)
        is_allowed = settings.consumer_migration_policy in _DOWNGRADES
        if not is_classic or not is_allowed or len(members) > settings.max_size:
            return
        classic = ClassicGroup(group.group_id, group.epoch)
        classic.protocol_type = PROTOCOL_TYPE
        for member_id, subscription in members.items():
            classic.members.add(self._classic_member(group, member_id, subscription, now_ms))
        if not classic.members.has_room({member.member_id: member.assignment for member in classic.members}):
            return
        classic.protocol_name = classic.members.vote()
        classic.state = GroupState.STABLE
        self._consumers.sessions.forget(group.group_id, group.subscriptions)
        self._classic.adopt(classic)
        decision.records += end_of_group(group)
        decision.records.append(classic.record(now_ms))
        classic.membership_changed(now_ms, decision)

    def _upgraded(self, group: ClassicGroup) -> GroupDraft:
        """Return a draft of the consumer group that continues a classic group. Raises RequestError."""
        settings = self._settings.of(group.group_id)
        is_allowed = settings.consumer_migration_policy in _UPGRADES
        if not is_allowed or group.protocol_type != PROTOCOL_TYPE or len(group.members) >= settings.consumer_max_size:
            raise _not_a_consumer_group(group)
        decoded = _decoded(group)
        draft = GroupDraft(ConsumerGroup(group.group_id))
        draft.begin_at(group.generation_id)
        taken: set[object] = set()
        for member, embedded, assignment in decoded:
            assigned = assigned_by_id(assignment.partitions, self._consumers.topics) - taken
            taken |= assigned
            draft.put_subscription(member.member_id, consumer_subscription(member, embedded))
            draft.put_target(member.member_id, assigned)
            current = Current(epoch=group.generation_id, previous_epoch=group.generation_id, assigned=assigned)
            draft.put_current(member.member_id, current)
        if draft.subscriptions.bytes_in_all() > MAX_MEMBERS_BYTES:
            raise _not_a_consumer_group(group)
        return draft

    def _classic_member(
        self, group: ConsumerGroup, member_id: str, subscription: MemberSubscription, now_ms: int
    ) -> Member:
        assert subscription.classic is not None, "only members that use the classic protocol are converted"
        embedded = decode_subscription(subscription.classic.protocols[0][1])
        places = partitions_by_name(group.current(member_id).assigned, self._consumers.topics)
        return Member(
            member_id=member_id,
            group_instance_id=subscription.instance_id,
            client_id=subscription.client_id,
            client_host=subscription.client_host,
            session_timeout_ms=subscription.classic.session_timeout_ms,
            rebalance_timeout_ms=subscription.rebalance_timeout_ms,
            protocols=subscription.classic.protocols,
            session_deadline_ms=now_ms + subscription.classic.session_timeout_ms,
            assignment=encode_assignment(embedded.version if embedded is not None else 0, places),
        )


def _decoded(group: ClassicGroup) -> list[tuple[Member, ClassicSubscription, ClassicAssignment]]:
    """Decode what the members read. Raises RequestError."""
    decoded, items = [], 0
    for member in group.members:
        metadata = dict(member.protocols).get(group.protocol_name, member.protocols[0][1])
        embedded, assignment = decode_subscription(metadata), decode_assignment(member.assignment)
        if embedded is None or assignment is None:
            raise _not_a_consumer_group(group)
        items += embedded.items + assignment.items
        is_custom = assignment.user_data and group.protocol_name not in _PLAIN_ASSIGNORS
        if is_custom or items > MAX_GROUP_ITEMS:
            raise _not_a_consumer_group(group)
        decoded.append((member, embedded, assignment))
    return decoded


def _group_of(draft: GroupDraft, now_ms: int) -> ConsumerGroup:
    group = ConsumerGroup(draft.group_id)
    for record in draft.records:
        key = decode_key(record.key or b"")
        assert isinstance(key, ConsumerKey), "a draft contains only records of its own group"
        group.apply(key, record.value, now_ms)
    return group


def _not_a_consumer_group(group: ClassicGroup) -> RequestError:
    return RequestError(ErrorKind.GROUP_ID_NOT_FOUND, f"Group {group.group_id} is not a consumer group.")
