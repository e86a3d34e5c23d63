"""The state machine of one partition of `__consumer_offsets`. It coordinates all groups of that partition, of both
protocols.

Hard state, changed by `apply` only: committed offsets and the logged state of each group. Soft state: pending replies,
session deadlines and the cluster's topics. `loaded` builds the soft state from the hard state, and `UpdateTopics` sets
the topics. `handle` changes soft state only, consistently with the records that it returns. The contract is in
`conveyor.kernel.state_machine`.
"""

from collections.abc import Iterable, Mapping
from itertools import islice
from types import MappingProxyType

from conveyor.groups.administration import Administration
from conveyor.groups.classic.classic_groups import ClassicGroups
from conveyor.groups.classic.joining import check_join
from conveyor.groups.committed_offsets import CommittedOffsets, commit_records
from conveyor.groups.committers import Committers
from conveyor.groups.consumer.consumer_group import ConsumerGroup
from conveyor.groups.consumer.consumer_groups import ConsumerGroups
from conveyor.groups.consumer.consumer_heartbeat import check_heartbeat
from conveyor.groups.deleted_topics import DeletedTopics
from conveyor.groups.group_commands import (
    CommitOffsets,
    ConsumerHeartbeat,
    DeleteGroup,
    DeleteOffsets,
    DescribeConsumerGroup,
    DescribeGroup,
    FetchOffsets,
    GroupCommand,
    Heartbeat,
    JoinGroup,
    LeaveGroup,
    ListGroups,
    OneGroupCommand,
    SyncGroup,
    UpdateSettings,
    UpdateTopics,
)
from conveyor.groups.group_settings import SettingsByGroup
from conveyor.groups.migration.classic_in_consumers import ClassicInConsumers
from conveyor.groups.migration.protocol_change import ProtocolChange
from conveyor.groups.records.consumer_member import LEAVING_EPOCH
from conveyor.groups.records.consumer_records import ConsumerKey
from conveyor.groups.records.group_records import (
    OffsetKey,
    SilenceKey,
    decode_group,
    decode_key,
    decode_offset,
    decode_silences,
)
from conveyor.groups.replies import JoinRefused, SettingsUpdated, TopicsUpdated
from conveyor.groups.silences import Silences
from conveyor.kernel.deadlines import Deadlines
from conveyor.kernel.decision import Decision
from conveyor.kernel.errors import ErrorKind, RequestError
from conveyor.kernel.ids import ProducerIdentity
from conveyor.kernel.state_machine import LogRecord, Outcome, Token
from conveyor.settings.tree import GroupsSettings

MAX_GROUP_ID_BYTES = 1_024
_EXPIRED_AT_ONCE = 100
"""The most groups that one `expire` call processes. After a restart all groups may expire at the same time, and a batch
has a size limit.
"""

_EXPIRED_BYTES = 400_000
"""Once the records of one `expire` call have that size, the other groups and members stay due for the next call."""
_EXPIRED_RECORDS = 1_000
"""As `_EXPIRED_BYTES`, for the number of the records, which take 6 us each."""


