"""A member of a classic group: soft state, created by a JoinGroup or from the group's last record."""

from dataclasses import dataclass, field

from conveyor.groups.group_commands import JoinGroup
from conveyor.groups.records.group_records import MemberValue
from conveyor.groups.replies import JoinedMember
from conveyor.kernel.decision import Decision
from conveyor.kernel.errors import RequestError
from conveyor.kernel.state_machine import Token

Protocols = tuple[tuple[str, bytes], ...]
"""See `JoinGroup`."""

MAX_GROUP_BYTES = 8 << 20
"""The most bytes of all members of a group: their names, protocols and assignments, of which one record is made. Kafka
takes a record of 1 MiB by default.
"""


@dataclass(slots=True, eq=False)
class Member:
    """One member of a classic group.

    join_token, sync_token: the pending JoinGroup or SyncGroup request, if any.
    is_unheard: the member comes from the log and has sent nothing since the log was loaded.
    joined_bytes: the size of what the member has joined with.
    """

    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocols: Protocols
    session_deadline_ms: int
    assignment: bytes = b""
    join_token: Token | None = None
    sync_token: Token | None = None
    is_unheard: bool = False
    joined_bytes: int = field(init=False)

    def __post_init__(self) -> None:
        self.joined_bytes = joined_bytes(self.client_id, self.group_instance_id, self.protocols)

    @property
    def waits(self) -> bool:
        """True if a request of the member is pending. Its session does not expire meanwhile."""
        return self.join_token is not None or self.sync_token is not None

    def touch(self, now_ms: int) -> None:
        """Renew the member's session."""
        self.is_unheard = False
        self.session_deadline_ms = now_ms + self.session_timeout_ms

    def refuse(self, error: RequestError, decision: Decision) -> None:
        """Reply to the member's pending requests with an error."""
        for token in (self.join_token, self.sync_token):
            if token is not None:
                decision.reply(token, error)
        self.join_token = self.sync_token = None

    def update(self, command: JoinGroup) -> None:
        """Store the fields of a rejoining member's request."""
        self.protocols = command.protocols
        self.session_timeout_ms = command.session_timeout_ms
        self.rebalance_timeout_ms = command.rebalance_timeout_ms
        self.client_id, self.client_host = command.client_id, command.client_host
        self.joined_bytes = joined_bytes(command.client_id, self.group_instance_id, command.protocols)

    @property
    def protocol_names(self) -> set[str]:
        return {name for name, _ in self.protocols}

    def subscription(self, protocol_name: str) -> bytes:
        return next((metadata for name, metadata in self.protocols if name == protocol_name), b"")

    def joined(self, protocol_name: str) -> JoinedMember:
        return JoinedMember(
            member_id=self.member_id,
            group_instance_id=self.group_instance_id,
            metadata=self.subscription(protocol_name),
        )

    def value(self, protocol_name: str) -> MemberValue:
        """Return the member's persistent state."""
        return MemberValue(
            member_id=self.member_id,
            group_instance_id=self.group_instance_id,
            client_id=self.client_id,
            client_host=self.client_host,
            rebalance_timeout_ms=self.rebalance_timeout_ms,
            session_timeout_ms=self.session_timeout_ms,
            subscription=self.subscription(protocol_name),
            assignment=self.assignment,
        )


def joined_bytes(client_id: str, group_instance_id: str | None, protocols: Protocols) -> int:
    """Return the size of what a member joins with."""
    names = [client_id, group_instance_id or "", *(name for name, _ in protocols)]
    return sum(len(name.encode()) for name in names) + sum(len(metadata) for _, metadata in protocols)


def new_member(command: JoinGroup, member_id: str, now_ms: int) -> Member:
    """Create a member from its first JoinGroup."""
    return Member(
        member_id=member_id,
        group_instance_id=command.group_instance_id,
        client_id=command.client_id,
        client_host=command.client_host,
        session_timeout_ms=command.session_timeout_ms,
        rebalance_timeout_ms=command.rebalance_timeout_ms,
        protocols=command.protocols,
        session_deadline_ms=now_ms + command.session_timeout_ms,
    )


def restored_member(value: MemberValue, protocol_name: str, session_deadline_ms: int) -> Member:
    """Rebuild a member from the group's last record."""
    return Member(
        member_id=value.member_id,
        group_instance_id=value.group_instance_id,
        client_id=value.client_id,
        client_host=value.client_host,
        session_timeout_ms=value.session_timeout_ms,
        rebalance_timeout_ms=value.rebalance_timeout_ms,
        protocols=((protocol_name, value.subscription),),
        session_deadline_ms=session_deadline_ms,
        assignment=value.assignment,
        is_unheard=True,
    )
