"""Measures how long members are silent while their coordinator is up, across coordinator restarts.

The log does not contain heartbeats. After a restart a coordinator therefore cannot tell live members from dead ones,
and starts a session for every member in the log. A member that has not sent a heartbeat since the coordinator was
loaded is *unheard*. Every few seconds the coordinator appends a note with the silence of each unheard member, and the
next coordinator gives these members only the remainder of their sessions. When a member sends a heartbeat, its note is
deleted, in the log as well.

The session timeout thus counts only time in which a coordinator was up. A member that sends a heartbeat within it
stays; one that does not is expelled, however often the broker restarts meanwhile.

Hard state, changed by `apply` only: the notes. Soft state: when the coordinator came up, the notes at that time, and
which groups have unheard members. The groups themselves know which members are unheard.
"""

from collections.abc import Collection, Iterable, Iterator

from conveyor.groups.records.group_records import silence_record
from conveyor.kernel.state_machine import LogRecord

NOTED_EVERY_MS = 5_000
SHORTEST_SESSION_MS = 5_000
"""The shortest session of a member after a coordinator starts: the client needs this time to find the broker again."""

_NOTED_AT_ONCE = 100


class Silences:
    """Keeps the silence notes of all groups; see the module's docstring."""

    def __init__(self) -> None:
        self._noted: dict[str, dict[str, int]] = {}
        self._before: dict[str, dict[str, int]] = {}
        self._up_since_ms = 0
        self._groups: dict[str, None] = {}
        self._pass: list[str] = []
        self._next_ms: int | None = None

    def apply(self, group_id: str, silences_ms: dict[str, int] | None) -> None:
        if silences_ms is None:
            self._noted.pop(group_id, None)
        else:
            self._noted[group_id] = silences_ms

    def session_ms(self, group_id: str, member_id: str, timeout_ms: int) -> int:
        """Return the remaining session of a member in the log, counted from when all records are applied."""
        remaining_ms = timeout_ms - self._noted.get(group_id, {}).get(member_id, 0)
        return max(remaining_ms, min(timeout_ms, SHORTEST_SESSION_MS))

    def loaded(self, now_ms: int, groups: Iterable[str]) -> None:
        """Begin to measure silences. groups: the groups with unheard members."""
        self._up_since_ms, self._before = now_ms, dict(self._noted)
        self._groups = dict.fromkeys((*groups, *self._noted))
        self._next_ms = now_ms + NOTED_EVERY_MS if self._groups else None

    def clock_set(self, by_ms: int) -> None:
        """Keep measured silences unchanged, because the wall clock was set by `by_ms`."""
        self._up_since_ms += by_ms
        if self._next_ms is not None:
            self._next_ms += by_ms

    def next_deadline_ms(self) -> int | None:
        """Return when `pop_due` next yields groups."""
        return self._next_ms

    def pop_due(self, now_ms: int) -> Iterator[str]:
        """Yield groups to `note` now. A round covers all groups with unheard members, a limited number per call. The
        caller may stop early; the other groups of the round stay due.
        """
        if self._next_ms is None or self._next_ms > now_ms:
            return
        self._pass = self._pass or list(self._groups)[::-1]
        for _ in range(min(_NOTED_AT_ONCE, len(self._pass))):
            group_id = self._pass.pop()
            if not self._pass:
                self._next_ms = now_ms + NOTED_EVERY_MS
            yield group_id

    def note(self, group_id: str, unheard: Collection[str], now_ms: int) -> list[LogRecord]:
        """Return the record of how long a group's unheard members have been silent by now."""
        if unheard:
            before, up_ms = self._before.get(group_id, {}), now_ms - self._up_since_ms
            return [
                silence_record(group_id, {member_id: before.get(member_id, 0) + up_ms for member_id in sorted(unheard)})
            ]
        self._groups.pop(group_id, None)
        if not self._groups:
            self._next_ms = None
        return self.without_heard(group_id, unheard)

    def has_note(self, group_id: str) -> bool:
        return group_id in self._noted

    def without_heard(self, group_id: str, unheard: Collection[str]) -> list[LogRecord]:
        """Return the record that deletes the notes of members that sent a heartbeat or left; nothing if none had a
        note.
        """
        noted = self._noted.get(group_id, {})
        remaining = {member_id: silence_ms for member_id, silence_ms in noted.items() if member_id in unheard}
        return [] if remaining == noted else [silence_record(group_id, remaining)]
