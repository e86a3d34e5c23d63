"""The definition of a schedule: a message, and a cron expression for its publication."""

import re

import msgspec

from conveyor.kernel.errors import ErrorKind, RequestError
from conveyor.records.message_attributes import DEDUP_ID, check_attributes, last_header
from conveyor.records.record import Header
from conveyor.schedules.cron import check_cron, next_firing_ms

_NAME = re.compile(r"[a-zA-Z0-9._-]{1,200}")


class Schedule(msgspec.Struct, frozen=True, kw_only=True):
    """A message and its due times. `cron` has five fields, in an IANA time zone.

    owner: who publishes the message, as `User:alice`: the user who has determined its topic, key, payload and headers.
    Empty for a client without a login.
    """

    name: str
    topic: str
    cron: str
    time_zone: str = "UTC"
    payload: bytes = b""
    key: bytes | None = None
    headers: tuple[Header, ...] = ()
    paused: bool = False
    owner: str = ""

    def dedup_id(self, due_ms: int) -> bytes:
        """Return the deduplication id of the message of one firing."""
        return f"schedule:{self.name}:{due_ms}".encode()

    def next_ms(self, after_ms: int) -> int | None:
        """Return the next due time after a time; None if the schedule is paused or never falls due."""
        return None if self.paused else next_firing_ms(self.cron, self.time_zone, after_ms)


def check_schedule(schedule: Schedule) -> None:
    """Raise RequestError: INVALID_SCHEDULE, INVALID_REQUEST (a header)."""
    if not _NAME.fullmatch(schedule.name) or schedule.name in (".", ".."):
        raise RequestError(
            ErrorKind.INVALID_SCHEDULE,
            f"schedule name {schedule.name[:40]!r} is not valid: use 1 to 200 of letters, digits, '.', '_', '-'",
        )
    check_cron(schedule.cron, schedule.time_zone)
    check_attributes(schedule.headers)
    if last_header(schedule.headers, DEDUP_ID) is not None:
        raise RequestError(ErrorKind.INVALID_SCHEDULE, f"{DEDUP_ID} is the schedule's own to set: leave it out")
