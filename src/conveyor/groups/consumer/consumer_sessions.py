"""The deadlines of the members of consumer groups: soft state, rebuilt when a coordinator starts."""

from collections.abc import Iterable
from dataclasses import dataclass

from conveyor.groups.consumer.consumer_group import ConsumerGroup
from conveyor.groups.consumer.group_draft import GroupDraft
from conveyor.groups.group_settings import SettingsByGroup
from conveyor.groups.records.consumer_member import MemberState, MemberSubscription
from conveyor.groups.silences import Silences


@dataclass(slots=True)
class _Deadlines:
    """session_ms: the end of the session. step_ms: when the member must have taken a reconciliation step, for example
    revoked partitions; None if it has none to take. is_unheard: see `conveyor.groups.silences`.
    """

    session_ms: int
    step_ms: int | None = None
    is_unheard: bool = False

    def next_ms(self) -> int:
        return self.session_ms if self.step_ms is None else min(self.session_ms, self.step_ms)


class ConsumerSessions:
    """The deadlines of all members, by group and member."""

    def __init__(self, settings: SettingsByGroup) -> None:
        self._settings = settings
        self._groups: dict[str, dict[str, _Deadlines]] = {}

    def restore(self, group: ConsumerGroup, now_ms: int, silences: Silences) -> None:
        """Start the sessions of all members in the log with their remaining time. The members are unheard until they
        send something. Rebalance timeouts start again.
        """
        for member_id, subscription in group.subscriptions.items():
            timeout_ms = self._timeout_ms(group.group_id, subscription)
            session_ms = silences.session_ms(group.group_id, member_id, timeout_ms)
            deadlines = _Deadlines(now_ms + session_ms, is_unheard=True)
            self._groups.setdefault(group.group_id, {})[member_id] = deadlines
        self._expect_revocations(group, now_ms)

    def start(self, group: ConsumerGroup, now_ms: int) -> None:
        """Start the sessions of all members of a converted group."""
        for member_id, subscription in group.subscriptions.items():
            self.renew(group.group_id, member_id, subscription, now_ms)
        self._expect_revocations(group, now_ms)

    def renew(self, group_id: str, member_id: str, subscription: MemberSubscription, now_ms: int) -> None:
        """Renew a member's session."""
        session_ms = now_ms + self._timeout_ms(group_id, subscription)
        deadlines = self._groups.setdefault(group_id, {}).setdefault(member_id, _Deadlines(session_ms))
        deadlines.session_ms, deadlines.is_unheard = session_ms, False

    def follow(self, draft: GroupDraft, member_id: str, now_ms: int, *, owes_step: bool = False) -> int:
        """Update a member's deadlines after a step. Returns the earliest.

        owes_step: the member has to act within its rebalance timeout for a reason other than revoking partitions.
        """
        self.forget(draft.group_id, draft.subscriptions.dropped())
        subscription = draft.subscriptions.get(member_id)
        assert subscription is not None, "a member that takes a step is in the group"
        self.renew(draft.group_id, member_id, subscription, now_ms)
        before, after = draft.group.current(member_id), draft.current(member_id)
        if owes_step or after != before:
            self.step_done(draft.group_id, member_id)
        if owes_step or (after != before and after.state is MemberState.UNREVOKED):
            self.expect_step(draft.group_id, member_id, subscription, now_ms)
        return self._groups[draft.group_id][member_id].next_ms()

    def expect_step(self, group_id: str, member_id: str, subscription: MemberSubscription, now_ms: int) -> None:
        """Start a member's rebalance timeout unless it is running already."""
        deadlines = self._groups[group_id][member_id]
        if deadlines.step_ms is None:
            deadlines.step_ms = now_ms + max(subscription.rebalance_timeout_ms, 0)

    def step_done(self, group_id: str, member_id: str) -> None:
        """End a member's rebalance timeout."""
        self._groups[group_id][member_id].step_ms = None

    def forget(self, group_id: str, member_ids: Iterable[str]) -> None:
        """Delete all deadlines of members that have left."""
        members = self._groups.get(group_id, {})
        for member_id in member_ids:
            members.pop(member_id, None)
        if not members:
            self._groups.pop(group_id, None)

    def unheard(self, group_id: str) -> set[str]:
        """Return the members that sent nothing since the log was loaded."""
        return {member_id for member_id, deadlines in self._groups.get(group_id, {}).items() if deadlines.is_unheard}

    def next_deadline_ms(self, group_id: str) -> int | None:
        return min((deadlines.next_ms() for deadlines in self._groups.get(group_id, {}).values()), default=None)

    def due(self, group_id: str, now_ms: int) -> list[str]:
        """Return the members with a passed deadline, sorted by member id."""
        members = self._groups.get(group_id, {})
        return sorted(member_id for member_id, deadlines in members.items() if deadlines.next_ms() <= now_ms)

    def clock_set(self, by_ms: int) -> None:
        """Shift all deadlines by `by_ms`, because the wall clock was set."""
        for members in self._groups.values():
            for deadlines in members.values():
                deadlines.session_ms += by_ms
                if deadlines.step_ms is not None:
                    deadlines.step_ms += by_ms

    def _expect_revocations(self, group: ConsumerGroup, now_ms: int) -> None:
        for member_id, subscription in group.subscriptions.items():
            if group.current(member_id).state is MemberState.UNREVOKED:
                self.expect_step(group.group_id, member_id, subscription, now_ms)

    def _timeout_ms(self, group_id: str, subscription: MemberSubscription) -> int:
        if subscription.classic is not None:
            return subscription.classic.session_timeout_ms
        return self._settings.of(group_id).consumer_session_timeout_ms
