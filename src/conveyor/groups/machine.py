"""The state machine of one partition of `__consumer_offsets`: all groups that it looks after.

Hard state, changed by `apply` only: committed offsets, and the last record of each group. Soft state: the living
groups, made from the hard state by `loaded`. What `handle` changes is soft, and is as the records that it decides on.
See `conveyor.kernel.machine` for the contract.
"""

from dataclasses import replace
from heapq import heappop, heappush

from conveyor.groups.classic_group import ClassicGroup, Decision, GroupState, restored_group
from conveyor.groups.commands import (
    NO_GENERATION,
    NO_MEMBER,
    CommitOffsets,
    FetchOffsets,
    GroupCommand,
    Heartbeat,
    JoinGroup,
    LeaveGroup,
    LeavingMember,
    SyncGroup,
)
from conveyor.groups.joining import check_join, check_member, join
from conveyor.groups.member import Member
from conveyor.groups.offsets import CommittedOffsets, commit_records
from conveyor.groups.records import (
    GroupKey,
    GroupValue,
    OffsetKey,
    decode_group,
    decode_key,
    decode_offset,
    group_record,
)
from conveyor.groups.replies import Alive, JoinRefused, Left
from conveyor.kernel.errors import ErrorKind, RequestError
from conveyor.kernel.machine import LogRecord, Outcome, Token
from conveyor.kernel.settings import GroupsSettings


