"""Keeps a machine up to date with a partition's log: it scans new records, a part in every tick of the event loop.

the last stable offset rises -> scan a part -> ... -> up to date
                            -> a large compressed batch: a thread unpacks it -> continue
                            -> the log cannot be read: the partition goes offline, or continue after a pause
"""

from collections.abc import Callable
from typing import Protocol

from conveyor.broker.coordinators.machine_services import Turns
from conveyor.kernel.alarm import Alarm
from conveyor.kernel.errors import RequestError, StorageFailure
from conveyor.kernel.ports import Clock
from conveyor.log.record_source import StillPacked
from conveyor.replication.machine_runner import Respond
from conveyor.replication.partition import Partition
from conveyor.replication.transactions import last_stable_offset

_PAUSE_MS = 1_000


class LogReader(Protocol):
    """The machine that a follower keeps up to date."""

    def scan(self, limit_offset: int) -> bool:
        """Scan more records up to an offset. Returns whether it is reached. Raises StillPacked, StorageFailure."""
        ...

    def unpack(self, packed: StillPacked, unpacked: Respond[None]) -> None:
        """Unpack a batch on a thread, then call back, with an error if that failed."""
        ...

    def scanned(self) -> None:
        """Called after every scan that needed no unpacking."""
        ...


class LogFollower:
    """See the module's docstring. A partition is scanned up to its last stable offset."""

    def __init__(self, partition: Partition, reader: LogReader, clock: Clock, turns: Turns) -> None:
        self._partition = partition
        self._leave: Callable[[], object] = lambda: None
        """Ends to listen to the partition's changes."""
        self._reader = reader
        self._turns = turns
        self._pause = Alarm(clock, self.advance)
        self._is_busy = False
        self._is_stopped = False

    def follow(self, partition: Partition) -> None:
        """Begin, or continue with a partition that has reopened the same log."""
        self._leave()
        self._partition = partition
        self._leave = partition.changed.listen(self._rose)
        self._rose(None)

    def stop(self) -> None:
        self._is_stopped = True
        self._leave()
        self._pause.cancel()

    def advance(self) -> None:
        """Scan new records, unless a scan is running."""
        if self._is_busy or self._pause.is_set or self._is_resting:
            return
        try:
            is_done = self._reader.scan(last_stable_offset(self._partition))
        except StillPacked as packed:
            self._is_busy = True
            return self._reader.unpack(packed, self._unpacked)
        except StorageFailure as failure:
            self._partition.failed_read(failure)
            return self._advance_later()
        if not is_done:
            self._is_busy = True
            self._turns.call_soon(self._advance_more)
        self._reader.scanned()

    @property
    def _is_resting(self) -> bool:
        return self._is_stopped or self._partition.offline.reason is not None

    def _rose(self, _: None) -> None:
        if not self._is_resting:
            self.advance()

    def _advance_more(self) -> None:
        self._is_busy = False
        self.advance()

    def _unpacked(self, error: RequestError | None) -> None:
        self._is_busy = False
        if error is None:
            self.advance()
        else:
            self._advance_later()

    def _advance_later(self) -> None:
        if not self._is_resting:
            self._pause.after(_PAUSE_MS)
