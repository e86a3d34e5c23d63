"""All groups of the consumer protocol (KIP-848) of one coordinator partition.

Hard state, changed by `apply` only: the groups. Soft state: the sessions, the topics of the last `UpdateTopics`,
and the topics that patterns match.
"""

from collections.abc import Collection, KeysView

from conveyor.groups.consumer.assignors import AssignorChoice
from conveyor.groups.consumer.consumer_group import ConsumerGroup
from conveyor.groups.consumer.consumer_heartbeat import (
    check_epoch,
    enter,
    is_full,
    leave_temporarily,
    wanted_subscription,
)
from conveyor.groups.consumer.consumer_sessions import ConsumerSessions
from conveyor.groups.consumer.group_draft import GroupDraft, end_of_group
from conveyor.groups.consumer.pattern_matches import MAX_ASKED_MATCHES, PatternMatches, TopicChanges
from conveyor.groups.consumer.target_assignment import refresh, retarget
from conveyor.groups.group_commands import NO_GENERATION, NO_MEMBER, CommitOffsets, ConsumerHeartbeat, FetchOffsets
from conveyor.groups.group_settings import SettingsByGroup
from conveyor.groups.known_topics import KnownTopics, TopicIdPartition
from conveyor.groups.records.consumer_member import JOINING_EPOCH, LEAVING_EPOCH, MemberSubscription
from conveyor.groups.records.consumer_records import ConsumerKey, ConsumerKeyKind, member_key_bytes
from conveyor.groups.replies import HeartbeatAnswer
from conveyor.groups.silences import Silences
from conveyor.kernel.decision import Decision
from conveyor.kernel.errors import ErrorKind, RequestError
from conveyor.kernel.state_machine import LogRecord, Token

_MAX_WITHOUT_MEMBERS = 100
"""The most groups without members whose patterns are matched. Another one is admitted when together they match at most
`MAX_ASKED_MATCHES` topics.
"""


