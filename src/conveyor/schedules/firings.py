"""Decides from times alone which firings of a schedule are due.

    waiting -(its time comes)-> due -> done     -> waiting
                                    -> failed   -> due again, after a pause

Of several missed firings only the last is due. Firings follow the wall clock when it is set. Forward: only the last
firing in the skipped interval is due. Back by up to three hours: no firing is repeated. Back by more: the clock was
wrong before, so firings continue from now. Source: cron(8) of Debian.
"""

from conveyor.schedules.cron import last_firing_ms
from conveyor.schedules.definition import Schedule

_NOT_REPEATED_MS = 3 * 3_600_000


class Firings:
    """See the module's docstring.

    fired_ms: all firings up to this time are done. is_sure: no later firing can be in the log. failures: consecutive
    ones.
    """

    __slots__ = ("failures", "fired_ms", "is_sure", "schedule")

    def __init__(self, schedule: Schedule, fired_ms: int, *, is_sure: bool) -> None:
        self.schedule = schedule
        self.fired_ms = fired_ms
        self.is_sure = is_sure
        self.failures = 0

    def changed(self, schedule: Schedule, now_ms: int) -> "Firings":
        """Return the firings of a changed schedule. A firing missed before the change is still due.

        It is not due if the schedule was paused, or if its topic or its times have changed.
        """
        before = self.schedule
        is_same = (before.topic, before.cron, before.time_zone) == (schedule.topic, schedule.cron, schedule.time_zone)
        return Firings(schedule, self.fired_ms if is_same and not before.paused else now_ms, is_sure=False)

    def due_ms(self, now_ms: int) -> int | None:
        """Return the due time of the firing that is due now; None if there is none."""
        if self.fired_ms > now_ms + _NOT_REPEATED_MS:
            self.fired_ms = now_ms
        return last_firing_ms(self.schedule.cron, self.schedule.time_zone, self.fired_ms, now_ms)

    def next_ms(self, now_ms: int) -> int | None:
        """Return the next due time, if no firing is due now."""
        return self.schedule.next_ms(max(self.fired_ms, now_ms))

    def done(self, due_ms: int) -> None:
        """Record that a firing is published or skipped."""
        self.fired_ms, self.is_sure, self.failures = due_ms, True, 0

    def failed(self) -> None:
        """Record that a firing was not published, or that its result is unknown."""
        self.is_sure, self.failures = False, self.failures + 1
