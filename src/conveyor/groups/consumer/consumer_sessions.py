"""The deadlines of consumer protocol members: soft state, rebuilt when a coordinator starts."""


class ConsumerSessions:
    """By group and member: the end of the session, and the deadline of a reconciliation step that the member has to
    take.
    """

    def __init__(self) -> None:
        self._sessions: dict[str, dict[str, int]] = {}
        self._steps: dict[str, dict[str, int]] = {}
        self._unheard: dict[str, set[str]] = {}

    def touch(self, group_id: str, member_id: str, deadline_ms: int) -> None:
        """Renew a member's session."""
        self._sessions.setdefault(group_id, {})[member_id] = deadline_ms
        self._hear(group_id, member_id)

    def restore(self, group_id: str, member_id: str, deadline_ms: int) -> None:
        """Start the session of a member in the log. The member counts as unheard until `touch`."""
        self._sessions.setdefault(group_id, {})[member_id] = deadline_ms
        self._unheard.setdefault(group_id, set()).add(member_id)

    def unheard(self, group_id: str) -> set[str]:
        return self._unheard.get(group_id, set())

    def step_by(self, group_id: str, member_id: str, deadline_ms: int | None) -> None:
        """Set the deadline of a member's step, for example to revoke partitions; None if it has no step to take."""
        if deadline_ms is not None:
            self._steps.setdefault(group_id, {})[member_id] = deadline_ms
        elif group_id in self._steps:
            self._steps[group_id].pop(member_id, None)

    def owes_step(self, group_id: str, member_id: str) -> bool:
        return member_id in self._steps.get(group_id, {})

    def clock_set(self, by_ms: int) -> None:
        """Shift all deadlines by `by_ms`, because the wall clock was set."""
        for deadlines in (*self._sessions.values(), *self._steps.values()):
            for member_id in deadlines:
                deadlines[member_id] += by_ms

    def forget(self, group_id: str, member_id: str) -> None:
        self._hear(group_id, member_id)
        for deadlines in (self._sessions, self._steps):
            if group_id in deadlines:
                deadlines[group_id].pop(member_id, None)
                if not deadlines[group_id]:
                    del deadlines[group_id]

    def _hear(self, group_id: str, member_id: str) -> None:
        unheard = self._unheard.get(group_id)
        if unheard is not None:
            unheard.discard(member_id)
            if not unheard:
                del self._unheard[group_id]

    def next_deadline_ms(self, group_id: str) -> int | None:
        deadlines = [*self._sessions.get(group_id, {}).values(), *self._steps.get(group_id, {}).values()]
        return min(deadlines, default=None)

    def due(self, group_id: str, now_ms: int) -> list[str]:
        """Return the members with a passed deadline, sorted by member id."""
        due_members = {
            member_id
            for deadlines in (self._sessions, self._steps)
            for member_id, deadline_ms in deadlines.get(group_id, {}).items()
            if deadline_ms <= now_ms
        }
        return sorted(due_members)