class ConsumerGroups:
    """The consumer groups of one partition; see the module's docstring."""

    def __init__(self, settings: SettingsByGroup, assignors: tuple[str, ...]) -> None:
        self.topics = KnownTopics()
        self.choice = AssignorChoice(assignors)
        self.sessions = ConsumerSessions(settings)
        self._settings = settings
        self._groups: dict[str, ConsumerGroup] = {}
        self._refreshed_with: dict[str, KnownTopics] = {}
        self._matches: dict[str, PatternMatches] = {}
        self._topic_changes = TopicChanges()
        self._without_members: dict[str, None] = {}
        """Groups that have matches because somebody wants to join them, the oldest first."""
        self._behind: dict[str, None] = {}
        """Groups whose patterns are being matched."""

    def apply(self, key: ConsumerKey, value: bytes | None, appended_ms: int) -> None:
        if value is None and key.kind is ConsumerKeyKind.GROUP:
            self._groups.pop(key.group_id, None)
            self._refreshed_with.pop(key.group_id, None)
            self._matches.pop(key.group_id, None)
            return
        group = self._groups.get(key.group_id)
        if group is None:
            if value is None:
                return
            group = self._groups[key.group_id] = ConsumerGroup(key.group_id)
        group.apply(key, value, appended_ms)
        if group.subscriptions:
            self._without_members.pop(key.group_id, None)

    def loaded(self, now_ms: int, silences: Silences) -> None:
        """Start all sessions once all records are applied."""
        for group in self._groups.values():
            self.sessions.restore(group, now_ms, silences)

    def group_ids(self) -> KeysView[str]:
        return self._groups.keys()

    def find(self, group_id: str) -> ConsumerGroup | None:
        return self._groups.get(group_id)

    def heartbeat(
        self, group: ConsumerGroup | None, command: ConsumerHeartbeat, token: Token, now_ms: int, decision: Decision
    ) -> int | None:
        """Reply to a member's heartbeat and advance its reconciliation. Returns the group's next deadline. Raises
        RequestError.
        """
        if group is None:
            if command.member_epoch != JOINING_EPOCH:
                raise RequestError(ErrorKind.GROUP_ID_NOT_FOUND, f"Consumer group {command.group_id} not found.")
            group = ConsumerGroup(command.group_id)
        if command.member_epoch < JOINING_EPOCH:
            return self._leave(group, command, token, now_ms, decision)
        draft = GroupDraft(group)
        member_id = command.member_id or command.new_member_id
        if command.member_epoch == JOINING_EPOCH:
            self.check_size(group, member_id)
        enter(draft, command, member_id)
        wanted = wanted_subscription(draft.subscriptions.get(member_id), command)
        deadline_ms = self.step(draft, member_id, wanted, command.owned, now_ms, decision)
        current = draft.current(member_id)
        is_changed = is_full(command) or current.assigned != group.current(member_id).assigned
        decision.reply(
            token,
            HeartbeatAnswer(
                member_id=member_id,
                member_epoch=current.epoch,
                heartbeat_interval_ms=self._settings.of(group.group_id).consumer_heartbeat_interval_ms,
                assignment=current.assigned if is_changed else None,
            ),
        )
        return deadline_ms

    def check_size(self, group: ConsumerGroup, member_id: str) -> None:
        """Raise RequestError (GROUP_MAX_SIZE_REACHED) if a new member does not fit into the group."""
        max_size = self._settings.of(group.group_id).consumer_max_size
        if member_id not in group.subscriptions and len(group.subscriptions) >= max_size:
            raise RequestError(
                ErrorKind.GROUP_MAX_SIZE_REACHED,
                f"group '{group.group_id}' has {max_size} members (groups.consumer_max_size)",
            )

    def step(
        self, draft: GroupDraft, member_id: str, wanted: MemberSubscription,
        owned: Collection[TopicIdPartition] | None, now_ms: int, decision: Decision, *, owes_step: bool = False,
    ) -> int:  # fmt: skip
        """Store a member's subscription, compute a new target assignment if the subscription or the topics have
        changed, and advance the member one step towards its target. Returns its next deadline. Raises RequestError
        (GROUP_MAX_SIZE_REACHED).

        owned: see `reconciled`. owes_step: see `ConsumerSessions.follow`.
        """
        old = draft.subscriptions.get(member_id)
        draft.subscriptions.check_names(member_id, wanted)
        if wanted != old:
            draft.put_subscription(member_id, wanted)
        draft.subscriptions.check_bytes()
        has_changed = old is None or (wanted.topics, wanted.pattern) != (old.topics, old.pattern) or draft.epoch == 0
        if has_changed or self._refreshed_with.get(draft.group_id) is not self.topics:
            self._refresh(draft, has_changed=has_changed)
        self._retarget(draft)
        draft.advance(member_id, owned)
        decision.records += draft.records
        return self.sessions.follow(draft, member_id, now_ms, owes_step=owes_step)

    def remove(self, group: ConsumerGroup, member_ids: list[str], decision: Decision) -> None:
        """Remove members. The remaining members learn about it from their next heartbeat. An empty group has no target
        assignment.
        """
        draft = GroupDraft(group)
        for member_id in member_ids:
            draft.drop_member(member_id)
        self._refresh(draft, has_changed=True)
        if not draft.subscriptions.all():
            self._retarget(draft)
            self._refreshed_with.pop(draft.group_id, None)  # Groups without members keep no snapshot of all topics.
            self._matches.pop(draft.group_id, None)
        self.sessions.forget(draft.group_id, member_ids)
        decision.records += draft.records

    def check_commit(self, group: ConsumerGroup, command: CommitOffsets) -> None:
        """Check that the sender is a member at its current epoch, or that the group has no members. A commit in a
        transaction need not name the member. Raises RequestError.
        """
        if command.generation_id <= NO_GENERATION:
            names_member = command.member_id != NO_MEMBER or command.group_instance_id is not None
            if not group.subscriptions or (command.producer is not None and not names_member):
                return
        group.check_identity(command.member_id, command.group_instance_id)
        member = group.subscriptions[command.member_id]
        if command.producer is None and not command.knows_member_epochs and member.classic is None:
            raise RequestError(
                ErrorKind.UNSUPPORTED_VERSION,
                "members of the consumer protocol commit with OffsetCommit version 9 or above",
            )
        _check_member_epoch(group, command.member_id, command.generation_id)

    def check_fetch(self, group: ConsumerGroup, command: FetchOffsets) -> None:
        """Check that a member that identifies itself is at its current epoch. Raises RequestError."""
        if command.member_id is not None or command.member_epoch > NO_GENERATION:
            member_id = command.member_id or ""
            group.check_identity(member_id, None)
            _check_member_epoch(group, member_id, command.member_epoch)

    def expire(self, group: ConsumerGroup, now_ms: int, max_bytes: int, decision: Decision) -> list[str]:
        """Remove members whose session or rebalance timeout has passed. Returns the removed members.

        max_bytes: once the tombstones of the removed members have that size, the others stay due.
        """
        expired, size = list[str](), 0
        for member_id in self.sessions.due(group.group_id, now_ms):
            if size >= max_bytes:
                break
            expired.append(member_id)
            size += member_key_bytes(group.group_id, member_id)
        if expired:
            self.remove(group, expired, decision)
        return expired

    def forget(self, group_id: str) -> list[LogRecord]:
        """Return the records that delete a group without members."""
        group = self._groups.get(group_id)
        return [] if group is None else end_of_group(group)

    @property
    def is_matching(self) -> bool:
        """Whether patterns are left for `match_more`."""
        return bool(self._behind)

    def match_more(self, decision: Decision) -> None:
        """Match the patterns of one group for a while. Once all are matched, its members get their partitions."""
        group_id = next(iter(self._behind), None)
        if group_id is None:
            return
        del self._behind[group_id]
        group = self._groups.get(group_id)
        if group is not None and group.subscriptions:
            draft = GroupDraft(group)
            self._refresh(draft, has_changed=False)
            self._retarget(draft)
            decision.records += draft.records
        elif group_id in self._matches:
            self._matches[group_id].update((), self.topics)
            self._note_work(group_id)

    def _refresh(self, draft: GroupDraft, *, has_changed: bool) -> None:
        group_id = draft.group_id
        group = self._groups.get(group_id)
        if group is None or not group.subscriptions:
            self._admit(group_id)
        matches = self._matches.setdefault(group_id, PatternMatches(self._topic_changes))
        try:
            if refresh(draft, matches, self.topics, has_changed=has_changed):
                self._refreshed_with[group_id] = self.topics
        finally:
            self._note_work(group_id)

    def _admit(self, group_id: str) -> None:
        """Keep the matches of a group without members, and forget those of the groups that have waited longest."""
        self._without_members.pop(group_id, None)
        self._without_members[group_id] = None
        while len(self._without_members) > 1 and (
            len(self._without_members) > _MAX_WITHOUT_MEMBERS or self._asked_count() > MAX_ASKED_MATCHES
        ):
            oldest = next(iter(self._without_members))
            del self._without_members[oldest]
            self._matches.pop(oldest, None)

    def _asked_count(self) -> int:
        matches = (self._matches.get(group_id) for group_id in self._without_members)
        return sum(matched.count_asked() for matched in matches if matched is not None)

    def _note_work(self, group_id: str) -> None:
        if self._matches[group_id].is_behind:
            self._behind[group_id] = None
        else:
            self._behind.pop(group_id, None)

    def _retarget(self, draft: GroupDraft) -> None:
        """Compute a new target assignment if one is due, unless a later heartbeat has to resolve patterns first."""
        if self._refreshed_with.get(draft.group_id) is self.topics:
            retarget(draft, self._matches[draft.group_id], self.choice)

    def _leave(
        self, group: ConsumerGroup, command: ConsumerHeartbeat, token: Token, now_ms: int, decision: Decision
    ) -> int | None:
        check_epoch(group, command)
        deadline_ms = None
        if command.member_epoch == LEAVING_EPOCH:
            self.remove(group, [command.member_id], decision)
        else:
            draft = GroupDraft(group)
            leave_temporarily(draft, command.member_id)
            decision.records += draft.records
            deadline_ms = self.sessions.follow(draft, command.member_id, now_ms)
        answer = HeartbeatAnswer(
            member_id=command.member_id, member_epoch=command.member_epoch, heartbeat_interval_ms=0, assignment=None
        )
        decision.reply(token, answer)
        return deadline_ms


def _check_member_epoch(group: ConsumerGroup, member_id: str, epoch: int) -> None:
    expected = group.current(member_id).epoch
    if epoch != expected:
        is_classic = group.subscriptions[member_id].classic is not None
        kind = ErrorKind.ILLEGAL_GENERATION if is_classic else ErrorKind.STALE_MEMBER_EPOCH
        raise RequestError(kind, f"'{member_id}' is at epoch {expected}, not {epoch}")
