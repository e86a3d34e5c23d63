"""Members that use the classic protocol in a group of the consumer protocol, during an online migration.

    JoinGroup    takes one reconciliation step; the generation is the member epoch, and there is no leader
    SyncGroup    returns the member's assignment
    Heartbeat    answers REBALANCE_IN_PROGRESS if a step is due; the member then joins again

Source: KIP-848, "Online migration".
"""

from conveyor.groups.classic.classic_group import rejoin_error
from conveyor.groups.classic.classic_member import Member, joined_bytes, new_member
from conveyor.groups.classic.embedded_protocol import (
    PROTOCOL_TYPE,
    ClassicSubscription,
    decode_subscription,
    encode_assignment,
)
from conveyor.groups.classic.roster import check_group_bytes
from conveyor.groups.consumer.consumer_group import ConsumerGroup
from conveyor.groups.consumer.consumer_groups import ConsumerGroups
from conveyor.groups.consumer.consumer_heartbeat import replace_static
from conveyor.groups.consumer.group_draft import GroupDraft
from conveyor.groups.group_commands import Heartbeat, JoinGroup, LeaveGroup, LeavingMember, SyncGroup
from conveyor.groups.known_topics import Assigned, KnownTopics
from conveyor.groups.records.consumer_member import ClassicMember, MemberState, MemberSubscription
from conveyor.groups.replies import Alive, Joined, JoinRefused, Left, Synced
from conveyor.kernel.decision import Decision
from conveyor.kernel.errors import ErrorKind, RequestError
from conveyor.kernel.state_machine import Token


class ClassicInConsumers:
    """Handles the classic requests of members of consumer groups; see the module's docstring."""

    def __init__(self, consumers: ConsumerGroups) -> None:
        self._consumers = consumers

    def join(self, group: ConsumerGroup, command: JoinGroup, token: Token, now_ms: int, decision: Decision) -> None:
        """Handle a JoinGroup. Raises RequestError: GROUP_MAX_SIZE_REACHED, INCONSISTENT_GROUP_PROTOCOL,
        FENCED_INSTANCE_ID.
        """
        member_id = command.member_id or command.new_member_id
        self._consumers.check_size(group, member_id)
        embedded = _check_protocols(group, command, member_id)
        member = new_member(command, member_id, now_ms)
        _check_bytes(group, member)
        if command.requires_known_id and not command.member_id and command.group_instance_id is None:
            error = RequestError(ErrorKind.MEMBER_ID_REQUIRED, "join again with the member id in this response")
            return decision.reply(token, JoinRefused(error=error, member_id=member_id))
        draft = GroupDraft(group)
        _take_over_static(draft, command, member_id)
        wanted, owned = consumer_subscription(member, embedded), assigned_by_id(embedded.owned, self._consumers.topics)
        self._consumers.step(draft, member_id, wanted, owned, now_ms, decision, owes_step=True)
        joined = Joined(
            generation_id=draft.current(member_id).epoch,
            protocol_type=PROTOCOL_TYPE,
            protocol_name=command.protocols[0][0],
            leader="",
            member_id=member_id,
        )
        decision.reply(token, joined)

    def sync(self, group: ConsumerGroup, command: SyncGroup, token: Token, now_ms: int, decision: Decision) -> None:
        """Handle a SyncGroup. Raises RequestError: UNKNOWN_MEMBER_ID, ILLEGAL_GENERATION, REBALANCE_IN_PROGRESS and
        others.
        """
        subscription, classic = _member(group, command)
        protocol_name, metadata = classic.protocols[0]
        wrong_type = command.protocol_type not in (None, PROTOCOL_TYPE)
        if wrong_type or command.protocol_name not in (None, protocol_name):
            raise RequestError(ErrorKind.INCONSISTENT_GROUP_PROTOCOL, f"the member has joined with '{protocol_name}'")
        current = group.current(command.member_id)
        if group.epoch > current.epoch and current.state is not MemberState.UNREVOKED:
            raise self._rebalancing(group, command.member_id, subscription, now_ms)
        self._consumers.sessions.renew(group.group_id, command.member_id, subscription, now_ms)
        if current.state is not MemberState.UNREVOKED:
            self._consumers.sessions.step_done(group.group_id, command.member_id)
        embedded = decode_subscription(metadata)
        places = partitions_by_name(current.assigned, self._consumers.topics)
        assignment = encode_assignment(embedded.version if embedded is not None else 0, places)
        decision.reply(token, Synced(protocol_type=PROTOCOL_TYPE, protocol_name=protocol_name, assignment=assignment))

    def heartbeat(
        self, group: ConsumerGroup, command: Heartbeat, token: Token, now_ms: int, decision: Decision
    ) -> None:
        """Handle a Heartbeat. Raises RequestError: UNKNOWN_MEMBER_ID, ILLEGAL_GENERATION, REBALANCE_IN_PROGRESS."""
        subscription, _ = _member(group, command)
        self._consumers.sessions.renew(group.group_id, command.member_id, subscription, now_ms)
        if _has_a_step_to_take(group, command.member_id):
            raise self._rebalancing(group, command.member_id, subscription, now_ms)
        decision.reply(token, Alive())

    def leave(
        self, group: ConsumerGroup, command: LeaveGroup, token: Token, now_ms: int, decision: Decision
    ) -> list[str]:
        """Remove members that use the classic protocol. Returns the removed members."""
        removed: list[str] = []
        errors = tuple(_leave_one(group, leaving, removed) for leaving in command.members)
        if removed:
            self._consumers.remove(group, removed, decision)
        decision.reply(token, Left(errors=errors))
        return removed

    def _rebalancing(
        self, group: ConsumerGroup, member_id: str, subscription: MemberSubscription, now_ms: int
    ) -> RequestError:
        """Start the member's rebalance timeout and return the error that makes it rejoin."""
        self._consumers.sessions.expect_step(group.group_id, member_id, subscription, now_ms)
        return rejoin_error(group.group_id)


