"""A group of the classic protocol: its members, and the rebalances that create its generations.

    state                 goes to               when
    EMPTY                 PREPARING_REBALANCE   a member joins
    PREPARING_REBALANCE   COMPLETING_REBALANCE  all members have rejoined, or the rebalance timeout has passed
    PREPARING_REBALANCE   EMPTY                 the last member has left
    COMPLETING_REBALANCE  STABLE                the leader sends the assignments
    COMPLETING_REBALANCE  PREPARING_REBALANCE   a member joins, changes, leaves, or does not request its assignment
    STABLE                PREPARING_REBALANCE   a member joins, changes or leaves

All of this is soft state. It survives the broker through the record that is written when a generation becomes STABLE or
EMPTY. A group that was converted from the consumer protocol is recorded at once, before the rebalance that gives it a
leader: a coordinator that loads members without a leader prepares that rebalance again. Callers pass in the time;
methods add their records and replies to a `Decision`. Source: KIP-62, KIP-345, KIP-394, KIP-814.
"""

from collections.abc import Container, Mapping
from dataclasses import dataclass, field
from enum import Enum

from conveyor.groups.classic.classic_member import MAX_GROUP_BYTES, Member, restored_member
from conveyor.groups.classic.embedded_protocol import decode_topics
from conveyor.groups.classic.roster import Roster
from conveyor.groups.group_commands import SyncGroup
from conveyor.groups.records.group_records import GroupKey, GroupValue, group_record
from conveyor.groups.replies import Joined, Synced
from conveyor.groups.silences import Silences
from conveyor.kernel.decision import Decision
from conveyor.kernel.errors import ErrorKind, RequestError
from conveyor.kernel.state_machine import LogRecord, Token


class GroupState(Enum):
    """The states in the module's docstring. The values are Kafka's names, which administrative requests show."""

    EMPTY = "Empty"
    PREPARING_REBALANCE = "PreparingRebalance"
    COMPLETING_REBALANCE = "CompletingRebalance"
    STABLE = "Stable"


_SHORTEST_WAIT_MS = 1000


@dataclass(slots=True, kw_only=True)
class InitialDelay:
    """The time that a group waits for more members after it was empty: `delay_ms` after each new member, but not beyond
    `latest_ms`.
    """

    delay_ms: int
    latest_ms: int
    has_new_members: bool = False


@dataclass(slots=True, kw_only=True)
class Rebalance:
    """A rebalance in progress. It ends once all members have requested their assignments.

    deadline_ms: when members that have not rejoined are removed, or, in the new generation, unsynced members.
    unsynced: members that know the new generation and have not requested their assignments.
    """

    deadline_ms: int
    initial_delay: InitialDelay | None = None
    unsynced: set[Member] = field(default_factory=set)

    def extend_initial_delay(self, now_ms: int) -> bool:
        """Return whether members that joined during the initial delay extend it, at most to the rebalance timeout."""
        delay = self.initial_delay
        if delay is None or not delay.has_new_members or now_ms >= delay.latest_ms:
            return False
        delay.has_new_members = False
        self.deadline_ms = min(now_ms + delay.delay_ms, delay.latest_ms)
        return True

    def clock_set(self, by_ms: int) -> None:
        """Shift all deadlines by `by_ms`, because the wall clock was set."""
        self.deadline_ms += by_ms
        if self.initial_delay is not None:
            self.initial_delay.latest_ms += by_ms


