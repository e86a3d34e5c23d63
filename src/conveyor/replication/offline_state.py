"""The offline state of a partition: the reason, and the remedy that may bring it back."""

from collections.abc import Iterator
from contextlib import contextmanager

from conveyor.kernel.errors import ErrorKind, Remedy, RequestError, StorageFailure, remedy_of
from conveyor.kernel.ids import TopicPartition


class OfflineState:
    """See the module's docstring.

    reason: None while it is online. end_offset: of what other brokers may have committed, because this one has reported
    it: the log must not end below it when it is opened again. is_diverged: it is offline because it has committed
    records that its leader lacks; see `LogDiverged`. is_flushing: a flush uses the log's files.
    """

    __slots__ = ("_identity", "_jobs_count", "_remedy", "end_offset", "is_diverged", "is_flushing", "reason")

    def __init__(self, identity: TopicPartition) -> None:
        self.reason: str | None = None
        self.end_offset = 0
        self.is_diverged = False
        self.is_flushing = False
        self._identity = identity
        self._remedy = Remedy.NEW_LEADER
        self._jobs_count = 0

    @property
    def remedy(self) -> Remedy | None:
        """The remedy for an offline log; None while a job uses its files, or if the partition is online."""
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

    def failed(self, failure: StorageFailure, end_offset: int) -> None:
        """Derive from the first failure what may bring the log back."""
        self.end_offset = end_offset
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
