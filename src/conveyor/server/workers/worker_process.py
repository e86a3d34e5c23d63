"""One worker: a broker in a process of its own, which its supervisor starts, and starts again when it has died."""

import asyncio
import contextlib
import signal
from asyncio.subprocess import PIPE, Process
from collections.abc import Sequence
from dataclasses import replace

import msgspec

from conveyor.kernel.errors import StartupError
from conveyor.server.workers.worker_layout import flat_settings
from conveyor.server.workers.worker_reports import WorkerReady, decode_report, encode_settings
from conveyor.settings.tree import Settings

_LAST_WORD_LIMIT_S = 5.0
_READY_LIMIT_S = 1800.0
"""A worker that is not ready after this time hangs, and is killed. Recovery of large logs takes minutes, not this."""


class WorkerProcess:
    """command: starts a worker that takes its settings from its standard input; see `worker_reports`.

    The worker keeps the addresses of its first start, also those that the system chose. It has a session of its own, so
    that a Ctrl-C in the terminal reaches only the supervisor.
    """

    def __init__(self, command: Sequence[str], settings: Settings) -> None:
        self.settings = settings
        self.number = settings.broker.node_id
        self._command = (*command, str(self.number))
        self._process: Process | None = None

    @property
    def pid(self) -> int:
        assert self._process is not None, "start it first"
        return self._process.pid

    async def start(self) -> WorkerReady:
        """Return when the worker accepts requests. Raises StartupError; then the process has ended."""
        try:
            self._process = process = await asyncio.create_subprocess_exec(
                *self._command, stdin=PIPE, stdout=PIPE, start_new_session=True
            )
        except OSError as error:
            raise StartupError(f"worker {self.number} cannot be started: {error}") from error
        assert process.stdin is not None
        assert process.stdout is not None
        with contextlib.suppress(ConnectionError):  # Its end shows below.
            process.stdin.write(encode_settings(flat_settings(self.settings)))
            await process.stdin.drain()
        process.stdin.close()
        try:
            async with asyncio.timeout(_READY_LIMIT_S):
                report = decode_report(await process.stdout.readline())
        except TimeoutError as error:
            self.send_signal(signal.SIGKILL)
            await process.wait()
            raise StartupError(
                f"worker {self.number} was not ready within {_READY_LIMIT_S:.0f} s, and was killed"
            ) from error
        except (msgspec.MsgspecError, ValueError) as error:
            ending = ending_of(await self._end(process))
            raise StartupError(f"worker {self.number} has {ending} before it was ready") from error
        if not isinstance(report, WorkerReady):
            await self._end(process)
            raise StartupError(f"worker {self.number}: {report.reason}")
        network = replace(self.settings.network, kafka=report.kafka, http=report.http)
        self.settings = replace(self.settings, network=network)
        return report

    async def wait(self) -> int:
        """Return the exit code, when the process has ended; 0 if none was started."""
        return 0 if self._process is None else await self._process.wait()

    async def _end(self, process: Process) -> int:
        """Return the exit code of a process that has said its last word. One that does not end by itself is killed."""
        try:
            async with asyncio.timeout(_LAST_WORD_LIMIT_S):
                return await process.wait()
        except TimeoutError:
            self.send_signal(signal.SIGKILL)
            return await process.wait()

    def send_signal(self, number: signal.Signals) -> None:
        """Send a signal to the process, if it runs."""
        if self._process is not None and self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(number)


def ending_of(exit_code: int) -> str:
    """Say how a process has ended."""
    return f"ended with exit code {exit_code}" if exit_code >= 0 else f"been ended by signal {-exit_code}"
