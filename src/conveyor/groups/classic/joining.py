"""JoinGroup: admits members, and decides whether a join starts a rebalance."""

from conveyor.groups.classic.classic_group import ClassicGroup, GroupState
from conveyor.groups.classic.classic_member import Member, joined_bytes, new_member
from conveyor.groups.classic.roster import check_group_bytes
from conveyor.groups.group_commands import NO_MEMBER, JoinGroup
from conveyor.groups.replies import JoinRefused
from conveyor.kernel.decision import Decision
from conveyor.kernel.errors import ErrorKind, RequestError
from conveyor.kernel.state_machine import Token
from conveyor.settings.tree import GroupsSettings

MAX_PROTOCOLS = 100
"""The most protocols of a member: names of its assignors, of which clients have up to ten."""


def check_group_id(group_id: str) -> None:
    """Raise RequestError (INVALID_GROUP_ID) if the group id is empty."""
    if not group_id:
        raise RequestError(ErrorKind.INVALID_GROUP_ID, "the group id is empty")


def check_join(command: JoinGroup, settings: GroupsSettings) -> None:
    """Check everything that does not depend on the group's state. Raises RequestError."""
    check_group_id(command.group_id)
    minimum, maximum = settings.min_session_timeout_ms, settings.max_session_timeout_ms
    if not minimum <= command.session_timeout_ms <= maximum:
        raise RequestError(
            ErrorKind.INVALID_SESSION_TIMEOUT,
            f"session timeout {command.session_timeout_ms} ms: the limits are {minimum} to {maximum} ms"
            " (groups.min_session_timeout_ms, groups.max_session_timeout_ms)",
        )
    if not command.protocol_type or not command.protocols:
        raise RequestError(ErrorKind.INCONSISTENT_GROUP_PROTOCOL, "the protocol type or the list of protocols is empty")
    if len(command.protocols) > MAX_PROTOCOLS:
        raise RequestError(
            ErrorKind.INCONSISTENT_GROUP_PROTOCOL,
            f"the member offers {len(command.protocols)} protocols: at most {MAX_PROTOCOLS}",
        )
    size = sum(len(metadata) for _, metadata in command.protocols)
    if size > settings.member_metadata_max_bytes:
        raise RequestError(
            ErrorKind.MESSAGE_TOO_LARGE,
            f"the member's subscriptions have {size} bytes, groups.member_metadata_max_bytes is"
            f" {settings.member_metadata_max_bytes}",
        )


def join(
    group: ClassicGroup, command: JoinGroup, token: Token, now_ms: int, settings: GroupsSettings, decision: Decision
) -> None:
    """Handle a JoinGroup. The reply may follow later, when the rebalance completes. A refusal is a reply as well."""
    try:
        _check_protocols(group, command)
        _check_bytes(group, command)
        if command.member_id == NO_MEMBER:
            _join_new_member(group, command, token, now_ms, settings, decision)
        else:
            _rejoin_by_id(group, command, token, now_ms, settings, decision)
    except RequestError as error:
        decision.reply(token, JoinRefused(error=error.detached(), member_id=command.member_id))


def _join_new_member(
    group: ClassicGroup, command: JoinGroup, token: Token, now_ms: int, settings: GroupsSettings, decision: Decision
) -> None:
    known_id = group.members.static_members.holder(command.group_instance_id)
    if known_id is not None:
        return _return_static(group, known_id, command, token, now_ms, decision)
    _check_size(group, settings)
    if command.requires_known_id and command.group_instance_id is None:
        group.members.pending[command.new_member_id] = now_ms + command.session_timeout_ms
        error = RequestError(ErrorKind.MEMBER_ID_REQUIRED, "join again with the member id in this response")
        return decision.reply(token, JoinRefused(error=error, member_id=command.new_member_id))
    _add(group, command.new_member_id, command, token, now_ms, settings, decision)


