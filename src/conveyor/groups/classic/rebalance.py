"""A rebalance of a classic group, from when it begins until all members have requested their assignments."""

from dataclasses import dataclass, field

from conveyor.groups.classic.classic_member import Member


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
    """One rebalance; see the module's docstring.

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
