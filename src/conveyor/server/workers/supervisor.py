"""Runs the workers of one machine, and owns their metadata.

    lock the data directory -> open and serve the store -> start all workers -> ready -> start again each that ends
    -> stopping -> SIGTERM to all workers -> they have ended -> close the store

The workers notice the end of this process by the end of their connection to its store, and end, too. Supervisors that
start then wait for them. A worker that ends is started again at once; if it ends soon again, after a pause that grows
to a few seconds.
"""

import asyncio
import contextlib
import logging
import secrets
import shutil
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from conveyor.adapters.sqlite_tree import SqliteTree
from conveyor.adapters.store_socket.store_server import StoreServer
from conveyor.broker.timed_signal import Pauses
from conveyor.kernel.errors import ConveyorError, StartupError
from conveyor.server.data_directory import DataDirectory, holder_of
from conveyor.server.metadata_stores import supervised_address
from conveyor.server.workers.worker_layout import (
    check_all_are_started,
    check_workers,
    socket_path,
    worker_directory,
    worker_settings,
)
from conveyor.server.workers.worker_process import WorkerProcess, ending_of
from conveyor.settings.tree import Settings

log = logging.getLogger(__name__)

_CONNECTIONS_PER_WORKER = 4
_KEY_BYTES = 32
_STEADY_AFTER_S = 30.0
"""A worker that has run for so long is started again without a pause."""
_STOP_MARGIN_S = 20.0
"""A worker stops within `network.drain_timeout_ms` and this time, or is killed."""
_PREDECESSORS_LIMIT_S = 30.0
_PREDECESSORS_CHECK_S = 0.05


class Supervisor:
    """See the module's docstring. Call `start`, then `stop` when `stopping` is set; `stop` also after a failed start.

    command: starts one worker; see `WorkerProcess`. failure: why the supervisor has to stop, if it was not asked to.
    """

    def __init__(self, settings: Settings, command: Sequence[str]) -> None:
        check_workers(settings)
        self.stopping = asyncio.Event()
        self.failure: BaseException | None = None
        self.workers: list[WorkerProcess] = []
        self.tree: SqliteTree | None = None
        self._settings = settings
        self._command = command
        self._data_dir = Path(settings.broker.data_dir)
        self._stack = contextlib.AsyncExitStack()
        self._watching: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Return when all workers accept requests. Raises StartupError, StorageFailure."""
        metadata = await self._serve_store()
        numbers = range(1, self._settings.broker.workers + 1)
        await self._wait_for_predecessors(numbers)
        self.workers = [
            WorkerProcess(self._command, worker_settings(self._settings, number, metadata)) for number in numbers
        ]
        await self._start_all()
        self._watching = [asyncio.create_task(self._keep_running(worker)) for worker in self.workers]
        for task in self._watching:
            task.add_done_callback(self._stopped_watching)

    async def stop(self) -> list[str]:
        """Stop all workers, then the store. Returns what went wrong, a sentence each."""
        for task in self._watching:
            task.cancel()
        await asyncio.gather(*self._watching, return_exceptions=True)
        problems = await asyncio.gather(*map(self._stop_worker, self.workers))
        await self._stack.aclose()
        return [problem for problem in problems if problem]

    async def _serve_store(self) -> str:
        """Return the metadata setting of the workers."""
        directory = DataDirectory(self._data_dir)
        self._stack.callback(directory.release)
        path = directory.check_workers_metadata()
        check_all_are_started(self._data_dir, self._settings.broker.workers)
        self.tree = tree = SqliteTree(path, self._failed)
        self._stack.push_async_callback(tree.close)
        key, socket = secrets.token_hex(_KEY_BYTES), socket_path(self._data_dir)
        if socket.parent != self._data_dir.absolute():
            self._stack.callback(shutil.rmtree, socket.parent, ignore_errors=True)
        server = StoreServer(
            tree,
            key=key,
            session_timeout_ms=self._settings.broker.worker_session_timeout_ms,
            max_clients=_CONNECTIONS_PER_WORKER * self._settings.broker.workers,
            failed=self._failed,
        )
        try:
            await server.start(socket)
        except OSError as error:
            raise StartupError(f"cannot listen at {socket}: {error}") from error
        self._stack.push_async_callback(server.stop)
        return supervised_address(key, socket)

    async def _wait_for_predecessors(self, numbers: Sequence[int]) -> None:
        """Wait until the workers of a supervisor that was killed have ended. Raises StartupError."""
        loop = asyncio.get_running_loop()
        until_s = loop.time() + _PREDECESSORS_LIMIT_S
        for number in numbers:
            path, is_logged = worker_directory(self._data_dir, number), False
            while (holder := holder_of(path)) and not self.stopping.is_set():
                if loop.time() > until_s:
                    raise StartupError(f"data directory {path} is in use by another broker (process {holder}): stop it")
                if not is_logged:
                    log.info("waiting for the end of an earlier worker node=%d pid=%s", number, holder)
                is_logged = True
                await asyncio.sleep(_PREDECESSORS_CHECK_S)

    async def _start_all(self) -> None:
        """Start all workers at once. Raises the first failure, and leaves the others as they are."""
        stopping: asyncio.Task[Any] = asyncio.create_task(self.stopping.wait())
        starting: set[asyncio.Task[Any]] = {asyncio.create_task(worker.start()) for worker in self.workers}
        tasks = {stopping, *starting}
        try:
            while starting and not stopping.done():
                done, _ = await asyncio.wait({stopping, *starting}, return_when=asyncio.FIRST_COMPLETED)
                for task in done & starting:
                    starting.remove(task)
                    task.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _keep_running(self, worker: WorkerProcess) -> None:
        """Start a worker again whenever it ends."""
        loop, pauses = asyncio.get_running_loop(), Pauses()
        while True:
            began_s = loop.time()
            code = await worker.wait()
            log.warning("worker %d has %s pid=%d", worker.number, ending_of(code), worker.pid)
            if loop.time() - began_s > _STEADY_AFTER_S:
                pauses.reset()
            while True:
                await asyncio.sleep(pauses.next_ms() / 1000)
                try:
                    await worker.start()
                except StartupError as error:
                    log.warning("worker not started reason=%s", error)
                else:
                    log.info("worker %d is back pid=%d", worker.number, worker.pid)
                    break

    async def _stop_worker(self, worker: WorkerProcess) -> str:
        """Stop a worker, and return what went wrong."""
        limit_s = self._settings.network.drain_timeout_ms / 1000 + _STOP_MARGIN_S
        worker.send_signal(signal.SIGTERM)
        try:
            async with asyncio.timeout(limit_s):
                code = await worker.wait()
        except TimeoutError:
            worker.send_signal(signal.SIGKILL)
            await worker.wait()
            return f"worker {worker.number} has not stopped within {limit_s:.0f} s, and was killed"
        is_stopped = code in (0, -signal.SIGTERM)  # The signal ends a worker that has just begun to start.
        return "" if is_stopped else f"worker {worker.number} has {ending_of(code)}"

    def _stopped_watching(self, task: "asyncio.Task[None]") -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self._failed(error)

    def _failed(self, error: BaseException) -> None:
        """Stop because of a bug, or because the store has failed."""
        if self.failure is not None:
            return
        if isinstance(error, ConveyorError):
            log.critical("workers stop: %s", error)
        else:
            log.critical("workers stop: unexpected error", exc_info=error)
        self.failure = error
        self.stopping.set()
