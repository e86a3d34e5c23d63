"""Syncs by the kernel's own queue (Linux AIO): no thread of this process waits for the disk, or fights with the loop
for the interpreter's lock when it is done.

Loading and closing this stop the whole process for some 30 ms, while the kernel takes a queue apart.
"""

import asyncio
import contextlib
import errno
import logging
from collections.abc import Callable, Sequence
from functools import partial

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
"""What caio raises for the errors of `io_submit` and `io_setup`."""

Done = Callable[[StorageFailure | None], None]


class KernelSyncs:
    """See `conveyor.kernel.ports.FileSyncs`. The files are a `RealDisk`'s. Raises OSError where there is no queue."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        if linux_aio is None:
            raise OSError(errno.ENOSYS, "the system has no queue for syncs")
        try:
            self._context = linux_aio.Context(max_requests=_QUEUE_SIZE)
        except _REFUSALS as error:
            raise OSError(errno.EAGAIN, f"the system gives no queue for syncs: {error}") from error
        self._ended: list[tuple[RealFile, int, Done, int]] = []
        self._has_told = False
        self._loop = loop
        loop.add_reader(self._context.fileno, self._collect)

    def begin(self, wanted: Sequence[tuple[File, Done]]) -> int:
        operations, held = [], []
        for file, done in wanted:
            assert isinstance(file, RealFile)
            try:
                descriptor, mark = file.begin_sync()
            except StorageFailure:
                break  # Whoever waits for `File.sync` is told, unless it succeeds there.
            held.append(descriptor)
            operation = linux_aio.Operation.fdsync(descriptor.number)
            operation.set_callback(partial(self._note, file, mark, done))
            operations.append(operation)
        if not operations:
            return 0
        try:
            return self._context.submit(*operations)  # From here on the kernel holds the files.
        except _REFUSALS as error:
            if not self._has_told:
                self._has_told = True
                log.warning("syncs left to threads, as the kernel does not take them: %s", error)
            return 0

    def close(self) -> None:
        """Nothing may be under way."""
        self._loop.remove_reader(self._context.fileno)
        del self._context  # The last reference: the kernel's queue goes with it.

    def _note(self, file: RealFile, mark: int, done: Done, result: int) -> None:
        """Called from C, where an exception would get lost."""
        self._ended.append((file, mark, done, result))

    def _collect(self) -> None:
        with contextlib.suppress(BlockingIOError):
            self._context.poll()
        while self._read_events() == _READ_AT_ONCE:
            pass
        ended, self._ended = self._ended, []
        for file, mark, done, result in ended:
            try:
                file.end_sync(mark, error_number(result))
            except StorageFailure as failure:
                done(failure)
            else:
                done(None)

    def _read_events(self) -> int:
        """How many there were; none if a signal came before the first."""
        try:
            return self._context.process_events(_READ_AT_ONCE)
        except SystemError as error:
            if error.args[0] != errno.EINTR:
                raise
            return 0


def error_number(result: int) -> int:
    """Of what the kernel says, 0 or a negative errno, which caio passes on as an unsigned number of 64 bits."""
    return _UNSIGNED - result if result >> 63 else 0
