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

from collections import Counter
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum

from conveyor.groups.classic.classic_member import MAX_GROUP_BYTES, Member, joined_bytes, restored_member
from conveyor.groups.classic.embedded_protocol import PROTOCOL_TYPE, decode_topics
from conveyor.groups.group_commands import JoinGroup
from conveyor.groups.records.group_records import GroupKey, GroupValue, group_record
from conveyor.groups.replies import Joined, Synced
from conveyor.groups.silences import Silences
from conveyor.groups.static_members import StaticMembers
from conveyor.kernel.decision import Decision
from conveyor.kernel.errors import ErrorKind, RequestError
from conveyor.kernel.state_machine import LogRecord


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


class ClassicGroup:
    """One group; see the module's docstring."""

    def __init__(self, group_id: str, generation_id: int = 0) -> None:
        self.group_id = group_id
        self.state = GroupState.EMPTY
        self.generation_id = generation_id
        self.protocol_type = ""
        self.protocol_name = ""
        self.leader = ""
        self.members: dict[str, Member] = {}
        self.static_members = StaticMembers()
        self.pending_members: dict[str, int] = {}
        self.rebalance_deadline_ms: int | None = None
        self.initial_delay: InitialDelay | None = None

    @property
    def uses_embedded_protocol(self) -> bool:
        """Whether the members use Kafka's consumer embedded protocol: then the broker can read their subscriptions."""
        return self.protocol_type == PROTOCOL_TYPE

    def subscribed_topics(self) -> Container[str] | None:
        """Return the topics to which a member subscribes; None if the subscriptions cannot be decoded."""
        return decode_topics(member.subscription(self.protocol_name) for member in self.members.values())

    def next_deadline_ms(self) -> int | None:
        """Return the earliest time at which `expire` may have something to do."""
        deadlines = [member.session_deadline_ms for member in self.members.values() if not member.waits]
        deadlines += self.pending_members.values()
        if self.rebalance_deadline_ms is not None:
            deadlines.append(self.rebalance_deadline_ms)
        return min(deadlines, default=None)

    def heard(self) -> set[str]:
        """Return the members that sent a request since the log was loaded."""
        return {member.member_id for member in self.members.values() if not member.is_unheard}

    def clock_set(self, by_ms: int) -> None:
        """Shift all deadlines by `by_ms`, because the wall clock was set."""
        for member in self.members.values():
            member.session_deadline_ms += by_ms
        for member_id in self.pending_members:
            self.pending_members[member_id] += by_ms
        if self.rebalance_deadline_ms is not None:
            self.rebalance_deadline_ms += by_ms
        if self.initial_delay is not None:
            self.initial_delay.latest_ms += by_ms

    def check_protocols(self, protocol_type: str, protocols: tuple[tuple[str, bytes], ...], besides: str) -> None:
        """Check that a member shares a protocol with all others. Raises RequestError (INCONSISTENT_GROUP_PROTOCOL)."""
        if not self.members:
            return
        others = [member for member in self.members.values() if member.member_id != besides]
        shared = _shared({name for name, _ in protocols}, others)
        if protocol_type != self.protocol_type or not shared:
            raise RequestError(
                ErrorKind.INCONSISTENT_GROUP_PROTOCOL,
                f"group '{self.group_id}' uses the protocol type '{self.protocol_type}'; its members share none of the"
                f" protocols {[name for name, _ in protocols]}",
            )

    def check_bytes(self, command: JoinGroup) -> None:
        """Check that the group does not become too large. Raises RequestError (GROUP_MAX_SIZE_REACHED)."""
        besides = command.member_id or self.static_members.holder(command.group_instance_id)
        size = joined_bytes(command.client_id, command.group_instance_id, command.protocols)
        for member in self.members.values():
            size += len(member.assignment) + (0 if member.member_id == besides else member.joined_bytes)
        check_group_bytes(self.group_id, size)

    def has_room(self, assignments: Mapping[str, bytes]) -> bool:
        """Return whether the group is small enough with these assignments."""
        sizes = (member.joined_bytes + len(assignments.get(member.member_id, b"")) for member in self.members.values())
        return sum(sizes) <= MAX_GROUP_BYTES

    def add(self, member: Member) -> None:
        self.members[member.member_id] = member
        if self.initial_delay is not None:
            self.initial_delay.has_new_members = True
        self.pending_members.pop(member.member_id, None)
        self.static_members.add(member.group_instance_id, member.member_id)

    def replace_static(self, old_id: str, member_id: str, decision: Decision) -> Member:
        """Give a returning static member a new member id. Pending requests under the old id get FENCED_INSTANCE_ID."""
        member = self.members.pop(old_id)
        fenced = RequestError(ErrorKind.FENCED_INSTANCE_ID, f"'{member.group_instance_id}' has joined again")
        for token in (member.join_token, member.sync_token):
            if token is not None:
                decision.reply(token, fenced)
        member.join_token = member.sync_token = None
        member.member_id = member_id
        self.members[member_id] = member
        self.static_members.add(member.group_instance_id, member_id)
        if self.leader == old_id:
            self.leader = member_id
        return member

    def remove(self, member: Member, now_ms: int, decision: Decision) -> None:
        """Remove a member and start a rebalance of the others."""
        self.forget(member, decision)
        self.members_left(now_ms, decision)

    def members_left(self, now_ms: int, decision: Decision) -> None:
        """Rebalance the remaining members after a removal."""
        if self.state in (GroupState.STABLE, GroupState.COMPLETING_REBALANCE):
            self.prepare_rebalance(now_ms, decision)
        elif self.state is GroupState.PREPARING_REBALANCE:
            self.maybe_complete_join(now_ms, decision)

    def prepare_rebalance(self, now_ms: int, decision: Decision, delay_ms: int | None = None) -> None:
        """Make all members rejoin. `delay_ms`: how long a group that was empty waits for more members."""
        rejoin = RequestError(ErrorKind.REBALANCE_IN_PROGRESS, f"group '{self.group_id}' is rebalancing: join again")
        for member in self.members.values():
            member.owes_sync = False
            if member.sync_token is not None:
                decision.reply(member.sync_token, rejoin)
                member.sync_token = None
                member.touch(now_ms)
        self.state = GroupState.PREPARING_REBALANCE
        if delay_ms:
            self.rebalance_deadline_ms = now_ms + delay_ms
            latest_ms = max(self.rebalance_deadline_ms, now_ms + self._longest_rebalance_timeout_ms())
            self.initial_delay = InitialDelay(delay_ms=delay_ms, latest_ms=latest_ms)
            return
        self.rebalance_deadline_ms = now_ms + self._longest_rebalance_timeout_ms()
        self.maybe_complete_join(now_ms, decision)

    def maybe_complete_join(self, now_ms: int, decision: Decision) -> None:
        if self.initial_delay is not None or self.pending_members:
            return
        if all(member.join_token is not None for member in self.members.values()):
            self.complete_join(now_ms, decision)

    def complete_join(self, now_ms: int, decision: Decision) -> None:
        """Start a new generation with the members that have rejoined.

        A static member stays in the group until its session ends, even if it has not rejoined. If no member has
        rejoined, the rebalance continues.
        """
        for member in list(self.members.values()):
            if member.join_token is None and member.group_instance_id is None:
                self.forget(member, decision)
        self.initial_delay = None
        if self.members and not any(member.join_token is not None for member in self.members.values()):
            self.rebalance_deadline_ms = now_ms + max(self._longest_rebalance_timeout_ms(), _SHORTEST_WAIT_MS)
            return
        self.rebalance_deadline_ms = None
        self.generation_id += 1
        if not self.members:
            return self._become_empty(now_ms, decision)
        self._elect_leader()
        self.protocol_name = self.vote()
        self.state = GroupState.COMPLETING_REBALANCE
        self.rebalance_deadline_ms = now_ms + self._longest_rebalance_timeout_ms()
        for member in self.members.values():
            if member.join_token is not None:
                decision.reply(member.join_token, self.joined(member))
                member.join_token = None
                member.owes_sync = True
                member.touch(now_ms)

    def ask_all_to_rejoin(self, decision: Decision) -> None:
        """Answer all pending requests with REBALANCE_IN_PROGRESS."""
        rejoin = RequestError(ErrorKind.REBALANCE_IN_PROGRESS, f"group '{self.group_id}' is rebalancing: join again")
        for member in self.members.values():
            for token in (member.join_token, member.sync_token):
                if token is not None:
                    decision.reply(token, rejoin)
            member.join_token = member.sync_token = None

    def joined(self, member: Member, *, skip_assignment: bool = False) -> Joined:
        """Return the JoinGroup reply for a member of the current generation."""
        is_leader = member.member_id == self.leader
        all_members = tuple(member.joined(self.protocol_name) for member in self.members.values()) if is_leader else ()
        return Joined(
            generation_id=self.generation_id,
            protocol_type=self.protocol_type,
            protocol_name=self.protocol_name,
            leader=self.leader,
            member_id=member.member_id,
            members=all_members,
            skip_assignment=skip_assignment and is_leader,
        )

    def assign(self, assignments: Mapping[str, bytes], now_ms: int, decision: Decision) -> None:
        """Store the leader's assignments and answer all pending SyncGroup requests."""
        self.state = GroupState.STABLE
        for member in self.members.values():
            member.assignment = assignments.get(member.member_id, b"")
        decision.records.append(self.record(now_ms))
        for member in self.members.values():
            if member.sync_token is not None:
                decision.reply(member.sync_token, self.synced(member))
                member.sync_token = None
                member.touch(now_ms)

    def synced_by(self, member: Member) -> None:
        """Note a member's SyncGroup. Once all members have sent one, the generation has no rebalance deadline."""
        member.owes_sync = False
        if not any(member.owes_sync for member in self.members.values()):
            self.rebalance_deadline_ms = None

    def synced(self, member: Member) -> Synced:
        return Synced(protocol_type=self.protocol_type, protocol_name=self.protocol_name, assignment=member.assignment)

    def record(self, now_ms: int) -> LogRecord:
        """Return the record of the group's persistent state."""
        members = tuple(member.value(self.protocol_name, member.assignment) for member in self.members.values())
        value = GroupValue(
            protocol_type=self.protocol_type,
            generation_id=self.generation_id,
            protocol_name=self.protocol_name or None,
            leader=self.leader or None,
            state_timestamp_ms=now_ms,
            members=members,
        )
        return group_record(GroupKey(group_id=self.group_id), value)

    def expire(self, now_ms: int, decision: Decision) -> None:
        """Remove members whose session has ended, and end a rebalance whose timeout has passed."""
        for member_id in [member_id for member_id, deadline in self.pending_members.items() if deadline <= now_ms]:
            del self.pending_members[member_id]
        for member in list(self.members.values()):
            if not member.waits and member.session_deadline_ms <= now_ms and member.member_id in self.members:
                self.remove(member, now_ms, decision)
        is_due = self.rebalance_deadline_ms is not None and self.rebalance_deadline_ms <= now_ms
        if self.state is GroupState.PREPARING_REBALANCE:
            if is_due and not self._extend_initial_delay(now_ms):
                self.complete_join(now_ms, decision)
            else:
                self.maybe_complete_join(now_ms, decision)
        elif is_due:
            self._remove_unsynced_members(now_ms, decision)

    def _extend_initial_delay(self, now_ms: int) -> bool:
        """Return whether members that joined during the initial delay extend it, at most to the rebalance timeout."""
        delay = self.initial_delay
        if delay is None or not delay.has_new_members or now_ms >= delay.latest_ms:
            return False
        delay.has_new_members = False
        self.rebalance_deadline_ms = min(now_ms + delay.delay_ms, delay.latest_ms)
        return True

    def _remove_unsynced_members(self, now_ms: int, decision: Decision) -> None:
        self.rebalance_deadline_ms = None
        for member in [member for member in self.members.values() if member.owes_sync]:
            self.forget(member, decision)
        self.prepare_rebalance(now_ms, decision)

    def forget(self, member: Member, decision: Decision) -> None:
        """Remove a member without a rebalance. The caller calls `members_left` after the last removal."""
        self.members.pop(member.member_id, None)
        self.static_members.remove(member.group_instance_id, member.member_id)
        removed = RequestError(ErrorKind.UNKNOWN_MEMBER_ID, f"'{member.member_id}' was removed from the group")
        for token in (member.join_token, member.sync_token):
            if token is not None:
                decision.reply(token, removed)
        member.join_token = member.sync_token = None

    def _become_empty(self, now_ms: int, decision: Decision) -> None:
        self.state = GroupState.EMPTY
        self.protocol_name = self.leader = ""
        decision.records.append(self.record(now_ms))

    def _elect_leader(self) -> None:
        """Choose a member that has rejoined, unless the leader of the last generation has."""
        leader = self.members.get(self.leader)
        if leader is None or leader.join_token is None:
            present = (member.member_id for member in self.members.values() if member.join_token is not None)
            self.leader = next(present, self.leader)

    def _longest_rebalance_timeout_ms(self) -> int:
        return max((member.rebalance_timeout_ms for member in self.members.values()), default=0)

    def vote(self) -> str:
        """Return the protocol, supported by all members, that most members prefer."""
        members = list(self.members.values())
        shared = _shared(members[0].protocol_names, members[1:])
        votes = Counter(next(name for name, _ in member.protocols if name in shared) for member in members)
        return votes.most_common(1)[0][0]


