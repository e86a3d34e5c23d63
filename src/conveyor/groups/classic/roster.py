"""The members of a classic group."""

from collections import Counter
from collections.abc import Iterator, Mapping

from conveyor.groups.classic.classic_member import MAX_GROUP_BYTES, Member
from conveyor.groups.group_commands import JoinGroup
from conveyor.groups.static_members import StaticMembers
from conveyor.kernel.errors import ErrorKind, RequestError
from conveyor.kernel.tally import Tally


class Roster:
    """The members by id, in the order in which they joined.

    pending: the ids that new members were given and have not joined with yet, and when each is forgotten (KIP-394).
    """

    def __init__(self, group_id: str) -> None:
        self.static_members = StaticMembers()
        self.pending: dict[str, int] = {}
        self._group_id = group_id
        self._members: dict[str, Member] = {}
        self._supporters: Tally[str] = Tally()
        """The number of members that support each protocol. Each join asks for it."""

    def __iter__(self) -> Iterator[Member]:
        return iter(self._members.values())

    def __len__(self) -> int:
        return len(self._members)

    def get(self, member_id: str) -> Member | None:
        return self._members.get(member_id)

    def find(self, member_id: str, instance_id: str | None) -> Member:
        """Return the member with this id. Raises RequestError: UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID."""
        self.static_members.check(self._group_id, self._members, member_id, instance_id)
        return self._members[member_id]

    def add(self, member: Member) -> None:
        self._uncount(self._members.get(member.member_id))
        self._members[member.member_id] = member
        self._supporters.update(member.protocol_names)
        self.pending.pop(member.member_id, None)
        self.static_members.add(member.group_instance_id, member.member_id)

    def remove(self, member: Member) -> None:
        self._uncount(self._members.pop(member.member_id, None))
        self.static_members.remove(member.group_instance_id, member.member_id)

    def update(self, member: Member, command: JoinGroup) -> None:
        """Store the fields of a rejoining member's request."""
        self._uncount(member)
        member.update(command)
        self._supporters.update(member.protocol_names)

    def _uncount(self, member: Member | None) -> None:
        for name in () if member is None else member.protocol_names:
            self._supporters.remove(name)

    def have_rejoined(self) -> bool:
        """Return whether all members, and all new ones with an id, have sent their JoinGroup."""
        return not self.pending and all(member.join_token is not None for member in self)

    def supported(self, names: set[str], besides: str) -> set[str]:
        """Return the protocols among these that all members support, except the member with the id `besides`."""
        member = self._members.get(besides)
        own_names = set() if member is None else member.protocol_names
        others = len(self) - (member is not None)
        return {name for name in names if self._supporters[name] - (name in own_names) == others}

    def vote(self) -> str:
        """Return the protocol, supported by all members, that most members prefer."""
        first = next(iter(self))
        shared = self.supported(first.protocol_names, first.member_id)
        votes = Counter(next(name for name, _ in member.protocols if name in shared) for member in self)
        return votes.most_common(1)[0][0]

    def has_room(self, assignments: Mapping[str, bytes]) -> bool:
        """Return whether the group is small enough with these assignments."""
        sizes = (member.joined_bytes + len(assignments.get(member.member_id, b"")) for member in self)
        return sum(sizes) <= MAX_GROUP_BYTES

    def longest_rebalance_timeout_ms(self) -> int:
        return max((member.rebalance_timeout_ms for member in self), default=0)

    def deadlines_ms(self) -> list[int]:
        """Return when sessions end and pending ids are forgotten."""
        return [member.session_deadline_ms for member in self if not member.waits] + [*self.pending.values()]

    def clock_set(self, by_ms: int) -> None:
        """Shift all deadlines by `by_ms`, because the wall clock was set."""
        for member in self:
            member.session_deadline_ms += by_ms
        for member_id in self.pending:
            self.pending[member_id] += by_ms


def check_group_bytes(group_id: str, size: int) -> None:
    """Raise RequestError (GROUP_MAX_SIZE_REACHED) if the members of a group would be too large."""
    if size > MAX_GROUP_BYTES:
        raise RequestError(
            ErrorKind.GROUP_MAX_SIZE_REACHED,
            f"the members of group '{group_id}' would have {size} bytes in all: at most {MAX_GROUP_BYTES}",
        )
