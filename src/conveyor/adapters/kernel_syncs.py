"""Syncs by the kernel's own queue (Linux AIO): no thread of this process waits for the disk, or competes with the loop
for the interpreter's lock when it is done.

Loading and closing this stop the whole process for some 30 ms, while the kernel takes a queue apart.
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
"""At least so many syncs are taken at once; the kernel rounds up."""

_READ_AT_ONCE = 256
_UNSIGNED = 1 << 64
_REFUSALS = (OSError, OverflowError, SystemError, ValueError)
"""What caio raises for the errors of `io_submit`, `io_setup` and `io_getevents`."""

Done = Callable[[StorageFailure | None], None]


class KernelSyncs:
    """See `conveyor.kernel.ports.FileSyncs`. The files are a `RealDisk`'s. Raises OSError where there is no queue.

    A queue whose events cannot be read takes nothing more: threads sync the files whose syncs were under way.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        if linux_aio is None:
            raise OSError(errno.ENOSYS, "the system has no queue for syncs")
        try:
            self._context = linux_aio.Context(max_requests=_QUEUE_SIZE)
        except _REFUSALS as error:
            raise OSError(errno.EAGAIN, f"the system gives no queue for syncs: {error}") from error
        self._under_way: dict[int, _Sync] = {}
        self._started = 0
        self._ended: list[tuple[int, int]] = []
        self._has_failed = False
        self._has_told = False
        self._loop = loop
        loop.add_reader(self._context.fileno, self._collect)

    def begin(self, wanted: Sequence[tuple[File, Done]]) -> int:
        if self._has_failed:
            return 0
        operations, held = [], []
        syncs: list[_Sync] = []
        for file, done in wanted:
            assert isinstance(file, RealFile)
            try:
                descriptor, mark = file.begin_sync()
            except StorageFailure:
                break  # `File.sync` finds out what is wrong, unless it succeeds.
            operation = linux_aio.Operation.fdsync(descriptor.number)
            operation.set_callback(partial(self._note, self._started + len(syncs)))
            operations.append(operation)
            held.append(descriptor)
            syncs.append(_Sync(file, mark, done))
        if not operations:
            return 0
        try:
            taken = self._context.submit(*operations)  # From here on the kernel holds the files.
        except _REFUSALS as error:
            if not self._has_told:
                self._has_told = True
                log.warning("syncs left to threads, as the kernel does not take them: %s", error)
            return 0
        self._under_way.update(enumerate(syncs[:taken], self._started))
        self._started += taken
        return taken

    def close(self) -> None:
        """Nothing may be under way."""
        if not self._has_failed:
            self._loop.remove_reader(self._context.fileno)
        del self._context  # The last reference: the kernel's queue goes with it.

    def _note(self, number: int, result: int) -> None:
        """Called from C, where an exception would get lost."""
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
            sync = self._under_way.pop(number)
            try:
                sync.file.end_sync(sync.mark, error_number(result))
            except StorageFailure as failure:
                sync.done(failure)
            else:
                sync.done(None)
        if self._has_failed:
            self._leave_to_threads()

    def _read_events(self) -> int:
        """How many there were; none if a signal came before the first."""
        try:
            return self._context.process_events(_READ_AT_ONCE)
        except SystemError as error:
            if error.args[0] != errno.EINTR:
                raise
            return 0

    def _fail(self, error: Exception) -> None:
        self._has_failed = True
        self._loop.remove_reader(self._context.fileno)
        log.error("syncs left to threads, as the kernel's queue cannot be read: %s", error)

    def _leave_to_threads(self) -> None:
        """How the syncs that are under way end is not known: they are done again, elsewhere."""
        for sync in self._under_way.values():
            syncing = self._loop.run_in_executor(None, _failure_of, sync.file)
            syncing.add_done_callback(partial(_end, sync.done))
        self._under_way.clear()


class _Sync(NamedTuple):
    """One that the kernel has taken."""

    file: RealFile
    mark: int
    done: Done


def _failure_of(file: File) -> StorageFailure | None:
    try:
        file.sync()
    except StorageFailure as failure:
        return failure
    return None


def _end(done: Done, syncing: "asyncio.Future[StorageFailure | None]") -> None:
    done(syncing.result())


def error_number(result: int) -> int:
    """Of what the kernel says, 0 or a negative errno, which caio passes on as an unsigned number of 64 bits."""
    return _UNSIGNED - result if result >> 63 else 0
