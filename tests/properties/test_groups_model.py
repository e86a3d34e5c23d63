"""A group under random members, time and crashes: what the coordinator answers is consistent with a small model.

`PROPERTY_EXAMPLES` sets how many histories are tried.
"""

import os
from dataclasses import dataclass

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from conveyor.groups.group_commands import LeaveGroup, LeavingMember
from conveyor.groups.records.group_records import GroupKey, decode_group, decode_key
from conveyor.groups.replies import Alive, Committed, Joined, JoinRefused, Left, Synced
from conveyor.kernel.errors import ErrorKind
from conveyor.kernel.state_machine import Token
from tests.unit.groups.coordinator import GROUP, REBALANCE_MS, SESSION_MS, Coordinator, kind_of

EXAMPLES = int(os.environ.get("PROPERTY_EXAMPLES", "600"))
NO_GENERATION = -1
SESSIONS_MS = [SESSION_MS, 3 * REBALANCE_MS]
LOST_MEMBERSHIP = {ErrorKind.UNKNOWN_MEMBER_ID, ErrorKind.FENCED_INSTANCE_ID}
EXPECTED = LOST_MEMBERSHIP | {
    ErrorKind.REBALANCE_IN_PROGRESS,
    ErrorKind.GROUP_ID_NOT_FOUND,
    ErrorKind.ILLEGAL_GENERATION,
    ErrorKind.MEMBER_ID_REQUIRED,
}


@dataclass(slots=True)
class Client:
    """A consumer as it sees itself; `parked`: the request that it waits for, and since when."""

    instance_id: str | None
    session_timeout_ms: int
    wishes: int = 0
    member_id: str = ""
    last_id: str = ""
    generation_id: int = NO_GENERATION
    leads: bool = False
    parked: Token | None = None
    parked_since_ms: int = 0

    def refused(self, kind: ErrorKind) -> None:
        assert kind in EXPECTED, kind
        if kind is not ErrorKind.REBALANCE_IN_PROGRESS:
            self.generation_id, self.leads = NO_GENERATION, False
        if kind in LOST_MEMBERSHIP:
            self.member_id = ""


