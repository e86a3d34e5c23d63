"""Keeps the log of a machine's state short: a snapshot of the state from time to time, then a trim of what is before.

The records of open transactions stay.
"""

from collections.abc import Sequence
from functools import partial
from typing import Protocol

from conveyor.broker.coordinators.hosted_machine import HostedMachine
from conveyor.broker.partitions.retention import Retention
from conveyor.kernel.errors import RequestError
from conveyor.kernel.state_machine import LogRecord
from conveyor.replication.transactions import last_stable_offset

SNAPSHOT_BYTES = 4 << 20
_SNAPSHOT_RATIO = 4


class HasSnapshot(Protocol):
    """A machine that can write a snapshot of its state."""

    def snapshot(self) -> Sequence[LogRecord]:
        """Return records that rebuild the state from nothing."""
        ...


class StateTrimming:
    """See the module's docstring. least_bytes: how much the log grows at least before the next snapshot."""

    def __init__(
        self, runner: HostedMachine, machine: HasSnapshot, retention: Retention, least_bytes: int = SNAPSHOT_BYTES
    ) -> None:
        self._runner = runner
        self._machine = machine
        self._retention = retention
        self._least_bytes = least_bytes
        self._snapshot_bytes = 0
        self._bytes_at_snapshot = 0

    def shorten(self) -> None:
        """If the log has grown enough, append a snapshot, and trim the log once the snapshot is committed."""
        state = self._runner.partition
        size_bytes = state.log.segments.size_bytes
        self._bytes_at_snapshot = min(self._bytes_at_snapshot, size_bytes)  # The log may have been trimmed since.
        if size_bytes - self._bytes_at_snapshot < max(self._least_bytes, _SNAPSHOT_RATIO * self._snapshot_bytes):
            return
        records = self._machine.snapshot()
        offset = self._runner.append_applied(records)
        if offset is None:
            return
        self._snapshot_bytes = sum(len(record.value or b"") for record in records)
        self._bytes_at_snapshot = size_bytes + self._snapshot_bytes
        state.term.when_committed(offset + len(records), partial(self._committed, offset))

    def _committed(self, offset: int, error: RequestError | None) -> None:
        if error is None and not self._runner.is_stopped:
            state = self._runner.partition
            self._retention.trim_later(state, min(offset, last_stable_offset(state)))
