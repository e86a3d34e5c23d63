"""Syncs by the kernel's own queue (Linux AIO): they cost the loop two system calls for as many files as there are, and
no thread of this process waits, or fights with the loop for the interpreter's lock, when the disk is done.

Loading this takes tens of milliseconds: do it off the loop, when there is nothing more urgent.
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

_AT_ONCE = 256
_UNSIGNED = 1 << 64
_NOT_TAKEN = (OSError, OverflowError, SystemError, ValueError)
"""What caio raises for the errors of `io_submit` and `io_setup`."""

Done = Callable[[StorageFailure | None], None]


class KernelSyncs:
    """See `conveyor.kernel.ports.FileSyncs`. The files are a `RealDisk`'s. Raises OSError where there is no queue."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        if linux_aio is None:
            raise OSError(errno.ENOSYS, "the system has no queue for syncs")
        try:
            self._context = linux_aio.Context(max_requests=_AT_ONCE)
        except _NOT_TAKEN as error:
            raise OSError(errno.EAGAIN, f"the system gives no queue for syncs: {error}") from error
        self._ended: list[tuple[Callable[[int], None], Done, int]] = []
        self._loop = loop
        loop.add_reader(self._context.fileno, self._collect)

    def begin(self, wanted: Sequence[tuple[File, Done]]) -> int:
        operations = []
        for file, done in wanted:
            assert isinstance(file, RealFile)
            try:
                descriptor, finish = file.begin_sync()
            except StorageFailure:
                break  # A thread will come to the same, and say so.
            operation = linux_aio.Operation.fdsync(descriptor)
            operation.set_callback(partial(self._note, finish, done))
            operations.append(operation)
        try:
            return self._context.submit(*operations)
        except _NOT_TAKEN as error:
            log.debug("syncs not taken count=%d: %s", len(operations), error)
            return 0

    def close(self) -> None:
        """Nothing may be under way."""
        self._loop.remove_reader(self._context.fileno)
        del self._context

    def _note(self, finish: Callable[[int], None], done: Done, result: int) -> None:
        """Called from C, where an exception would get lost."""
        self._ended.append((finish, done, error_number(result)))

    def _collect(self) -> None:
        with contextlib.suppress(BlockingIOError):
            self._context.poll()
        while self._context.process_events(_AT_ONCE) == _AT_ONCE:
            pass
        ended, self._ended = self._ended, []
        for finish, done, error in ended:
            try:
                finish(error)
            except StorageFailure as failure:
                done(failure)
            else:
                done(None)


def error_number(result: int) -> int:
    """Of what the kernel says, 0 or a negative errno, which caio passes on as an unsigned number of 64 bits."""
    return _UNSIGNED - result if result >> 63 else 0