class GroupMachine:
    """See the module's docstring."""

    def __init__(self, settings: GroupsSettings) -> None:
        self._settings = settings
        self._offsets = CommittedOffsets()
        self._values: dict[str, GroupValue] = {}
        self._groups: dict[str, ClassicGroup] = {}
        self._deadlines: list[tuple[int, str]] = []
        self._queued: dict[str, int] = {}
        self._is_loaded = False

    def apply(self, record: LogRecord) -> None:
        key = decode_key(record.key or b"")
        if key is None:
            return
        if isinstance(key, OffsetKey):
            self._offsets.apply(key, None if record.value is None else decode_offset(record.value))
        elif record.value is not None:
            self._values[key.group_id] = _with_timestamp(decode_group(record.value), record.timestamp_ms)
        else:
            self._values.pop(key.group_id, None)
        if self._is_loaded:
            self._queue(key.group_id)

    def loaded(self, now_ms: int) -> None:
        """All records are applied: wake the groups. Their members' sessions start anew."""
        self._is_loaded = True
        for group_id, value in self._values.items():
            self._groups[group_id] = restored_group(group_id, value, now_ms)
        for group_id in self._groups.keys() | self._offsets.group_ids():
            self._queue(group_id)

    def next_deadline_ms(self) -> int | None:
        return self._deadlines[0][0] if self._deadlines else None

    def handle(self, command: GroupCommand, token: Token, now_ms: int) -> Outcome:
        decision = Decision()
        try:
            self._dispatch(command, token, now_ms, decision)
        except RequestError as error:
            refused = JoinRefused(error=error, member_id=command.member_id) if isinstance(command, JoinGroup) else error
            decision.reply(token, refused)
        if not isinstance(command, Heartbeat):
            self._queue(command.group_id)
        return decision.outcome()

    def expire(self, now_ms: int) -> Outcome:
        decision = Decision()
        looked_at = set()
        while self._deadlines and self._deadlines[0][0] <= now_ms:
            deadline, group_id = heappop(self._deadlines)
            if self._queued.get(group_id) != deadline:
                continue
            del self._queued[group_id]
            self._expire_group(group_id, now_ms, decision)
            looked_at.add(group_id)
        for group_id in looked_at:
            self._queue(group_id, not_before_ms=now_ms + 1)
        return decision.outcome()

    def _dispatch(self, command: GroupCommand, token: Token, now_ms: int, decision: Decision) -> None:
        match command:
            case JoinGroup():
                check_join(command, self._settings)
                join(self._group_to_join(command), command, token, now_ms, self._settings, decision)
            case SyncGroup():
                self._sync(command, token, now_ms, decision)
            case Heartbeat():
                self._heartbeat(command, token, now_ms, decision)
            case LeaveGroup():
                self._leave(command, token, now_ms, decision)
            case CommitOffsets():
                self._commit(command, token, now_ms, decision)
            case FetchOffsets():
                decision.reply(token, self._offsets.fetch(command))

    def _sync(self, command: SyncGroup, token: Token, now_ms: int, decision: Decision) -> None:
        group, member = self._member(command)
        _check_protocol(group, command)
        if group.state is GroupState.PREPARING_REBALANCE:
            raise _rebalancing(group)
        if group.state is GroupState.STABLE:
            member.touch(now_ms)
            return decision.reply(token, group.synced(member))
        if member.sync_token is not None:
            decision.reply(member.sync_token, _rebalancing(group))
        member.sync_token = token
        if member.member_id == group.leader:
            group.assign(command.assignments, now_ms, decision)

    def _heartbeat(self, command: Heartbeat, token: Token, now_ms: int, decision: Decision) -> None:
        group, member = self._member(command)
        member.touch(now_ms)
        if group.state is GroupState.PREPARING_REBALANCE:
            raise _rebalancing(group)
        decision.reply(token, Alive())

    def _leave(self, command: LeaveGroup, token: Token, now_ms: int, decision: Decision) -> None:
        _check_group_id(command.group_id)
        group = self._groups.get(command.group_id) or ClassicGroup(command.group_id)
        size = len(group.members)
        errors = tuple(self._leave_one(group, each, decision) for each in command.members)
        if len(group.members) < size or group.state is GroupState.PREPARING_REBALANCE:
            group.members_left(now_ms, decision)
        decision.reply(token, Left(errors=errors))

    def _leave_one(self, group: ClassicGroup, leaving: LeavingMember, decision: Decision) -> RequestError | None:
        member_id = leaving.member_id
        if leaving.group_instance_id is not None and member_id == NO_MEMBER:
            member_id = group.static_members.get(leaving.group_instance_id, NO_MEMBER)
        if group.pending_members.pop(member_id, None) is not None:
            return None
        try:
            group.forget(check_member(group, member_id, leaving.group_instance_id), decision)
        except RequestError as error:
            return error
        return None

    def _commit(self, command: CommitOffsets, token: Token, now_ms: int, decision: Decision) -> None:
        self._check_commit(command, now_ms)
        records, reply = commit_records(command, now_ms, self._settings.offset_metadata_max_bytes)
        decision.records += records
        decision.reply(token, reply)

    def _check_commit(self, command: CommitOffsets, now_ms: int) -> None:
        """Who may commit: a member of this generation; or anybody, to a group without members. Raises RequestError."""
        group = self._groups.get(command.group_id)
        has_generation = command.generation_id > NO_GENERATION
        if group is None and has_generation:
            raise RequestError(ErrorKind.ILLEGAL_GENERATION, f"group '{command.group_id}' has no generation now")
        if group is None or (group.state is GroupState.EMPTY and not has_generation):
            return
        if not has_generation and command.member_id == NO_MEMBER and command.group_instance_id is None:
            raise RequestError(
                ErrorKind.UNKNOWN_MEMBER_ID, f"group '{command.group_id}' has members: only they commit its offsets"
            )
        _, member = self._member(command)
        if group.state is GroupState.COMPLETING_REBALANCE:
            raise _rebalancing(group)
        member.touch(now_ms)

    def _member(self, command: SyncGroup | Heartbeat | CommitOffsets) -> tuple[ClassicGroup, Member]:
        """The group and the member that a command is about, of the generation it names. Raises RequestError."""
        group = self._group(command.group_id)
        member = check_member(group, command.member_id, command.group_instance_id)
        if command.generation_id != group.generation_id:
            raise RequestError(
                ErrorKind.ILLEGAL_GENERATION,
                f"group '{group.group_id}' is in generation {group.generation_id}, not {command.generation_id}",
            )
        return group, member

    def _group(self, group_id: str) -> ClassicGroup:
        _check_group_id(group_id)
        group = self._groups.get(group_id)
        if group is None:
            raise RequestError(ErrorKind.UNKNOWN_MEMBER_ID, f"group '{group_id}' has no members")
        return group

    def _group_to_join(self, command: JoinGroup) -> ClassicGroup:
        """A new member may be a group's first; one that has an id is of a group that is there. Raises RequestError."""
        if command.member_id != NO_MEMBER:
            return self._group(command.group_id)
        return self._groups.setdefault(command.group_id, ClassicGroup(command.group_id))

    def _expire_group(self, group_id: str, now_ms: int, decision: Decision) -> None:
        """A group that becomes empty now is not forgotten now: the record that says so is yet to be applied."""
        group = self._groups.get(group_id)
        was_empty = group is None or group.state is GroupState.EMPTY
        if group is not None:
            group.expire(now_ms, decision)
        if was_empty and (group is None or not group.pending_members):
            self._expire_empty(group_id, now_ms, decision)

    def _expire_empty(self, group_id: str, now_ms: int, decision: Decision) -> None:
        """Forget the offsets of a group without members once they are old enough, and then the group."""
        value = self._values.get(group_id)
        oldest_ms = now_ms - self._settings.offsets_retention_ms
        if value is None:
            decision.records += self._offsets.tombstones(group_id, oldest_ms + 1)
        elif value.state_timestamp_ms <= oldest_ms and not value.members:
            decision.records += self._offsets.tombstones(group_id)
            decision.records.append(group_record(GroupKey(group_id=group_id), None))
        else:
            return
        self._groups.pop(group_id, None)

    def _queue(self, group_id: str, not_before_ms: int = 0) -> None:
        """Note when a group must be looked at next. A deadline that has moved on is seen when the old one is due."""
        deadline = self._deadline(group_id)
        if deadline is None:
            return
        deadline = max(deadline, not_before_ms)
        queued = self._queued.get(group_id)
        if queued is None or deadline < queued:
            self._queued[group_id] = deadline
            heappush(self._deadlines, (deadline, group_id))

    def _deadline(self, group_id: str) -> int | None:
        group = self._groups.get(group_id)
        alive = None if group is None else group.next_deadline_ms()
        if alive is not None or (group is not None and group.members):
            return alive
        retention_ms = self._settings.offsets_retention_ms
        value = self._values.get(group_id)
        if value is not None:
            return value.state_timestamp_ms + retention_ms
        commits = [each.commit_timestamp_ms for each in self._offsets.of(group_id).values()]
        return min(commits) + retention_ms if commits else None


def _check_group_id(group_id: str) -> None:
    if not group_id:
        raise RequestError(ErrorKind.INVALID_GROUP_ID, "the group id is empty")


def _rebalancing(group: ClassicGroup) -> RequestError:
    return RequestError(ErrorKind.REBALANCE_IN_PROGRESS, f"group '{group.group_id}' rebalances: join again")


def _with_timestamp(value: GroupValue, appended_ms: int) -> GroupValue:
    """Early versions of the record do not say since when the group is as it is: since it was written, then."""
    return value if value.state_timestamp_ms >= 0 else replace(value, state_timestamp_ms=appended_ms)


def _check_protocol(group: ClassicGroup, command: SyncGroup) -> None:
    wrong_type = command.protocol_type not in (None, group.protocol_type)
    wrong_name = command.protocol_name not in (None, group.protocol_name)
    if wrong_type or wrong_name:
        raise RequestError(
            ErrorKind.INCONSISTENT_GROUP_PROTOCOL,
            f"group '{group.group_id}' uses '{group.protocol_name}' of type '{group.protocol_type}'",
        )
