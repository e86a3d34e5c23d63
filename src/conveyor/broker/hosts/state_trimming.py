"""Keeps the log of a machine's state short: a snapshot of the state from time to time, then a trim of what is before.

The records of open transactions stay.
"""

from collections.abc import Callable, Sequence
from functools import partial

from conveyor.kernel.errors import RequestError
from conveyor.kernel.state_machine import LogRecord
from conveyor.replication.partition import Partition
from conveyor.replication.transactions import last_stable_offset

SNAPSHOT_BYTES = 4 << 20
_SNAPSHOT_RATIO = 4


class StateTrimming:
    """See the module's docstring.

    snapshot: returns records that rebuild the state from nothing. append: appends them as one batch, and returns the
    offset of the first; None if it failed. trim: deletes the log's records below an offset, now or later. least_bytes:
    how much the log grows at least before the next snapshot.
    """

    def __init__(
        self,
        state: Partition,
        *,
        snapshot: Callable[[], Sequence[LogRecord]],
        append: Callable[[Sequence[LogRecord]], int | None],
        trim: Callable[[int], None],
        least_bytes: int = SNAPSHOT_BYTES,
    ) -> None:
        self._state = state
        self._snapshot = snapshot
        self._append = append
        self._trim = trim
        self._least_bytes = least_bytes
        self._snapshot_bytes = 0
        self._bytes_at_snapshot = 0

    def shorten(self) -> None:
        """If the log has grown enough, append a snapshot, and trim the log once the snapshot is committed."""
        size_bytes = self._state.log.size_bytes
        self._bytes_at_snapshot = min(self._bytes_at_snapshot, size_bytes)  # The log may have been trimmed since.
        if size_bytes - self._bytes_at_snapshot < max(self._least_bytes, _SNAPSHOT_RATIO * self._snapshot_bytes):
            return
        records = self._snapshot()
        offset = self._append(records)
        if offset is None:
            return
        self._snapshot_bytes = sum(len(record.value or b"") for record in records)
        self._bytes_at_snapshot = size_bytes + self._snapshot_bytes
        self._state.term.when_committed(offset + len(records), partial(self._committed, offset))

    def _committed(self, offset: int, error: RequestError | None) -> None:
        if error is None:
            self._trim(min(offset, last_stable_offset(self._state)))