def _shared(names: set[str], members: Iterable[Member]) -> set[str]:
    """Return the protocols among these that all members support."""
    for member in members:
        if not names:
            break
        names &= member.protocol_names
    return names


def check_group_bytes(group_id: str, size: int) -> None:
    """Raise RequestError (GROUP_MAX_SIZE_REACHED) if a group would be too large."""
    if size > MAX_GROUP_BYTES:
        raise RequestError(
            ErrorKind.GROUP_MAX_SIZE_REACHED,
            f"the members of group '{group_id}' would have {size} bytes in all: at most {MAX_GROUP_BYTES}",
        )


def restored_group(group_id: str, value: GroupValue, now_ms: int, silences: Silences) -> ClassicGroup:
    """Rebuild a group from its last record. Its members keep the remainder of their sessions."""
    group = ClassicGroup(group_id, value.generation_id)
    group.protocol_type = value.protocol_type
    group.protocol_name = value.protocol_name or ""
    for member in value.members:
        session_ms = silences.session_ms(group_id, member.member_id, member.session_timeout_ms)
        group.add(restored_member(member, group.protocol_name, now_ms + session_ms))
    group.leader = value.leader or ""
    group.state = GroupState.STABLE if group.members else GroupState.EMPTY
    if group.members and not group.leader:
        group.prepare_rebalance(now_ms, Decision())  # No member has a pending request, so nobody gets a reply.
    return group