class GroupMachine:
    """Coordinates the groups of one partition; see the module's docstring."""

    def __init__(self, defaults: GroupsSettings, own: Mapping[str, GroupsSettings] = MappingProxyType({})) -> None:
        """own: by group id, the complete settings of each group that overrides some of the defaults."""
        settings = self._settings = SettingsByGroup(defaults, own)
        self._offsets = CommittedOffsets()
        self._committers = Committers()
        self._classic = ClassicGroups(settings)
        self._consumers = ConsumerGroups(settings, tuple(defaults.consumer_assignors.split(",")))
        self._change = ProtocolChange(settings, self._classic, self._consumers)
        self._classic_in_consumers = ClassicInConsumers(self._consumers)
        self._administration = Administration(self._classic, self._consumers, self._offsets)
        self._deadlines: Deadlines[str] = Deadlines()
        self._silences = Silences()
        self._deleted_topics = DeletedTopics()
        self._changed: set[str] = set()
        self._is_loaded = False

    def apply(self, record: LogRecord) -> None:
        key = decode_key(record.key or b"")
        if key is None:
            return
        if isinstance(key, SilenceKey):
            return self._silences.apply(key.group_id, None if record.value is None else decode_silences(record.value))
        if isinstance(key, OffsetKey):
            self._offsets.apply(key, None if record.value is None else decode_offset(record.value), record.producer)
            if record.producer is None:
                self._deleted_topics.changed((key.group_id,), record.timestamp_ms)
        elif isinstance(key, ConsumerKey):
            self._consumers.apply(key, record.value, record.timestamp_ms)
        else:
            value = None if record.value is None else decode_group(record.value)
            self._classic.apply(key.group_id, value, record.timestamp_ms)
        if self._is_loaded:
            self._changed.add(key.group_id)

    def resolve(self, producer: ProducerIdentity, commits: bool, now_ms: int) -> None:
        """See `TransactionalMachine`."""
        group_ids = self._offsets.resolve(producer, commits)
        self._deleted_topics.changed(group_ids, now_ms)
        if self._is_loaded:
            self._changed |= group_ids

    def loaded(self, now_ms: int) -> None:
        """Activate the groups once all records are applied. Members keep the remainder of their sessions."""
        self._is_loaded = True
        self._classic.loaded(now_ms, self._silences)
        self._consumers.loaded(now_ms, self._silences)
        groups = self._classic.group_ids() | self._consumers.group_ids()
        self._silences.loaded(now_ms, [group_id for group_id in sorted(groups) if self._unheard(group_id)])
        self._requeue_all()

    def clock_set(self, by_ms: int) -> None:
        """See `StateMachine.clock_set`. Session and rebalance deadlines shift; the age of committed offsets follows the
        wall clock.
        """
        self._classic.clock_set(by_ms)
        self._consumers.sessions.clock_set(by_ms)
        self._silences.clock_set(by_ms)
        self._deleted_topics.clock_set(by_ms)
        self._deadlines = Deadlines()
        self._requeue_all()

    def next_deadline_ms(self) -> int | None:
        """See `StateMachine`. Groups get the deadlines that follow from applied records here, once for all records of a
        decision, because that may need a look at all offsets of a group.
        """
        for group_id in self._changed:
            self._queue(group_id)
        self._changed.clear()
        deadlines = (
            self._deadlines.next_ms(),
            self._silences.next_deadline_ms(),
            self._deleted_topics.next_deadline_ms(),
            0 if self._consumers.is_matching else None,
        )
        return min((deadline for deadline in deadlines if deadline is not None), default=None)

    def group_ids(self) -> set[str]:
        """Return the groups, for `ListGroups`."""
        return self._administration.group_ids()

    def handle(self, command: GroupCommand[object], token: Token, now_ms: int) -> Outcome:
        decision = Decision()
        match command:
            case ListGroups():
                decision.reply(token, self._administration.list_groups(command))
            case UpdateTopics():
                group_ids = self._offsets.group_ids()
                self._deleted_topics.update(self._consumers.topics, command.topics, group_ids, now_ms)
                self._consumers.topics = command.topics
                decision.reply(token, TopicsUpdated())
            case UpdateSettings():
                self._settings.update(command.defaults, command.own)
                self._requeue_all()
                decision.reply(token, SettingsUpdated())
            case OneGroupCommand():
                self._handle_one_group(command, token, now_ms, decision)
            case _:
                raise AssertionError(f"{command} is not a command of a coordinator")
        return decision.outcome()

    def expire(self, now_ms: int) -> Outcome:
        decision, due = Decision(), list[str]()
        self._consumers.match_more(decision)
        if decision.records:  # They change a group whose other deadlines are decided on after they are applied.
            return decision.outcome()
        decision.records += self._deleted_topics.tombstones(self._offsets, now_ms, _EXPIRED_BYTES)
        size = _bytes_of(decision.records)
        for group_id in islice(self._deadlines.pop_due(now_ms), _EXPIRED_AT_ONCE):
            due.append(group_id)
            count = len(decision.records)
            self._expire_group(group_id, now_ms, decision)
            size += _bytes_of(decision.records[count:])
            if size >= _EXPIRED_BYTES or len(decision.records) >= _EXPIRED_RECORDS:
                break
        for group_id in due:
            self._requeue(group_id, not_before_ms=now_ms + 1)
        for group_id in self._silences.pop_due(now_ms):
            records = self._silences.note(group_id, self._unheard(group_id), now_ms)
            decision.records += records
            size += _bytes_of(records)
            if size >= _EXPIRED_BYTES:
                break
        return decision.outcome()

    def _handle_one_group(
        self, command: OneGroupCommand[object], token: Token, now_ms: int, decision: Decision
    ) -> None:
        try:
            check_group_id(command.group_id)
            self._dispatch(command, token, now_ms, decision)
        except RequestError as error:
            refusal = error.detached()
            if isinstance(command, JoinGroup):
                decision.reply(token, JoinRefused(error=refusal, member_id=command.member_id))
            else:
                decision.reply(token, refusal)
        if decision.producer is None:  # Otherwise the deletion would be aborted together with the offsets.
            self._drop_notes(command.group_id, decision)
        if not isinstance(command, Heartbeat):
            self._queue(command.group_id)

    def _dispatch(self, command: OneGroupCommand[object], token: Token, now_ms: int, decision: Decision) -> None:
        match command:
            case JoinGroup() | SyncGroup() | Heartbeat() | LeaveGroup():
                self._dispatch_classic(command, token, now_ms, decision)
            case ConsumerHeartbeat():
                self._consumer_heartbeat(command, token, now_ms, decision)
            case CommitOffsets():
                self._commit(command, token, now_ms, decision)
            case FetchOffsets():
                self._fetch(command, token, decision)
            case DescribeGroup():
                decision.reply(token, self._administration.describe(command.group_id))
            case DescribeConsumerGroup():
                decision.reply(token, self._administration.describe_consumers(command.group_id))
            case DeleteGroup():
                self._administration.delete(command.group_id, token, decision)
            case DeleteOffsets():
                self._administration.delete_offsets(command, token, decision)

    def _dispatch_classic(
        self, command: JoinGroup | SyncGroup | Heartbeat | LeaveGroup, token: Token, now_ms: int, decision: Decision
    ) -> None:
        group = self._consumers.find(command.group_id)
        if group is not None and group.subscriptions:
            try:
                return self._dispatch_classic_in_consumers(group, command, token, now_ms, decision)
            finally:
                self._requeue(command.group_id)
        match command:
            case JoinGroup():
                joined = Decision()
                self._classic.join(command, token, now_ms, joined)
                decision.records += self._consumers.forget(command.group_id)  # It has no members.
                decision.add(joined)
            case SyncGroup():
                self._classic.sync(command, token, now_ms, decision)
            case Heartbeat():
                self._classic.heartbeat(command, token, now_ms, decision)
            case LeaveGroup():
                self._classic.leave(command, token, now_ms, decision)

    def _dispatch_classic_in_consumers(
        self, group: ConsumerGroup, command: JoinGroup | SyncGroup | Heartbeat | LeaveGroup, token: Token, now_ms: int,
        decision: Decision,
    ) -> None:  # fmt: skip
        match command:
            case JoinGroup():
                check_join(command, self._settings.of(command.group_id))
                self._classic_in_consumers.join(group, command, token, now_ms, decision)
            case SyncGroup():
                self._classic_in_consumers.sync(group, command, token, now_ms, decision)
            case Heartbeat():
                self._classic_in_consumers.heartbeat(group, command, token, now_ms, decision)
            case LeaveGroup():
                removed = self._classic_in_consumers.leave(group, command, token, now_ms, decision)
                self._change.downgrade(group, removed, now_ms, decision)

    def _consumer_heartbeat(self, command: ConsumerHeartbeat, token: Token, now_ms: int, decision: Decision) -> None:
        check_heartbeat(command, self._consumers.choice)
        upgrade = self._change.upgrade(command, now_ms)
        upgraded = None if upgrade is None else upgrade.consumers
        group = upgraded or self._consumers.find(command.group_id)
        joined = Decision()
        if upgraded is not None:
            self._consumers.sessions.start(upgraded, now_ms)
        try:
            deadline_ms = self._consumers.heartbeat(group, command, token, now_ms, joined)
        except RequestError:
            if upgraded is not None:
                self._consumers.sessions.forget(command.group_id, upgraded.subscriptions)
            raise
        if upgrade is not None:
            self._change.carry_out(upgrade, decision)
        decision.add(joined)
        if upgraded is not None:
            deadline_ms = self._consumers.sessions.next_deadline_ms(command.group_id)
        if deadline_ms is not None:
            self._deadlines.put(command.group_id, deadline_ms)
        if group is not None and command.member_epoch == LEAVING_EPOCH:
            self._change.downgrade(group, [command.member_id], now_ms, decision)

    def _commit(self, command: CommitOffsets, token: Token, now_ms: int, decision: Decision) -> None:
        group = self._consumers.find(command.group_id)
        if group is None:
            self._classic.check_commit(command, now_ms)
        else:
            self._consumers.check_commit(group, command)
        self._committers.heard(command)
        max_bytes = self._settings.of(command.group_id).offset_metadata_max_bytes
        records, reply = commit_records(command, now_ms, max_bytes, self._consumers.topics)
        decision.records += records
        decision.producer = command.producer
        decision.reply(token, reply)

    def _fetch(self, command: FetchOffsets, token: Token, decision: Decision) -> None:
        group = self._consumers.find(command.group_id)
        if group is not None:
            self._consumers.check_fetch(group, command)
        decision.reply(token, self._offsets.fetch(command, self._deleted_topics.has))

    def _expire_group(self, group_id: str, now_ms: int, decision: Decision) -> None:
        consumers = self._consumers.find(group_id)
        if consumers is not None and consumers.subscriptions:
            removed = self._consumers.expire(consumers, now_ms, _EXPIRED_BYTES, decision)
            self._change.downgrade(consumers, removed, now_ms, decision)
        elif self._classic.expire(group_id, now_ms, decision):
            self._expire_empty(group_id, now_ms, decision)

    def _expire_empty(self, group_id: str, now_ms: int, decision: Decision) -> None:
        """Delete the offsets of a group without members once they exceed their retention, a part in each call, and then
        the group. One with pending offsets is kept until their transactions end (KAFKA-19163).
        """
        oldest_ms = now_ms - self._settings.of(group_id).offsets_retention_ms
        consumers, value = self._consumers.find(group_id), self._classic.value(group_id)
        if self._offsets.pending(group_id):
            return
        if value is not None and (value.state_timestamp_ms > oldest_ms or value.members):
            return
        tombstones, is_last = self._offsets.tombstones(group_id, oldest_ms + 1 if value is None else None)
        decision.records += tombstones
        if not is_last:
            return
        decision.records += self._classic.forget(group_id)
        if consumers is not None and consumers.changed_ms <= oldest_ms and not self._offsets.of(group_id):
            decision.records += self._consumers.forget(group_id)

    def _drop_notes(self, group_id: str, decision: Decision) -> None:
        """Delete the silence notes of members that sent a heartbeat or left. A note is written whole, so those of
        members that expire are deleted with the next note.
        """
        if self._silences.has_note(group_id):
            decision.records += self._silences.without_heard(group_id, self._unheard(group_id))

    def _unheard(self, group_id: str) -> set[str]:
        return self._classic.unheard(group_id) | self._consumers.sessions.unheard(group_id)

    def _queue(self, group_id: str) -> None:
        """Set a group's next deadline. A consumer group with members has set its own already."""
        consumers = self._consumers.find(group_id)
        if consumers is None or not consumers.subscriptions:
            self._requeue(group_id)

    def _requeue_all(self) -> None:
        for group_id in self.group_ids():
            self._requeue(group_id)

    def _requeue(self, group_id: str, not_before_ms: int = 0) -> None:
        deadline = self._deadline(group_id)
        if deadline is not None:
            self._deadlines.put(group_id, max(deadline, not_before_ms))

    def _deadline(self, group_id: str) -> int | None:
        group, consumers = self._classic.find(group_id), self._consumers.find(group_id)
        if consumers is not None and consumers.subscriptions:
            return self._consumers.sessions.next_deadline_ms(group_id)
        member_deadline = None if group is None else group.next_deadline_ms()
        if member_deadline is not None or (group is not None and group.members):
            return member_deadline
        if self._offsets.pending(group_id):
            return None
        retention_ms = self._settings.of(group_id).offsets_retention_ms
        value = self._classic.value(group_id)
        if value is not None:
            return value.state_timestamp_ms + retention_ms
        commits = [offset.commit_timestamp_ms for offset in self._offsets.of(group_id).values()]
        if commits:
            return min(commits) + retention_ms
        return None if consumers is None else consumers.changed_ms + retention_ms


def check_group_id(group_id: str) -> None:
    """Raise RequestError (INVALID_GROUP_ID) if the group id is too long: the key of each committed offset has it."""
    if len(group_id.encode()) > MAX_GROUP_ID_BYTES:
        raise RequestError(ErrorKind.INVALID_GROUP_ID, f"the group id has more than {MAX_GROUP_ID_BYTES} bytes")


def _bytes_of(records: Iterable[LogRecord]) -> int:
    return sum(len(record.key or b"") + len(record.value or b"") for record in records)
