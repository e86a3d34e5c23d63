"""All classic groups of one coordinator partition: member requests, and the expiry of groups.

Hard state, changed by `apply` only: the last record of each group. Soft state: the active groups.
"""

from collections.abc import KeysView

import msgspec

from conveyor.groups.classic.classic_group import ClassicGroup, GroupState, rejoin_error, restored_group
from conveyor.groups.classic.classic_member import Member
from conveyor.groups.classic.joining import check_group_id, check_join, join
from conveyor.groups.group_commands import (
    NO_GENERATION,
    NO_MEMBER,
    CommitOffsets,
    Heartbeat,
    JoinGroup,
    LeaveGroup,
    LeavingMember,
    SyncGroup,
)
from conveyor.groups.group_settings import SettingsByGroup
from conveyor.groups.records.group_records import GroupKey, GroupValue, group_record
from conveyor.groups.replies import Alive, Left
from conveyor.groups.silences import Silences
from conveyor.kernel.decision import Decision
from conveyor.kernel.errors import ErrorKind, RequestError
from conveyor.kernel.state_machine import LogRecord, Token


class ClassicGroups:
    """The classic groups of one partition; see the module's docstring."""

    def __init__(self, settings: SettingsByGroup) -> None:
        self._settings = settings
        self._values: dict[str, GroupValue] = {}
        self._groups: dict[str, ClassicGroup] = {}

    def apply(self, group_id: str, value: GroupValue | None, appended_ms: int) -> None:
        if value is None:
            self._values.pop(group_id, None)
        else:
            self._values[group_id] = _with_timestamp(value, appended_ms)

    def loaded(self, now_ms: int, silences: Silences) -> None:
        """Build the groups from their last records. Members keep the remainder of their sessions."""
        for group_id, value in self._values.items():
            self._groups[group_id] = restored_group(group_id, value, now_ms, silences)

    def clock_set(self, by_ms: int) -> None:
        """Keep the remaining time of sessions and rebalances, because the wall clock was set by `by_ms`."""
        for group in self._groups.values():
            group.clock_set(by_ms)

    def group_ids(self) -> KeysView[str]:
        return self._groups.keys()

    def unheard(self, group_id: str) -> set[str]:
        """Return the members in the log that sent nothing since it was loaded, or have left the group since.

        An expelled member stays in the log until the group has a new generation; after a crash it is in the group
        again.
        """
        value, group = self._values.get(group_id), self._groups.get(group_id)
        if value is None or group is None:
            return set()
        heard = {member.member_id for member in group.members if not member.is_unheard}
        return {member.member_id for member in value.members} - heard

    def find(self, group_id: str) -> ClassicGroup | None:
        return self._groups.get(group_id)

    def value(self, group_id: str) -> GroupValue | None:
        """Return the group's last record."""
        return self._values.get(group_id)

    def join(self, command: JoinGroup, token: Token, now_ms: int, decision: Decision) -> None:
        settings = self._settings.of(command.group_id)
        check_join(command, settings)
        join(self._group_to_join(command), command, token, now_ms, settings, decision)

    def sync(self, command: SyncGroup, token: Token, now_ms: int, decision: Decision) -> None:
        group, member = self._member(command)
        _check_protocol(group, command)
        group.sync(member, command, token, now_ms, decision)

    def heartbeat(self, command: Heartbeat, token: Token, now_ms: int, decision: Decision) -> None:
        group, member = self._member(command)
        member.touch(now_ms)
        if group.state is GroupState.PREPARING_REBALANCE:
            raise rejoin_error(group.group_id)
        decision.reply(token, Alive())

    def leave(self, command: LeaveGroup, token: Token, now_ms: int, decision: Decision) -> None:
        check_group_id(command.group_id)
        group = self._groups.get(command.group_id) or ClassicGroup(command.group_id)
        size = len(group.members)
        errors = tuple(self._leave_one(group, leaving, decision) for leaving in command.members)
        if len(group.members) < size or group.state is GroupState.PREPARING_REBALANCE:
            group.membership_changed(now_ms, decision)
        decision.reply(token, Left(errors=errors))

    def check_commit(self, command: CommitOffsets, now_ms: int) -> None:
        """Check that the sender is a member of the current generation, or that the group has no members.

        A commit in a transaction need not name the member, because older clients do not know it there. Otherwise it is
        fenced like any other, also while the group rebalances (KIP-447). Raises RequestError.
        """
        group = self._groups.get(command.group_id)
        has_generation = command.generation_id > NO_GENERATION
        if group is None and has_generation:
            kind = ErrorKind.GROUP_ID_NOT_FOUND if command.knows_member_epochs else ErrorKind.ILLEGAL_GENERATION
            raise RequestError(kind, f"group '{command.group_id}' has no current generation")
        if group is None or (group.state is GroupState.EMPTY and not has_generation):
            return
        if not has_generation and command.member_id == NO_MEMBER and command.group_instance_id is None:
            if command.producer is not None:
                return
            raise RequestError(
                ErrorKind.UNKNOWN_MEMBER_ID,
                f"group '{command.group_id}' has members: only a member can commit its offsets",
            )
        _, member = self._member(command)
        if group.state is GroupState.COMPLETING_REBALANCE and command.producer is None:
            raise rejoin_error(group.group_id)
        member.touch(now_ms)

    def expire(self, group_id: str, now_ms: int, decision: Decision) -> bool:
        """Expire a group's sessions and rebalance. Returns whether the group had no members before.

        A group that becomes empty in this call is not deleted yet: the record of its being empty must be applied first.
        """
        group = self._groups.get(group_id)
        if group is None:
            return True
        was_empty = group.state is GroupState.EMPTY
        group.expire(now_ms, decision)
        return was_empty and not group.members.pending

    def adopt(self, group: ClassicGroup) -> None:
        """Add a group that was converted from the consumer protocol."""
        self._groups[group.group_id] = group

    def forget(self, group_id: str) -> list[LogRecord]:
        """Delete a group without members. Returns its tombstone, or nothing if the log has no record of the group."""
        self._groups.pop(group_id, None)
        return [group_record(GroupKey(group_id=group_id), None)] if group_id in self._values else []

    def _leave_one(self, group: ClassicGroup, leaving: LeavingMember, decision: Decision) -> RequestError | None:
        member_id = group.members.static_members.leaving_id(leaving)
        if group.members.pending.pop(member_id, None) is not None:
            return None
        try:
            group.remove(group.members.find(member_id, leaving.group_instance_id), decision)
        except RequestError as error:
            return error.detached()
        return None

    def _member(self, command: SyncGroup | Heartbeat | CommitOffsets) -> tuple[ClassicGroup, Member]:
        """Return a command's group and member after a check of its generation. Raises RequestError."""
        group = self._group(command.group_id)
        member = group.members.find(command.member_id, command.group_instance_id)
        if command.generation_id != group.generation_id:
            raise RequestError(
                ErrorKind.ILLEGAL_GENERATION,
                f"group '{group.group_id}' is in generation {group.generation_id}, not {command.generation_id}",
            )
        return group, member

    def _group(self, group_id: str) -> ClassicGroup:
        check_group_id(group_id)
        group = self._groups.get(group_id)
        if group is None:
            raise RequestError(ErrorKind.UNKNOWN_MEMBER_ID, f"group '{group_id}' has no members")
        return group

    def _group_to_join(self, command: JoinGroup) -> ClassicGroup:
        """Return the group to join, which a new member may create. A member with an id needs an existing group. Raises
        RequestError.
        """
        if command.member_id != NO_MEMBER:
            return self._group(command.group_id)
        return self._groups.setdefault(command.group_id, ClassicGroup(command.group_id))


def _with_timestamp(value: GroupValue, appended_ms: int) -> GroupValue:
    """Early record versions have no state timestamp: use the time at which the record was appended."""
    return value if value.state_timestamp_ms >= 0 else msgspec.structs.replace(value, state_timestamp_ms=appended_ms)


def _check_protocol(group: ClassicGroup, command: SyncGroup) -> None:
    wrong_type = command.protocol_type not in (None, group.protocol_type)
    wrong_name = command.protocol_name not in (None, group.protocol_name)
    if wrong_type or wrong_name:
        raise RequestError(
            ErrorKind.INCONSISTENT_GROUP_PROTOCOL,
            f"group '{group.group_id}' uses '{group.protocol_name}' of type '{group.protocol_type}'",
        )