class ClassicGroup:
    """One group; see the module's docstring. rebalance: None unless one is in progress."""

    def __init__(self, group_id: str, generation_id: int = 0) -> None:
        self.group_id = group_id
        self.state = GroupState.EMPTY
        self.generation_id = generation_id
        self.protocol_type = ""
        self.protocol_name = ""
        self.leader = ""
        self.members = Roster(group_id)
        self.rebalance: Rebalance | None = None

    def subscribed_topics(self) -> Container[str] | None:
        """Return the topics to which a member subscribes; None if the subscriptions cannot be decoded."""
        return decode_topics(member.subscription(self.protocol_name) for member in self.members)

    def next_deadline_ms(self) -> int | None:
        """Return the earliest time at which `expire` may have something to do."""
        deadlines = self.members.deadlines_ms()
        if self.rebalance is not None:
            deadlines.append(self.rebalance.deadline_ms)
        return min(deadlines, default=None)

    def clock_set(self, by_ms: int) -> None:
        """Shift all deadlines by `by_ms`, because the wall clock was set."""
        self.members.clock_set(by_ms)
        if self.rebalance is not None:
            self.rebalance.clock_set(by_ms)

    def add(self, member: Member) -> None:
        """Add a member. The caller calls `membership_changed`."""
        self.members.add(member)
        if self.rebalance is not None and self.rebalance.initial_delay is not None:
            self.rebalance.initial_delay.has_new_members = True

    def remove(self, member: Member, decision: Decision) -> None:
        """Remove a member. The caller calls `membership_changed` after the last removal."""
        self.members.remove(member)
        error = RequestError(ErrorKind.UNKNOWN_MEMBER_ID, f"'{member.member_id}' was removed from the group")
        member.refuse(error, decision)

    def replace_static(self, old_id: str, member_id: str, decision: Decision) -> Member:
        """Give a returning static member a new member id. Pending requests under the old id get FENCED_INSTANCE_ID."""
        member = self.members.find(old_id, None)
        self.members.remove(member)
        error = RequestError(ErrorKind.FENCED_INSTANCE_ID, f"'{member.group_instance_id}' has joined again")
        member.refuse(error, decision)
        member.member_id = member_id
        self.members.add(member)
        if self.leader == old_id:
            self.leader = member_id
        return member

    def membership_changed(self, now_ms: int, decision: Decision, initial_delay_ms: int = 0) -> None:
        """Rebalance, because a member has joined, changed or left. initial_delay_ms: how long a group that was empty
        waits for more members.
        """
        if self.state is GroupState.PREPARING_REBALANCE:
            self._maybe_complete_join(now_ms, decision)
        elif self.state is not GroupState.EMPTY:
            self._prepare_rebalance(now_ms, decision)
        elif self.members:
            self._prepare_rebalance(now_ms, decision, initial_delay_ms)

    def joined(self, member: Member, *, skip_assignment: bool = False) -> Joined:
        """Return the JoinGroup reply for a member of the current generation."""
        is_leader = member.member_id == self.leader
        return Joined(
            generation_id=self.generation_id,
            protocol_type=self.protocol_type,
            protocol_name=self.protocol_name,
            leader=self.leader,
            member_id=member.member_id,
            members=tuple(other.joined(self.protocol_name) for other in self.members) if is_leader else (),
            skip_assignment=skip_assignment and is_leader,
        )

    def sync(self, member: Member, command: SyncGroup, token: Token, now_ms: int, decision: Decision) -> None:
        """Handle the SyncGroup of a member of the current generation. Raises RequestError."""
        if self.state is GroupState.PREPARING_REBALANCE:
            raise rejoin_error(self.group_id)
        is_assigning = self.state is GroupState.COMPLETING_REBALANCE and member.member_id == self.leader
        if is_assigning and not self.members.has_room(command.assignments):
            self._prepare_rebalance(now_ms, decision)
            raise RequestError(  # Kafka has the same error for a group whose record the log does not take.
                ErrorKind.UNKNOWN_SERVER_ERROR,
                f"the subscriptions and assignments of group '{self.group_id}' have more than {MAX_GROUP_BYTES} bytes",
            )
        self._note_sync(member)
        if self.state is GroupState.STABLE:
            member.touch(now_ms)
            return decision.reply(token, self._synced(member))
        if member.sync_token is not None:
            decision.reply(member.sync_token, rejoin_error(self.group_id))
        member.sync_token = token
        if is_assigning:
            self._assign(command.assignments, now_ms, decision)

    def record(self, now_ms: int) -> LogRecord:
        """Return the record of the group's persistent state."""
        value = GroupValue(
            protocol_type=self.protocol_type,
            generation_id=self.generation_id,
            protocol_name=self.protocol_name or None,
            leader=self.leader or None,
            state_timestamp_ms=now_ms,
            members=tuple(member.value(self.protocol_name) for member in self.members),
        )
        return group_record(GroupKey(group_id=self.group_id), value)

    def expire(self, now_ms: int, decision: Decision) -> None:
        """Remove members whose session has ended, and end a rebalance whose timeout has passed."""
        pending = self.members.pending
        for member_id in [member_id for member_id, deadline in pending.items() if deadline <= now_ms]:
            del pending[member_id]
        expired = [member for member in self.members if not member.waits and member.session_deadline_ms <= now_ms]
        for member in expired:
            self.remove(member, decision)
        if expired:
            self.membership_changed(now_ms, decision)
        rebalance = self.rebalance
        if rebalance is None:
            return
        is_due = rebalance.deadline_ms <= now_ms
        if self.state is GroupState.PREPARING_REBALANCE:
            if is_due and not rebalance.extend_initial_delay(now_ms):
                self._complete_join(now_ms, decision)
            else:
                self._maybe_complete_join(now_ms, decision)
        elif is_due:
            for member in [member for member in self.members if member in rebalance.unsynced]:
                self.remove(member, decision)
            self._prepare_rebalance(now_ms, decision)

    def _prepare_rebalance(self, now_ms: int, decision: Decision, initial_delay_ms: int = 0) -> None:
        """Make all members rejoin."""
        for member in self.members:
            if member.sync_token is not None:
                decision.reply(member.sync_token, rejoin_error(self.group_id))
                member.sync_token = None
                member.touch(now_ms)
        self.state = GroupState.PREPARING_REBALANCE
        timeout_ms = self.members.longest_rebalance_timeout_ms()
        if initial_delay_ms:
            latest_ms = now_ms + max(initial_delay_ms, timeout_ms)
            delay = InitialDelay(delay_ms=initial_delay_ms, latest_ms=latest_ms)
            self.rebalance = Rebalance(deadline_ms=now_ms + initial_delay_ms, initial_delay=delay)
        else:
            self.rebalance = Rebalance(deadline_ms=now_ms + timeout_ms)
            self._maybe_complete_join(now_ms, decision)

    def _maybe_complete_join(self, now_ms: int, decision: Decision) -> None:
        is_delayed = self.rebalance is not None and self.rebalance.initial_delay is not None
        if not is_delayed and self.members.have_rejoined():
            self._complete_join(now_ms, decision)

    def _complete_join(self, now_ms: int, decision: Decision) -> None:
        """Start a new generation with the members that have rejoined.

        A static member stays in the group until its session ends, even if it has not rejoined. If no member has
        rejoined, the rebalance continues.
        """
        for member in list(self.members):
            if member.join_token is None and member.group_instance_id is None:
                self.remove(member, decision)
        present = [member for member in self.members if member.join_token is not None]
        timeout_ms = self.members.longest_rebalance_timeout_ms()
        if self.members and not present:
            self.rebalance = Rebalance(deadline_ms=now_ms + max(timeout_ms, _SHORTEST_WAIT_MS))
            return
        self.generation_id += 1
        if not present:
            return self._become_empty(now_ms, decision)
        if self.leader not in {member.member_id for member in present}:
            self.leader = present[0].member_id
        self.protocol_name = self.members.vote()
        self.state = GroupState.COMPLETING_REBALANCE
        self.rebalance = Rebalance(deadline_ms=now_ms + timeout_ms, unsynced=set(present))
        for member in present:
            assert member.join_token is not None, "members that are present wait for the reply to their JoinGroup"
            decision.reply(member.join_token, self.joined(member))
            member.join_token = None
            member.touch(now_ms)

    def _become_empty(self, now_ms: int, decision: Decision) -> None:
        self.state = GroupState.EMPTY
        self.rebalance = None
        self.protocol_name = self.leader = ""
        decision.records.append(self.record(now_ms))

    def _assign(self, assignments: Mapping[str, bytes], now_ms: int, decision: Decision) -> None:
        """Store the leader's assignments and answer all pending SyncGroup requests."""
        self.state = GroupState.STABLE
        for member in self.members:
            member.assignment = assignments.get(member.member_id, b"")
        decision.records.append(self.record(now_ms))
        for member in self.members:
            if member.sync_token is not None:
                decision.reply(member.sync_token, self._synced(member))
                member.sync_token = None
                member.touch(now_ms)

    def _note_sync(self, member: Member) -> None:
        """End the rebalance once all members have requested their assignments."""
        if self.rebalance is not None:
            self.rebalance.unsynced.discard(member)
            if not self.rebalance.unsynced:
                self.rebalance = None

    def _synced(self, member: Member) -> Synced:
        return Synced(protocol_type=self.protocol_type, protocol_name=self.protocol_name, assignment=member.assignment)


def rejoin_error(group_id: str) -> RequestError:
    """Return the error that makes a member join again."""
    return RequestError(ErrorKind.REBALANCE_IN_PROGRESS, f"group '{group_id}' is rebalancing: join again")


def restored_group(group_id: str, value: GroupValue, now_ms: int, silences: Silences) -> ClassicGroup:
    """Rebuild a group from its last record. Its members keep the remainder of their sessions."""
    group = ClassicGroup(group_id, value.generation_id)
    group.protocol_type = value.protocol_type
    group.protocol_name = value.protocol_name or ""
    for member in value.members:
        session_ms = silences.session_ms(group_id, member.member_id, member.session_timeout_ms)
        group.members.add(restored_member(member, group.protocol_name, now_ms + session_ms))
    group.leader = value.leader or ""
    group.state = GroupState.STABLE if group.members else GroupState.EMPTY
    if group.members and not group.leader:
        group.membership_changed(now_ms, Decision())  # No member has a pending request, so nobody gets a reply.
    return group
