"""How long members have been silent while their coordinator was up, over its restarts.

Heartbeats leave no trace in the log, so after a restart a coordinator cannot tell the living from the dead, and gives
all members of the log a session. A member that has not been heard since the coordinator was loaded is *unheard*. Every
few seconds the silences of unheard members are noted in the log, and the next coordinator gives them only what is left
of their sessions. A member that is heard loses its note, in the log as well. So the session timeout counts the time in
which the coordinator was up: a member that is heard within it stays, and one that is not is expelled, however often the
broker is restarted meanwhile.

Hard state, changed by `apply` only: the notes. Soft state: since when the coordinator is up, what was noted then, and
which groups have unheard members; who these are, the groups themselves know.
"""

from collections.abc import Collection, Iterable

from conveyor.groups.records.group_records import silence_record
from conveyor.kernel.state_machine import LogRecord

NOTED_EVERY_MS = 5_000
SHORTEST_SESSION_MS = 5_000
"""What each member has at least after a start: its client has to find the broker again."""

_NOTED_AT_ONCE = 100


class Silences:
    """See the module's docstring."""

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
        """How long a member of the log has to be heard, after all records are applied."""
        left_ms = timeout_ms - self._noted.get(group_id, {}).get(member_id, 0)
        return max(left_ms, min(timeout_ms, SHORTEST_SESSION_MS))

    def loaded(self, now_ms: int, groups: Iterable[str]) -> None:
        """The coordinator is up. groups: those with unheard members."""
        self._up_since_ms, self._before = now_ms, dict(self._noted)
        self._groups = dict.fromkeys((*groups, *self._noted))
        self._next_ms = now_ms + NOTED_EVERY_MS if self._groups else None

    def clock_set(self, by_ms: int) -> None:
        """The wall clock was set: silences last as long as they would."""
        self._up_since_ms += by_ms
        if self._next_ms is not None:
            self._next_ms += by_ms

    def next_deadline_ms(self) -> int | None:
        """When `pop_due` has groups to note."""
        return self._next_ms

    def pop_due(self, now_ms: int) -> list[str]:
        """Groups to `note` now: all with unheard members, a part in each call."""
        if self._next_ms is None or self._next_ms > now_ms:
            return []
        self._pass = self._pass or list(self._groups)
        due, self._pass = self._pass[:_NOTED_AT_ONCE], self._pass[_NOTED_AT_ONCE:]
        if not self._pass:
            self._next_ms = now_ms + NOTED_EVERY_MS
        return due

    def note(self, group_id: str, unheard: Collection[str], now_ms: int) -> list[LogRecord]:
        """The record that says how long the unheard members of a group have been silent by now."""
        if unheard:
            before, up_ms = self._before.get(group_id, {}), now_ms - self._up_since_ms
            return [silence_record(group_id, {each: before.get(each, 0) + up_ms for each in sorted(unheard)})]
        self._groups.pop(group_id, None)
        if not self._groups:
            self._next_ms = None
        return self.without_heard(group_id, unheard)

    def has_note(self, group_id: str) -> bool:
        return group_id in self._noted

    def without_heard(self, group_id: str, unheard: Collection[str]) -> list[LogRecord]:
        """The record by which members that were heard, or have gone, lose their notes, if some of them have one."""
        noted = self._noted.get(group_id, {})
        left = {member_id: silence_ms for member_id, silence_ms in noted.items() if member_id in unheard}
        return [] if left == noted else [silence_record(group_id, left)]