def assigned_by_id(places: tuple[tuple[str, int], ...], topics: KnownTopics) -> Assigned:
    """Return partitions by topic id, without those of unknown topics."""
    return frozenset((topics.by_name[name].topic_id, number) for name, number in places if name in topics.by_name)


def partitions_by_name(assigned: Assigned, topics: KnownTopics) -> list[tuple[str, int]]:
    """Return partitions by topic name, without those of unknown topics."""
    names = topics.names_by_id
    return [(names[topic_id], number) for topic_id, number in assigned if topic_id in names]


def consumer_subscription(member: Member, embedded: ClassicSubscription) -> MemberSubscription:
    """Return the subscription with which a classic member is in a consumer group."""
    return MemberSubscription(
        instance_id=member.group_instance_id,
        rack_id=embedded.rack_id,
        client_id=member.client_id,
        client_host=member.client_host,
        topics=frozenset(embedded.topics),
        pattern=None,
        rebalance_timeout_ms=member.rebalance_timeout_ms,
        assignor=None,
        classic=ClassicMember(session_timeout_ms=member.session_timeout_ms, protocols=member.protocols),
    )


def _take_over_static(draft: GroupDraft, command: JoinGroup, member_id: str) -> None:
    """Let a static member return under a new id. Raises RequestError (FENCED_INSTANCE_ID)."""
    old_id = draft.group.static_members.holder(command.group_instance_id)
    if old_id is None or old_id == member_id:
        return
    if command.member_id:
        raise RequestError(
            ErrorKind.FENCED_INSTANCE_ID, f"instance id '{command.group_instance_id}' belongs to '{old_id}' now"
        )
    replace_static(draft, old_id, member_id)


def _check_protocols(group: ConsumerGroup, command: JoinGroup, member_id: str) -> ClassicSubscription:
    """Check that the member shares a protocol with all other classic members. Raises RequestError."""
    shared = {name for name, _ in command.protocols}
    for other_id, other in group.subscriptions.items():
        if shared and other.classic is not None and other_id != member_id:
            shared &= {name for name, _ in other.classic.protocols}
    subscription = decode_subscription(command.protocols[0][1])
    if command.protocol_type != PROTOCOL_TYPE or not shared or subscription is None:
        raise RequestError(
            ErrorKind.INCONSISTENT_GROUP_PROTOCOL,
            f"group '{group.group_id}' has protocol type 'consumer', and its classic members must share an assignor",
        )
    return subscription


def _check_bytes(group: ConsumerGroup, member: Member) -> None:
    """Check that the classic members can become a classic group again. Raises RequestError (GROUP_MAX_SIZE_REACHED)."""
    size = member.joined_bytes
    for name, other in group.subscriptions.items():
        if other.classic is not None and name != member.member_id:
            size += joined_bytes(other.client_id, other.instance_id, other.classic.protocols)
    check_group_bytes(group.group_id, size)


def _member(group: ConsumerGroup, command: SyncGroup | Heartbeat) -> tuple[MemberSubscription, ClassicMember]:
    group.check_identity(command.member_id, command.group_instance_id)
    subscription = group.subscriptions[command.member_id]
    if subscription.classic is None:
        raise RequestError(ErrorKind.UNKNOWN_MEMBER_ID, f"'{command.member_id}' does not use the classic protocol")
    epoch = group.current(command.member_id).epoch
    if command.generation_id != epoch:
        raise RequestError(
            ErrorKind.ILLEGAL_GENERATION, f"'{command.member_id}' is at epoch {epoch}, not {command.generation_id}"
        )
    return subscription, subscription.classic


def _has_a_step_to_take(group: ConsumerGroup, member_id: str) -> bool:
    current = group.current(member_id)
    if group.epoch > current.epoch or current.state is MemberState.UNREVOKED:
        return True
    pending = group.target(member_id) - current.assigned
    return current.state is MemberState.UNRELEASED and any(group.owner(partition) is None for partition in pending)


def _leave_one(group: ConsumerGroup, leaving: LeavingMember, removed: list[str]) -> RequestError | None:
    member_id = group.static_members.leaving_id(leaving)
    try:
        group.check_identity(member_id, leaving.group_instance_id)
    except RequestError as error:
        return error.detached()
    if group.subscriptions[member_id].classic is None or member_id in removed:
        return RequestError(
            ErrorKind.UNKNOWN_MEMBER_ID, f"'{member_id}' is not a member that uses the classic protocol"
        )
    removed.append(member_id)
    return None