class GroupModel(RuleBasedStateMachine):
    """The model: who leads each generation, what its leader assigned, and the offsets that were committed."""

    clients: list[Client]

    def __init__(self) -> None:
        super().__init__()
        self.coordinator = Coordinator()
        self.clients = []
        self.newest_generation = 0
        self.leaders: dict[int, str] = {}
        self.rosters: dict[int, set[str]] = {}
        self.assigned: dict[int, dict[str, bytes]] = {}
        self.names: dict[str, str] = {}
        self.offset: int | None = None

    @initialize(kinds=st.lists(st.tuples(st.booleans(), st.sampled_from(SESSIONS_MS)), min_size=1, max_size=5))
    def start(self, kinds: list[tuple[bool, int]]) -> None:
        for number, (is_static, session_timeout_ms) in enumerate(kinds):
            self.clients.append(Client(f"instance-{number}" if is_static else None, session_timeout_ms))

    @rule(number=st.integers(0, 4), wishes=st.integers(0, 3), knows_kip_394=st.booleans())
    def join(self, number: int, wishes: int, knows_kip_394: bool) -> None:
        """Wishes are mostly the same, so that some joins change nothing."""
        client = self.pick(number)
        client.wishes = wishes // 3
        self.start_join(client, knows_kip_394)

    @rule(number=st.integers(0, 4))
    def sync(self, number: int) -> None:
        client = self.pick(number)
        if client.parked is None and client.generation_id != NO_GENERATION:
            self.start_sync(client)

    @rule()
    def everybody_joins_and_syncs(self) -> None:
        for client in self.clients * 2:
            if client.parked is None:
                self.start_join(client, True)
        for client in sorted(self.clients, key=lambda each: each.leads):
            if client.parked is None and client.generation_id != NO_GENERATION:
                self.start_sync(client)

    @rule(number=st.integers(0, 4), age=st.integers(0, 1))
    def heartbeat(self, number: int, age: int) -> None:
        client = self.pick(number)
        generation_id = client.generation_id - age
        reply = self.coordinator.heartbeat(client.member_id, generation_id, group_instance_id=client.instance_id)
        if reply == Alive():
            assert generation_id == self.newest_generation, "two generations are live"
        elif not age:
            client.refused(kind_of(reply))

    @rule(number=st.integers(0, 4), by_instance=st.booleans())
    def leave(self, number: int, by_instance: bool) -> None:
        client = self.pick(number)
        member_id = "" if by_instance and client.instance_id else client.member_id
        leaving = LeavingMember(member_id=member_id, group_instance_id=client.instance_id)
        left = self.coordinator.ask(LeaveGroup(group_id=GROUP, members=(leaving,)))
        assert isinstance(left, Left)
        if left.errors[0] is None:
            client.refused(ErrorKind.UNKNOWN_MEMBER_ID)

    @rule(milliseconds=st.sampled_from([1, SESSION_MS // 3, SESSION_MS - 1, SESSION_MS, REBALANCE_MS]))
    def time_passes(self, milliseconds: int) -> None:
        self.coordinator.advance(milliseconds)

    @rule(number=st.integers(0, 4), age=st.integers(0, 2), offset=st.integers(0, 1000))
    def commit(self, number: int, age: int, offset: int) -> None:
        client = self.pick(number)
        generation_id = max(client.generation_id - age, 0)
        reply = self.coordinator.commit(offset, client.member_id, generation_id, group_instance_id=client.instance_id)
        if isinstance(reply, Committed):
            assert generation_id == self.newest_generation, "a stale commit was taken"
            self.offset = offset
        else:
            assert kind_of(reply) in EXPECTED

    @rule(offset=st.integers(0, 1000))
    def commit_without_a_group(self, offset: int) -> None:
        reply = self.coordinator.commit(offset)
        if isinstance(reply, Committed):
            assert not self.coordinator.waiting, "a group with members took a commit from outside"
            self.offset = offset
        else:
            assert kind_of(reply) is ErrorKind.UNKNOWN_MEMBER_ID

    @rule(number=st.integers(0, 4))
    def client_restarts(self, number: int) -> None:
        client = self.pick(number)
        client.parked = None
        client.refused(ErrorKind.UNKNOWN_MEMBER_ID)

    @rule()
    def coordinator_crashes(self) -> None:
        """What was not assigned yet is lost with it, and its generation will be there again."""
        self.coordinator.crash()
        self.newest_generation = self.durable_generation()
        for known in (self.leaders, self.rosters):
            for generation_id in [each for each in known if each > self.newest_generation]:
                del known[generation_id]
        for client in self.clients:
            client.parked = None

    @invariant()
    def committed_offset_is_the_last_one_taken(self) -> None:
        assert [each.offset for each in self.coordinator.committed()] == ([] if self.offset is None else [self.offset])

    @invariant()
    def nobody_waits_for_longer_than_the_rebalance_timeout(self) -> None:
        self.collect()
        for client in self.clients:
            assert client.parked is None or self.coordinator.now_ms < client.parked_since_ms + REBALANCE_MS

    def pick(self, number: int) -> Client:
        self.collect()
        return self.clients[number % len(self.clients)]

    def start_join(self, client: Client, knows_kip_394: bool) -> None:
        token = self.coordinator.start_join(
            client.member_id,
            group_instance_id=client.instance_id,
            protocols=(("range", b"topics %d" % client.wishes),),
            requires_known_id=knows_kip_394,
            session_timeout_ms=client.session_timeout_ms,
        )
        self.park(client, token)

    def start_sync(self, client: Client) -> None:
        generation_id = client.generation_id
        roster = self.rosters.get(generation_id, set()) if client.leads else set()
        assignments = {each: f"{generation_id} {each}".encode() for each in roster}
        token = self.coordinator.start_sync(
            client.member_id, generation_id, group_instance_id=client.instance_id, assignments=assignments
        )
        if client.leads and isinstance(self.coordinator.replies.get(token), Synced):
            by_name = {self.name(each): assignment for each, assignment in assignments.items()}
            self.assigned.setdefault(generation_id, by_name)
        self.park(client, token)

    def park(self, client: Client, token: Token) -> None:
        client.parked, client.parked_since_ms = token, self.coordinator.now_ms
        self.collect()

    def collect(self) -> None:
        """Hand out what has been answered by now."""
        for client in self.clients:
            if client.parked in self.coordinator.replies:
                reply = self.coordinator.replies[client.parked]
                client.parked = None
                self.answered(client, reply)
        for generation_id, leader in self.leaders.items():
            assert self.name(leader) in {self.name(each) for each in self.rosters.get(generation_id, {leader})}

    def answered(self, client: Client, reply: object) -> None:
        if isinstance(reply, Joined):
            self.joined(client, reply)
        elif isinstance(reply, Synced):
            assert reply.assignment == self.assigned[client.generation_id].get(self.name(client.member_id), b"")
        else:
            client.refused(kind_of(reply))
            if isinstance(reply, JoinRefused) and reply.error.kind is ErrorKind.MEMBER_ID_REQUIRED:
                client.member_id = reply.member_id

    def joined(self, client: Client, reply: Joined) -> None:
        if client.instance_id is not None and client.last_id not in ("", reply.member_id):
            self.names[reply.member_id] = self.name(client.last_id)
        client.member_id = client.last_id = reply.member_id
        client.generation_id = reply.generation_id
        client.leads = reply.leader == reply.member_id
        assert reply.generation_id >= self.newest_generation, "a generation came back"
        self.newest_generation = reply.generation_id
        leader = self.leaders.setdefault(reply.generation_id, reply.leader)
        assert self.name(leader) == self.name(reply.leader), "a generation has two leaders"
        assert bool(reply.members) == client.leads, "only the leader is told who the members are"
        if client.leads:
            roster = {each.member_id for each in reply.members}
            assert len(roster) == len(reply.members)
            assert client.member_id in roster
            self.rosters[reply.generation_id] = roster

    def name(self, member_id: str) -> str:
        """The first id of a static member that has had several."""
        return self.names.get(member_id, member_id)

    def durable_generation(self) -> int:
        written = [
            decode_group(record.value)
            for record in self.coordinator.log
            if record.value is not None and isinstance(decode_key(record.key or b""), GroupKey)
        ]
        return written[-1].generation_id if written else 0


def test_group_behaves_as_its_model() -> None:
    limits = settings(max_examples=EXAMPLES, stateful_step_count=50, deadline=None)
    run_state_machine_as_test(GroupModel, settings=limits)
