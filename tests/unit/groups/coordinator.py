"""A group coordinator without a broker: a GroupMachine, run as the runner runs it, on a list as its log."""

from collections import deque
from typing import Any

from conveyor.groups.group_commands import (
    CommitOffsets,
    FetchOffsets,
    GroupCommand,
    Heartbeat,
    JoinGroup,
    LeaveGroup,
    LeavingMember,
    ListGroups,
    OffsetToCommit,
    SyncGroup,
)
from conveyor.groups.group_machine import GroupMachine
from conveyor.groups.replies import (
    CommittedOffset,
    FetchedOffsets,
    Joined,
    JoinRefused,
    ListedGroup,
    ListedGroups,
    Synced,
)
from conveyor.kernel.errors import ErrorKind, RequestError
from conveyor.kernel.ids import ProducerIdentity
from conveyor.kernel.state_machine import LogRecord, Outcome, Token
from conveyor.settings.tree import GroupsSettings

GROUP = "readers"
SESSION_MS = 10_000
REBALANCE_MS = 60_000
RANGE = (("range", b"topics"),)


class Coordinator:
    """Stores replies by token, and checks that no caller gets two."""

    def __init__(self, **settings: Any) -> None:
        self.settings = GroupsSettings(**settings)
        self.now_ms = 1_700_000_000_000
        self.log: list[LogRecord] = []
        self.markers: list[tuple[int, ProducerIdentity, bool]] = []
        """The ends of transactions: the number of records before each marker, the producer, and whether it commits."""
        self.waiting: set[Token] = set()
        self.replies: dict[Token, object] = {}
        self._next_token = 0
        self._next_member = 0
        self.machine = self._loaded_machine()

    def submit(self, command: GroupCommand[object]) -> Token:
        """Submit a command. The reply may come later."""
        self._next_token += 1
        token = Token(self._next_token)
        self.waiting.add(token)
        self._carry_out(self.machine.handle(command, token, self.now_ms))
        return token

    def ask(self, command: GroupCommand[object]) -> Any:
        """Submit a command that must be answered at once. Returns the reply."""
        return self.reply(self.submit(command))

    def reply(self, token: Token) -> Any:
        assert token in self.replies, "no reply was sent"
        return self.replies[token]

    def is_parked(self, token: Token) -> bool:
        return token in self.waiting

    def advance(self, milliseconds: int) -> None:
        """Advance the time, and stop at each deadline."""
        end = self.now_ms + milliseconds
        while (deadline := self.machine.next_deadline_ms()) is not None and deadline <= end:
            self.now_ms = max(self.now_ms, deadline)
            self._carry_out(self.machine.expire(self.now_ms))
        self.now_ms = end

    def set_clock(self, by_ms: int) -> None:
        """Set the wall clock, forward or back."""
        self.now_ms += by_ms
        self.machine.clock_set(by_ms)

    def crash(self) -> None:
        """Discard everything but the log. Waiting callers get no reply."""
        self.waiting.clear()
        self.machine = self._loaded_machine()

    def start_join(self, member_id: str = "", **fields: Any) -> Token:
        self._next_member += 1
        values: dict[str, Any] = {
            "group_id": GROUP,
            "member_id": member_id,
            "new_member_id": f"member-{self._next_member}",
            "client_id": "client",
            "client_host": "/127.0.0.1",
            "session_timeout_ms": SESSION_MS,
            "rebalance_timeout_ms": REBALANCE_MS,
            "protocol_type": "consumer",
            "protocols": RANGE,
        }
        return self.submit(JoinGroup(**values | fields))

    def join(self, member_id: str = "", **fields: Any) -> Joined:
        """Join a group without other members that must rejoin."""
        joined = self.reply(self.start_join(member_id, **fields))
        assert isinstance(joined, Joined), joined
        return joined

    def start_sync(self, member_id: str, generation_id: int, **fields: Any) -> Token:
        values = {"group_id": GROUP, "assignments": {}}
        return self.submit(SyncGroup(member_id=member_id, generation_id=generation_id, **values | fields))

    def heartbeat(self, member_id: str, generation_id: int, **fields: Any) -> Any:
        values = {"group_id": GROUP} | fields
        return self.ask(Heartbeat(member_id=member_id, generation_id=generation_id, **values))

    def leave(self, *member_ids: str, group_id: str = GROUP) -> Any:
        members = tuple(LeavingMember(member_id=member_id) for member_id in member_ids)
        return self.ask(LeaveGroup(group_id=group_id, members=members))

    def commit(self, offset: int, member_id: str = "", generation_id: int = -1, **fields: Any) -> Any:
        """Commit an offset of partition 0 of `topic`."""
        place = OffsetToCommit(topic="topic", partition=0, offset=offset, leader_epoch=3, metadata="note")
        values = {"group_id": GROUP, "offsets": (place,)} | fields
        return self.ask(CommitOffsets(member_id=member_id, generation_id=generation_id, **values))

    def listed(self, **filters: frozenset[str]) -> tuple[ListedGroup, ...]:
        """Return the groups that match, in the order of their names."""
        group_ids = tuple(sorted(self.machine.group_ids()))
        listed = self.ask(ListGroups(group_ids=group_ids, **filters))
        assert isinstance(listed, ListedGroups)
        return listed.groups

    def end_transaction(self, producer: ProducerIdentity, *, commit: bool) -> None:
        self.markers.append((len(self.log), producer, commit))
        self.machine.resolve(producer, commit, self.now_ms)

    def committed(self, group_id: str = GROUP) -> tuple[CommittedOffset, ...]:
        fetched = self.ask(FetchOffsets(group_id=group_id, partitions=None))
        assert isinstance(fetched, FetchedOffsets)
        return fetched.offsets

    def stable_group(self, size: int, **fields: Any) -> tuple[list[str], int]:
        """Create a stable group. Returns its members, the leader first, and its generation. Each member's assignment is
        its name.
        """
        joined = self.join(**fields)
        others = [self.start_join(**fields) for _ in range(size - 1)]
        if others:
            joined = self.join(joined.member_id, **fields)
        members = [joined.member_id] + [self.reply(token).member_id for token in others]
        self.assign(members[0], joined.generation_id, *members)
        return members, joined.generation_id

    def assign(self, leader: str, generation_id: int, *members: str) -> None:
        """Sync all members, the leader last."""
        others = [self.start_sync(member_id, generation_id) for member_id in members if member_id != leader]
        assignments = {member_id: member_id.encode() for member_id in members}
        synced = self.reply(self.start_sync(leader, generation_id, assignments=assignments))
        assert isinstance(synced, Synced), synced
        assert all(isinstance(self.reply(token), Synced) for token in others)

    def _carry_out(self, outcome: Outcome) -> None:
        for record in outcome.records:
            self.log.append(LogRecord(record.key, record.value, self.now_ms, outcome.producer))
            self.machine.apply(self.log[-1])
        for reply in outcome.replies:
            assert reply.token not in self.replies, "a caller was answered twice"
            self.replies[reply.token] = reply.value
            self.waiting.discard(reply.token)

    def _loaded_machine(self) -> GroupMachine:
        machine = GroupMachine(self.settings)
        markers = deque(self.markers)
        for number, record in enumerate((*self.log, None)):
            while markers and markers[0][0] == number:
                machine.resolve(*markers.popleft()[1:], self.now_ms)
            if record is not None:
                machine.apply(record)
        machine.loaded(self.now_ms)
        return machine


def kind_of(reply: object) -> ErrorKind:
    """Return the kind of a refusal."""
    error = reply.error if isinstance(reply, JoinRefused) else reply
    assert isinstance(error, RequestError), f"not a refusal: {error}"
    return error.kind
