"""The state machine of one partition of `__consumer_offsets`: all groups that it looks after.

Hard state, changed by `apply` only: committed offsets, and what the log says of each group. Soft state: who waits, and
when sessions end; it is made from the hard state by `loaded`. What `handle` changes is soft, and is as the records
that it decides on. See `conveyor.kernel.machine` for the contract.
"""

from conveyor.groups.administration import delete_group, delete_offsets, describe_group, list_groups
from conveyor.groups.classic_group import Decision
from conveyor.groups.classic_groups import ClassicGroups
from conveyor.groups.commands import (
    CommitOffsets,
    DeleteGroup,
    DeleteOffsets,
    DescribeGroup,
    FetchOffsets,
    GroupCommand,
    Heartbeat,
    JoinGroup,
    LeaveGroup,
    ListGroups,
    OneGroupCommand,
    SyncGroup,
)
from conveyor.groups.deadlines import Deadlines
from conveyor.groups.offsets import CommittedOffsets, commit_records
from conveyor.groups.records import OffsetKey, decode_group, decode_key, decode_offset
from conveyor.groups.replies import JoinRefused
from conveyor.kernel.errors import RequestError
from conveyor.kernel.machine import LogRecord, Outcome, Token
from conveyor.kernel.settings import GroupsSettings


class GroupMachine:
    """See the module's docstring."""

    def __init__(self, settings: GroupsSettings) -> None:
        self._settings = settings
        self._offsets = CommittedOffsets()
        self._classic = ClassicGroups(settings)
        self._deadlines = Deadlines()
        self._is_loaded = False

    def apply(self, record: LogRecord) -> None:
        key = decode_key(record.key or b"")
        if key is None:
            return
        if isinstance(key, OffsetKey):
            self._offsets.apply(key, None if record.value is None else decode_offset(record.value))
        else:
            value = None if record.value is None else decode_group(record.value)
            self._classic.apply(key.group_id, value, record.timestamp_ms)
        if self._is_loaded:
            self._queue(key.group_id)

    def loaded(self, now_ms: int) -> None:
        """All records are applied: wake the groups. Their members' sessions start anew."""
        self._is_loaded = True
        self._classic.loaded(now_ms)
        for group_id in self._classic.group_ids() | self._offsets.group_ids():
            self._queue(group_id)

    def next_deadline_ms(self) -> int | None:
        return self._deadlines.next_ms()

    def handle(self, command: GroupCommand, token: Token, now_ms: int) -> Outcome:
        decision = Decision()
        if isinstance(command, ListGroups):
            decision.reply(token, list_groups(command, self._classic, self._offsets))
            return decision.outcome()
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
        due = list(self._deadlines.pop_due(now_ms))
        for group_id in due:
            if self._classic.expire(group_id, now_ms, decision):
                self._expire_empty(group_id, now_ms, decision)
        for group_id in due:
            self._queue(group_id, not_before_ms=now_ms + 1)
        return decision.outcome()

    def _dispatch(self, command: OneGroupCommand, token: Token, now_ms: int, decision: Decision) -> None:
        match command:
            case JoinGroup():
                self._classic.join(command, token, now_ms, decision)
            case SyncGroup():
                self._classic.sync(command, token, now_ms, decision)
            case Heartbeat():
                self._classic.heartbeat(command, token, now_ms, decision)
            case LeaveGroup():
                self._classic.leave(command, token, now_ms, decision)
            case CommitOffsets():
                self._commit(command, token, now_ms, decision)
            case FetchOffsets():
                decision.reply(token, self._offsets.fetch(command))
            case DescribeGroup():
                decision.reply(token, describe_group(command.group_id, self._classic, self._offsets))
            case DeleteGroup():
                delete_group(command.group_id, token, self._classic, self._offsets, decision)
            case DeleteOffsets():
                delete_offsets(command, token, self._classic, self._offsets, decision)

    def _commit(self, command: CommitOffsets, token: Token, now_ms: int, decision: Decision) -> None:
        self._classic.check_commit(command, now_ms)
        records, reply = commit_records(command, now_ms, self._settings.offset_metadata_max_bytes)
        decision.records += records
        decision.reply(token, reply)

    def _expire_empty(self, group_id: str, now_ms: int, decision: Decision) -> None:
        """Forget the offsets of a group without members once they are old enough, and then the group."""
        value = self._classic.value(group_id)
        oldest_ms = now_ms - self._settings.offsets_retention_ms
        if value is None:
            decision.records += self._offsets.tombstones(group_id, oldest_ms + 1)
        elif value.state_timestamp_ms <= oldest_ms and not value.members:
            decision.records += self._offsets.tombstones(group_id)
        else:
            return
        decision.records += self._classic.forget(group_id)

    def _queue(self, group_id: str, not_before_ms: int = 0) -> None:
        deadline = self._deadline(group_id)
        if deadline is not None:
            self._deadlines.put(group_id, max(deadline, not_before_ms))

    def _deadline(self, group_id: str) -> int | None:
        group = self._classic.find(group_id)
        alive = None if group is None else group.next_deadline_ms()
        if alive is not None or (group is not None and group.members):
            return alive
        retention_ms = self._settings.offsets_retention_ms
        value = self._classic.value(group_id)
        if value is not None:
            return value.state_timestamp_ms + retention_ms
        commits = [each.commit_timestamp_ms for each in self._offsets.of(group_id).values()]
        return min(commits) + retention_ms if commits else None