def _rejoin_by_id(
    group: ClassicGroup, command: JoinGroup, token: Token, now_ms: int, settings: GroupsSettings, decision: Decision
) -> None:
    if command.member_id in group.members.pending:
        return _add(group, command.member_id, command, token, now_ms, settings, decision)
    member = group.members.find(command.member_id, command.group_instance_id)
    member.touch(now_ms)
    unchanged = member.protocols == command.protocols
    is_leader = member.member_id == group.leader
    if (group.state is GroupState.COMPLETING_REBALANCE and unchanged) or (
        group.state is GroupState.STABLE and unchanged and not is_leader
    ):
        group.members.update(member, command)
        return decision.reply(token, group.joined(member))
    _rejoin(group, member, command, token, now_ms, decision)


def _add(
    group: ClassicGroup, member_id: str, command: JoinGroup, token: Token, now_ms: int, settings: GroupsSettings,
    decision: Decision,
) -> None:  # fmt: skip
    if not group.members:
        group.protocol_type = command.protocol_type
    member = new_member(command, member_id, now_ms)
    member.join_token = token
    group.add(member)
    group.membership_changed(now_ms, decision, settings.initial_rebalance_delay_ms)


def _rejoin(
    group: ClassicGroup, member: Member, command: JoinGroup, token: Token, now_ms: int, decision: Decision
) -> None:
    if member.join_token is not None:
        superseded = RequestError(
            ErrorKind.REBALANCE_IN_PROGRESS, f"'{member.member_id}' has joined again on another connection"
        )
        decision.reply(member.join_token, JoinRefused(error=superseded, member_id=member.member_id))
    group.members.update(member, command)
    member.join_token = token
    group.membership_changed(now_ms, decision)


def _return_static(
    group: ClassicGroup, known_id: str, command: JoinGroup, token: Token, now_ms: int, decision: Decision
) -> None:
    """A static member returns under a new id. If the group is stable and keeps its protocol, no rebalance is needed.

    The subscription may differ from the last one: clients put their owned partitions into it, and own none after a
    start.
    """
    member = group.replace_static(known_id, command.new_member_id, decision)
    group.members.update(member, command)
    member.touch(now_ms)
    if group.state is GroupState.STABLE and group.members.vote() == group.protocol_name:
        decision.records.append(group.record(now_ms))
        return decision.reply(token, group.joined(member, skip_assignment=command.skips_assignment))
    _rejoin(group, member, command, token, now_ms, decision)


def _check_protocols(group: ClassicGroup, command: JoinGroup) -> None:
    """Check that the member shares a protocol with all others. Raises RequestError (INCONSISTENT_GROUP_PROTOCOL)."""
    names = {name for name, _ in command.protocols}
    is_alike = command.protocol_type == group.protocol_type and group.members.supported(names, command.member_id)
    if group.members and not is_alike:
        raise RequestError(
            ErrorKind.INCONSISTENT_GROUP_PROTOCOL,
            f"group '{group.group_id}' uses the protocol type '{group.protocol_type}'; its members share none of the"
            f" protocols {[name for name, _ in command.protocols]}",
        )


def _check_bytes(group: ClassicGroup, command: JoinGroup) -> None:
    """Check that the group does not become too large. Raises RequestError (GROUP_MAX_SIZE_REACHED)."""
    besides = command.member_id or group.members.static_members.holder(command.group_instance_id)
    size = joined_bytes(command.client_id, command.group_instance_id, command.protocols)
    for member in group.members:
        size += len(member.assignment) + (0 if member.member_id == besides else member.joined_bytes)
    check_group_bytes(group.group_id, size)


def _check_size(group: ClassicGroup, settings: GroupsSettings) -> None:
    size = len(group.members) + len(group.members.pending)
    if size >= settings.max_size:
        raise RequestError(
            ErrorKind.GROUP_MAX_SIZE_REACHED, f"group '{group.group_id}' has {size} members (groups.max_size)"
        )
