"""`conveyor serve --workers N`: run the brokers of one machine until SIGTERM or Ctrl-C."""

import asyncio
import signal
import sys

from conveyor.cli.terminal.process_age import process_age_ms
from conveyor.kernel.errors import ConveyorError, StartupError
from conveyor.server.workers.supervisor import Supervisor
from conveyor.server.workers.worker_process import WorkerProcess
from conveyor.settings.tree import Settings

_WORKER = (sys.executable, "-m", "conveyor.cli.worker")


def supervise(settings: Settings) -> None:
    """Run the workers. Raises SettingsError, StartupError; StorageFailure if their metadata can no longer be stored."""
    failure = asyncio.run(_supervise(settings))
    if failure is not None:
        raise SystemExit(f"conveyor: stopped by a bug: {failure!r}")


async def _supervise(settings: Settings) -> BaseException | None:
    supervisor = Supervisor(settings, _WORKER)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, supervisor.stopping.set)
    try:
        await supervisor.start()
        if not supervisor.stopping.is_set():
            print(_ready(supervisor.workers), flush=True)
        await supervisor.stopping.wait()
    finally:
        problems = await supervisor.stop()
    if isinstance(supervisor.failure, ConveyorError):
        raise supervisor.failure
    if problems and supervisor.failure is None:
        raise StartupError("; ".join(problems))
    return supervisor.failure


def _ready(workers: list[WorkerProcess]) -> str:
    """Return the line that a single broker prints, with all addresses, and a line for each worker."""
    networks = [worker.settings.network for worker in workers]
    kafka = ",".join(network.kafka for network in networks)
    http = ",".join(_url(network.http) for network in networks)
    lines = [f"ready kafka={kafka} http={http} workers={len(workers)} startup_ms={process_age_ms()}"]
    lines += [
        f"  worker {worker.number}: kafka={worker.settings.network.kafka} http={_url(worker.settings.network.http)}"
        f" data={worker.settings.broker.data_dir} pid={worker.pid}"
        for worker in workers
    ]
    return "\n".join(lines)


def _url(http: str) -> str:
    """Return the URL of a listener as its setting gives it."""
    return http if "://" in http else f"http://{http}"
