"""This broker's replica of a partition, as the partition and its terms share it: its log, and whether it is online."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Generic, TypeVar

import msgspec

from conveyor.kernel.errors import ErrorKind, Remedy, RequestError, StorageFailure, remedy_of
from conveyor.kernel.ids import TopicPartition
from conveyor.kernel.signal import Signal
from conveyor.log.log import Log

Held = TypeVar("Held")
"""A partition."""


class OwnerCalls(msgspec.Struct, Generic[Held], frozen=True, kw_only=True):
    """The calls of a partition to its owner.

    wants_write, wants_flush: there are records to write or flush; the owner then calls `write`, or `begin_flush` and
    `complete_flush`. went_offline: after a StorageFailure. wants_checks: clients wait for the high watermark; the owner
    then calls `LeaderTerm.check_commits` until it returns False. holds_lease: returns whether no other broker can have
    taken this broker's place yet.
    """

    wants_write: Callable[[Held], None]
    wants_flush: Callable[[Held], None]
    went_offline: Callable[[StorageFailure], None] = lambda _: None
    wants_checks: Callable[[TopicPartition], None] = lambda _: None
    holds_lease: Callable[[], bool] = lambda: True


class OfflineState:
    """Why a partition is offline, if it is, and what may bring it back.

    reason: None while it is online. is_diverged: it is offline because it has committed records that its leader lacks;
    see `LogDiverged`. is_flushing: a flush uses the log's files.
    """

    __slots__ = ("_identity", "_jobs_count", "_remedy", "is_diverged", "is_flushing", "reason")

    def __init__(self, identity: TopicPartition) -> None:
        self.reason: str | None = None
        self.is_diverged = False
        self.is_flushing = False
        self._identity = identity
        self._remedy = Remedy.NEW_LEADER
        self._jobs_count = 0

    @property
    def remedy(self) -> Remedy | None:
        """What may bring an offline log back; None while a job uses its files, or if the partition is online."""
        return None if self.is_flushing or self._jobs_count or self.reason is None else self._remedy

    def error(self) -> RequestError:
        """Return the error for calls while the partition is offline."""
        return RequestError(ErrorKind.PARTITION_OFFLINE, f"{self._identity} is offline: {self.reason}")

    @contextmanager
    def job(self) -> Iterator[None]:
        """Mark a job that changes the log's files off the loop. The log cannot be reopened until the job ends."""
        self._jobs_count += 1
        try:
            yield
        finally:
            self._jobs_count -= 1

    def failed(self, failure: StorageFailure) -> None:
        """Derive from the first failure what may bring the log back."""
        self._remedy = remedy_of(failure)
        self.is_diverged = self._remedy is Remedy.NEW_LEADER

    def flush_failed(self, failure: StorageFailure) -> None:
        """A flush has failed that was in progress when the partition went offline."""
        if self._remedy is Remedy.REOPEN:
            self._remedy = remedy_of(failure)  # Both failures are passing ones: neither has lost data.

    def not_reopened(self, failure: StorageFailure) -> None:
        """The log could not be reopened."""
        self._remedy = remedy_of(failure)
        self.reason = str(failure)

    def epoch_began(self) -> None:
        """Another leader epoch has begun: the new leader may have the records that the last one lacked."""
        if self._remedy is Remedy.NEW_LEADER:
            self._remedy = Remedy.REOPEN


class Replica(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """What a partition and its terms share. holds_lease, wants_checks: see `OwnerCalls`. changed: see `Partition`."""

    identity: TopicPartition
    log: Log
    offline: OfflineState
    changed: Signal[None]
    wants_checks: Callable[[TopicPartition], None]
    holds_lease: Callable[[], bool]
