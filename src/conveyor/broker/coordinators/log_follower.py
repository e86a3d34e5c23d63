"""Keeps a machine up to date with a partition's log and with the time, in parts that share the turns of the event loop.

the last stable offset rises -> scan a part -> ... -> up to date
                            -> a large compressed batch: a thread unpacks it -> continue
                            -> the log cannot be read: the partition goes offline, or continue after a pause
a deadline has passed        -> the machine decides on a part of its deadlines; its alarm rings again for the rest

A part is done at once, unless the machines of the broker have used up the turn: then it waits behind those that wait
already. See `Slices.soon`.
"""

from collections.abc import Callable
from typing import Protocol

from conveyor.broker.slices import CountsWork, Slices
from conveyor.kernel.alarm import Alarm
from conveyor.kernel.errors import RequestError, StorageFailure
from conveyor.kernel.ports import Clock
from conveyor.log.record_source import StillPacked
from conveyor.replication.machine_runner import Respond
from conveyor.replication.partition import Partition
from conveyor.replication.transactions import last_stable_offset

_PAUSE_MS = 1_000


class LogReader(CountsWork, Protocol):
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

    def expire(self) -> None:
        """Decide on a part of the deadlines that have passed."""
        ...


class LogFollower:
    """See the module's docstring. A partition is scanned up to its last stable offset."""

    def __init__(self, partition: Partition, reader: LogReader, clock: Clock, slices: Slices) -> None:
        self._partition = partition
        self._leave: Callable[[], object] = lambda: None
        """Ends to listen to the partition's changes."""
        self._reader = reader
        self._slices = slices
        self._pause = Alarm(clock, self.advance)
        self._is_unpacking = False
        self._is_stopped = False

    def follow(self, partition: Partition) -> None:
        """Begin, or continue with a partition that has reopened the same log."""
        self._leave()
        self._partition = partition
        self._leave = partition.changed.listen(self.advance)
        self.advance()

    def stop(self) -> None:
        self._is_stopped = True
        self._leave()
        self._pause.cancel()
        self._slices.forget(self._scan)
        self._slices.forget(self._reader.expire)

    def advance(self, _: None = None) -> None:
        """Scan new records, unless a batch is being unpacked."""
        if not self._is_stopped:
            self._slices.soon(self._scan, self._reader)

    def expire(self) -> None:
        """Let the machine decide on the deadlines that have passed."""
        if not self._is_stopped:
            self._slices.soon(self._reader.expire, self._reader)

    @property
    def _is_resting(self) -> bool:
        return self._is_stopped or self._partition.offline.reason is not None

    def _scan(self) -> None:
        if self._is_unpacking or self._pause.is_set or self._is_resting:
            return
        try:
            is_done = self._reader.scan(last_stable_offset(self._partition))
        except StillPacked as packed:
            self._is_unpacking = True
            return self._reader.unpack(packed, self._unpacked)
        except StorageFailure as failure:
            self._partition.failed_read(failure)
            return self._advance_later()
        if not is_done:
            self.advance()
        self._reader.scanned()

    def _unpacked(self, error: RequestError | None) -> None:
        self._is_unpacking = False
        if error is None:
            self.advance()
        else:
            self._advance_later()

    def _advance_later(self) -> None:
        if not self._is_resting:
            self._pause.after(_PAUSE_MS)
