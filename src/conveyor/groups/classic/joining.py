"""JoinGroup: who may become a member, and whether that starts a rebalance."""

from conveyor.groups.classic.classic_group import ClassicGroup, GroupState
from conveyor.groups.classic.classic_member import Member, new_member
from conveyor.groups.decision import Decision
from conveyor.groups.group_commands import NO_MEMBER, JoinGroup
from conveyor.groups.replies import JoinRefused
from conveyor.kernel.errors import ErrorKind, RequestError
from conveyor.kernel.state_machine import Token
from conveyor.settings.tree import GroupsSettings


def check_join(command: JoinGroup, settings: GroupsSettings) -> None:
    """What can be refused without looking at the group. Raises RequestError."""
    if not command.group_id:
        raise RequestError(ErrorKind.INVALID_GROUP_ID, "the group id is empty")
    low, high = settings.min_session_timeout_ms, settings.max_session_timeout_ms
    if not low <= command.session_timeout_ms <= high:
        raise RequestError(
            ErrorKind.INVALID_SESSION_TIMEOUT,
            f"session timeout {command.session_timeout_ms} ms: this broker takes {low} to {high} ms",
        )
    if not command.protocol_type or not command.protocols:
        raise RequestError(ErrorKind.INCONSISTENT_GROUP_PROTOCOL, "a member names a protocol type and its assignors")
    size = sum(len(metadata) for _, metadata in command.protocols)
    if size > settings.member_metadata_max_bytes:
        raise RequestError(
            ErrorKind.MESSAGE_TOO_LARGE,
            f"the member's subscriptions take {size} bytes, groups.member_metadata_max_bytes is"
            f" {settings.member_metadata_max_bytes}",
        )


def join(
    group: ClassicGroup, command: JoinGroup, token: Token, now_ms: int, settings: GroupsSettings, decision: Decision
) -> None:
    """Let a member join; the answer may come later. A refusal is a reply too."""
    try:
        group.check_protocols(command.protocol_type, command.protocols, command.member_id)
        if command.member_id == NO_MEMBER:
            _join_unnamed(group, command, token, now_ms, settings, decision)
        else:
            _join_named(group, command, token, now_ms, settings, decision)
    except RequestError as error:
        decision.reply(token, JoinRefused(error=error, member_id=command.member_id))


def check_member(group: ClassicGroup, member_id: str, instance_id: str | None) -> Member:
    """The member that somebody claims to be. Raises RequestError: UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID."""
    if instance_id is not None:
        known = group.static_members.get(instance_id)
        if known not in (None, member_id):
            raise RequestError(ErrorKind.FENCED_INSTANCE_ID, f"'{instance_id}' is '{known}' now, not '{member_id}'")
    member = group.members.get(member_id)
    if member is None or (instance_id is not None and member.group_instance_id != instance_id):
        raise RequestError(ErrorKind.UNKNOWN_MEMBER_ID, f"group '{group.group_id}' has no member '{member_id}'")
    return member


def _join_unnamed(
    group: ClassicGroup, command: JoinGroup, token: Token, now_ms: int, settings: GroupsSettings, decision: Decision
) -> None:
    known_id = group.static_members.get(command.group_instance_id or "")
    if known_id is not None:
        return _return_static(group, known_id, command, token, now_ms, decision)
    _check_size(group, settings)
    if command.requires_known_id and command.group_instance_id is None:
        group.pending_members[command.new_member_id] = now_ms + command.session_timeout_ms
        named = RequestError(ErrorKind.MEMBER_ID_REQUIRED, "join again with the member id given here")
        return decision.reply(token, JoinRefused(error=named, member_id=command.new_member_id))
    _add(group, new_member(command, command.new_member_id, now_ms), command, token, now_ms, settings, decision)


def _join_named(
    group: ClassicGroup, command: JoinGroup, token: Token, now_ms: int, settings: GroupsSettings, decision: Decision
) -> None:
    if command.member_id in group.pending_members:
        return _add(group, new_member(command, command.member_id, now_ms), command, token, now_ms, settings, decision)
    member = check_member(group, command.member_id, command.group_instance_id)
    member.touch(now_ms)
    unchanged = member.protocols == command.protocols
    is_leader = member.member_id == group.leader
    if (group.state is GroupState.COMPLETING_REBALANCE and unchanged) or (
        group.state is GroupState.STABLE and unchanged and not is_leader
    ):
        member.update(command)
        return decision.reply(token, group.joined(member))
    _rejoin(group, member, command, token, now_ms, decision)


def _add(
    group: ClassicGroup, member: Member, command: JoinGroup, token: Token, now_ms: int, settings: GroupsSettings,
    decision: Decision,
) -> None:  # fmt: skip
    was_empty = group.state is GroupState.EMPTY
    if not group.members:
        group.protocol_type = command.protocol_type
    group.add(member)
    member.join_token = token
    if was_empty:
        group.prepare_rebalance(now_ms, decision, settings.initial_rebalance_delay_ms)
    elif group.state is GroupState.PREPARING_REBALANCE:
        group.complete_join_if_all_are_in(now_ms, decision)
    else:
        group.prepare_rebalance(now_ms, decision)


def _rejoin(
    group: ClassicGroup, member: Member, command: JoinGroup, token: Token, now_ms: int, decision: Decision
) -> None:
    if member.join_token is not None:
        again = RequestError(ErrorKind.REBALANCE_IN_PROGRESS, f"'{member.member_id}' has joined again elsewhere")
        decision.reply(member.join_token, JoinRefused(error=again, member_id=member.member_id))
    member.update(command)
    member.join_token = token
    if group.state is GroupState.PREPARING_REBALANCE:
        group.complete_join_if_all_are_in(now_ms, decision)
    else:
        group.prepare_rebalance(now_ms, decision)


def _return_static(
    group: ClassicGroup, known_id: str, command: JoinGroup, token: Token, now_ms: int, decision: Decision
) -> None:
    """A static member is back under a new id: while the group is stable and its protocol stays, nothing else happens.

    Its subscription may differ: clients write into it what they own, which is nothing after a start.
    """
    member = group.replace_static(known_id, command.new_member_id, decision)
    member.update(command)
    member.touch(now_ms)
    if group.state is GroupState.STABLE and group.vote() == group.protocol_name:
        decision.records.append(group.record(now_ms))
        return decision.reply(token, group.joined(member, skip_assignment=command.skips_assignment))
    _rejoin(group, member, command, token, now_ms, decision)


def _check_size(group: ClassicGroup, settings: GroupsSettings) -> None:
    size = len(group.members) + len(group.pending_members)
    if size >= settings.max_size:
        raise RequestError(
            ErrorKind.GROUP_MAX_SIZE_REACHED, f"group '{group.group_id}' has {size} members (groups.max_size)"
        )
