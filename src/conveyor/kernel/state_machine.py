"""The shape of everything that decides: a deterministic state machine over a log.

    handle(command, now_ms) -> Outcome(records, replies)   # decides; changes no hard state
    apply(record)                                          # the only thing that changes hard state
    next_deadline_ms() -> int | None                       # time is a value, not a callback

A machine is driven by one runner, which appends an outcome's records, applies them in the same turn, and holds the
replies back until those records are safe. After a failed append the runner throws the machine away and replays.
Soft state (who waits for a rebalance, when a session ends) is the machine's own and is lost with it.

All times are wall-clock time, as stored times are. When the wall clock is set, `clock_set` moves those deadlines that
end a duration, so that the duration stays what it was.
"""

from dataclasses import dataclass
from typing import NewType, Protocol, TypeVar

Command = TypeVar("Command", contravariant=True)

Token = NewType("Token", int)
"""Names one waiting caller. The runner chooses it; the machine hands it back with the reply."""


@dataclass(frozen=True, slots=True)
class LogRecord:
    """One record as a state machine writes and reads it. `value=None` is a tombstone.

    timestamp_ms: when it was appended; 0 in a record that is not in a log yet.
    """

    key: bytes | None
    value: bytes | None
    timestamp_ms: int = 0


@dataclass(frozen=True, slots=True)
class Reply:
    """What one waiting caller is told, once the outcome's records are safe."""

    token: Token
    value: object


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a machine decided: the records that make it so, and whom to tell what.

    at_once: the replies depend on nothing that is not safe yet, in these records or in earlier ones.
    """

    records: tuple[LogRecord, ...] = ()
    replies: tuple[Reply, ...] = ()
    at_once: bool = False


class StateMachine(Protocol[Command]):
    """See the module's docstring."""

    def handle(self, command: Command, token: Token, now_ms: int) -> Outcome:
        """Decide on a command. A caller that must wait gets its reply in a later outcome, by its token."""
        ...

    def expire(self, now_ms: int) -> Outcome:
        """Decide what the passing of time has brought; called when `next_deadline_ms()` is due."""
        ...

    def apply(self, record: LogRecord) -> None:
        """Take one record into the hard state, live and at replay alike."""
        ...

    def loaded(self, now_ms: int) -> None:
        """All records of the log are applied; called once, before the first `handle`."""
        ...

    def clock_set(self, by_ms: int) -> None:
        """The wall clock was set, forward or (negative) back: move the ends of sessions, leases and other durations.

        Times of day stay: when a delayed message is due, until when a record is kept.
        """
        ...

    def next_deadline_ms(self) -> int | None:
        """When `expire` must next be called, in milliseconds since the epoch."""
        ...
