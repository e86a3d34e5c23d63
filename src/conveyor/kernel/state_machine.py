"""The contract of every component that decides: a deterministic state machine over a log.

    handle(command, now_ms) -> Outcome(records, replies)   # decides; does not change hard state
    apply(record)                                          # the only function that changes hard state
    next_deadline_ms() -> int | None                       # time is a value, not a callback

One runner drives each machine. The runner appends an outcome's records, applies them in the same tick, and sends the
replies once the records are durable. After a failed append the runner discards the machine and replays the log.
The machine owns its soft state (callers that wait for a rebalance, ends of sessions); discarding the machine loses it.

A machine can take part in the transactions of producers. It decides on records for a producer; they are appended as a
batch of the producer's transaction, and applied with the producer's identity. The marker that ends the transaction, in
the same log, calls `resolve`.

All times are wall-clock time, as in stored records. When the wall clock is set, `clock_set` moves each deadline that
ends a duration, so that the duration stays the same.
"""

from typing import Any, Generic, NewType, Protocol, TypeVar

import msgspec

from conveyor.kernel.ids import ProducerIdentity

Answer_co = TypeVar("Answer_co", covariant=True)


class Command(msgspec.Struct, Generic[Answer_co], frozen=True):
    """A command to a machine. The parameter is the type of its reply; the reply may be a RequestError instead."""

    @property
    def is_repeatable(self) -> bool:
        """Whether the command may be executed again after others have seen, and built on, its first execution."""
        return True


Asked = TypeVar("Asked", bound=Command[Any], contravariant=True)
"""The type of the commands that a machine accepts."""


Token = NewType("Token", int)
"""Identifies one waiting caller. The runner chooses the token; the machine returns it with the reply."""


class LogRecord(msgspec.Struct, frozen=True):
    """One record as a state machine writes and reads it. `value=None` is a tombstone.

    timestamp_ms: the time of the append; 0 in a record that is not in a log yet.
    producer: if the record belongs to a transaction, the producer that has it; see `StateMachine.resolve`.
    """

    key: bytes | None
    value: bytes | None
    timestamp_ms: int = 0
    producer: ProducerIdentity | None = None


class Reply(msgspec.Struct, frozen=True):
    """The reply to one waiting caller, sent once the outcome's records are durable, unless it is `at_once`."""

    token: Token
    value: object


class Outcome(msgspec.Struct, frozen=True):
    """The decision of a machine: the records to append, and the replies to send.

    at_once: the replies do not depend on any record that is not durable yet, in this outcome or an earlier one.
    producer: the producer to whose transaction the records belong.
    """

    records: tuple[LogRecord, ...] = ()
    replies: tuple[Reply, ...] = ()
    at_once: bool = False
    producer: ProducerIdentity | None = None


class StateMachine(Protocol[Asked]):
    def handle(self, command: Asked, token: Token, now_ms: int) -> Outcome:
        """Decide on a command. A later outcome replies to a caller that must wait, by its token."""
        ...

    def expire(self, now_ms: int) -> Outcome:
        """Decide on deadlines that have passed. The runner calls this when `next_deadline_ms()` is due."""
        ...

    def apply(self, record: LogRecord) -> None:
        """Apply one record to the hard state, both live and during replay."""
        ...

    def resolve(self, producer: ProducerIdentity, commits: bool, now_ms: int) -> None:
        """Apply or drop the records of a producer's transaction, both live and during replay. A producer without
        records here has taken part in vain. now_ms: the time of the marker that ends the transaction.
        """
        ...

    def loaded(self, now_ms: int) -> None:
        """Called once, after all records of the log are applied and before the first `handle`."""
        ...

    def clock_set(self, by_ms: int) -> None:
        """Move the ends of sessions, leases and other durations by `by_ms`, because the wall clock was set.

        by_ms: negative if the clock was set back. Absolute times do not move: due times of delayed messages, retention
        times.
        """
        ...

    def next_deadline_ms(self) -> int | None:
        """Return the time of the next required `expire`, in milliseconds since the epoch; None for no deadline."""
        ...
