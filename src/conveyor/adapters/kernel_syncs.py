"""Syncs through the kernel's own queue (Linux AIO). No thread of this process waits for the disk, or competes with the
event loop for the interpreter lock afterwards.

Creating and closing the queue stops the whole process for about 30 ms, while the kernel takes a queue apart.
"""

import asyncio
import contextlib
import errno
import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

from caio import linux_aio

from conveyor.adapters.disk import RealFile
from conveyor.kernel.errors import StorageFailure
from conveyor.kernel.ports import File

log = logging.getLogger(__name__)

_QUEUE_SIZE = 256
"""The least number of syncs that the queue accepts at once; the kernel rounds up."""

_READ_AT_ONCE = 256
_UNSIGNED = 1 << 64
_REFUSALS = (OSError, OverflowError, SystemError, ValueError)
"""The exceptions that caio raises for errors of `io_submit`, `io_setup` and `io_getevents`."""

Done = Callable[[StorageFailure | None], None]


class KernelSyncs:
    """See `conveyor.kernel.ports.FileSyncs`. The files belong to a `RealDisk`. Raises OSError if the system has no
    queue.

    If the queue's events cannot be read, it accepts no more syncs, and the pending ones have failed: the kernel reports
    the error of a sync once, so repeating them would prove nothing.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        if linux_aio is None:
            raise OSError(errno.ENOSYS, "the system has no queue for syncs (Linux AIO)")
        try:
            self._context = linux_aio.Context(max_requests=_QUEUE_SIZE)
        except _REFUSALS as error:
            raise OSError(errno.EAGAIN, f"the system refuses a queue for syncs: {error}") from error
        self._pending: dict[int, _Sync] = {}
        self._started = 0
        self._ended: list[tuple[int, int]] = []
        self._has_failed = False
        self._has_warned = False
        self._loop = loop
        loop.add_reader(self._context.fileno, self._collect)

    def begin(self, wanted: Sequence[tuple[File, Done]]) -> int:
        if self._has_failed:
            return 0
        operations, descriptors = [], []
        syncs: list[_Sync] = []
        for file, done in wanted:
            assert isinstance(file, RealFile)
            try:
                descriptor, mark = file.begin_sync()
            except StorageFailure:
                break  # The caller's `File.sync` reports the failure, or succeeds.
            operation = linux_aio.Operation.fdsync(descriptor.number)
            operation.set_callback(partial(self._note, self._started + len(syncs)))
            operations.append(operation)
            descriptors.append(descriptor)
            syncs.append(_Sync(file, mark, done))
        if not operations:
            return 0
        try:
            submitted = self._context.submit(*operations)  # From here on the kernel owns the operations.
        except _REFUSALS as error:
            if not self._has_warned:
                self._has_warned = True
                log.warning("the kernel refuses queued syncs, threads sync instead: %s", error)
            return 0
        self._pending.update(enumerate(syncs[:submitted], self._started))
        self._started += submitted
        return submitted

    def close(self) -> None:
        """Close the queue. No sync may be pending."""
        if not self._has_failed:
            self._loop.remove_reader(self._context.fileno)
        del self._context  # The last reference: the kernel's queue goes with it.

    def _note(self, number: int, result: int) -> None:
        """A callback from C, where an exception would be lost."""
        self._ended.append((number, result))

    def _collect(self) -> None:
        try:
            with contextlib.suppress(BlockingIOError):
                self._context.poll()
            while self._read_events() == _READ_AT_ONCE:
                pass
        except _REFUSALS as error:
            self._fail(error)
        ended, self._ended = self._ended, []
        for number, result in ended:
            sync = self._pending.pop(number)
            try:
                sync.file.end_sync(sync.mark, error_number(result))
            except StorageFailure as failure:
                sync.done(failure)
            else:
                sync.done(None)
        if self._has_failed:
            self._fail_pending()

    def _read_events(self) -> int:
        """Return the number of events read; 0 if a signal interrupted the call."""
        try:
            return self._context.process_events(_READ_AT_ONCE)
        except SystemError as error:
            if error.args[0] != errno.EINTR:
                raise
            return 0

    def _fail(self, error: Exception) -> None:
        self._has_failed = True
        self._loop.remove_reader(self._context.fileno)
        log.error("the kernel's sync queue cannot be read, threads sync instead: %s", error)

    def _fail_pending(self) -> None:
        pending, self._pending = self._pending, {}
        for sync in pending.values():
            sync.done(StorageFailure("the result of a sync is lost, because the kernel's queue cannot be read"))


class _Sync(NamedTuple):
    """A sync that the kernel has accepted."""

    file: RealFile
    mark: int
    done: Done


def error_number(result: int) -> int:
    """Return the errno of a kernel result, which is 0 or a negative errno that caio passes as an unsigned 64-bit
    number.
    """
    return _UNSIGNED - result if result >> 63 else 0
