"""The static members of one group, of either protocol: members that keep their place while they restart (KIP-345)."""

from collections.abc import Container

from conveyor.groups.group_commands import NO_MEMBER, LeavingMember
from conveyor.kernel.errors import ErrorKind, RequestError


class StaticMembers:
    """The member that has each group instance id now."""

    def __init__(self) -> None:
        self._member_ids: dict[str, str] = {}

    def holder(self, instance_id: str | None) -> str | None:
        """Return the id of the member that has a group instance id; None for None."""
        return None if instance_id is None else self._member_ids.get(instance_id)

    def add(self, instance_id: str | None, member_id: str) -> None:
        """Give a group instance id to a member, also if another member has it. A dynamic member has none."""
        if instance_id is not None:
            self._member_ids[instance_id] = member_id

    def remove(self, instance_id: str | None, member_id: str) -> None:
        """Take a group instance id from a member, unless another member has taken it over."""
        if instance_id is not None and self._member_ids.get(instance_id) == member_id:
            del self._member_ids[instance_id]

    def check(self, group_id: str, members: Container[str], member_id: str, instance_id: str | None) -> None:
        """Check that a group with these members has this one. Raises RequestError: UNKNOWN_MEMBER_ID,
        FENCED_INSTANCE_ID.
        """
        holder = self.holder(instance_id)
        if holder not in (None, member_id):
            raise RequestError(
                ErrorKind.FENCED_INSTANCE_ID,
                f"instance id '{instance_id}' belongs to '{holder}' now, not '{member_id}'",
            )
        if member_id not in members or (instance_id is not None and holder is None):
            raise RequestError(ErrorKind.UNKNOWN_MEMBER_ID, f"group '{group_id}' has no member '{member_id}'")

    def leaving_id(self, leaving: LeavingMember) -> str:
        """Return the member id of a member that leaves, which may send its group instance id alone."""
        return leaving.member_id or self.holder(leaving.group_instance_id) or NO_MEMBER
