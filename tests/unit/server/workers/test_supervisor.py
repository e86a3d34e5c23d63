"""The supervisor and its processes. The workers here are small scripts, which start in no time; tests/cluster has real
ones.
"""

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from conveyor.adapters.store_socket.socket_store import SocketStore
from conveyor.kernel.errors import StartupError, StorageFailure
from conveyor.kernel.ports import PutNode
from conveyor.server.data_directory import DataDirectory
from conveyor.server.workers import supervisor as supervisor_module
from conveyor.server.workers import worker_process as worker_process_module
from conveyor.server.workers.supervisor import Supervisor
from conveyor.server.workers.worker_process import WorkerProcess
from conveyor.settings.tree import SUPERVISED, from_sources

READY = """
import json, sys, signal
settings = json.load(sys.stdin)
kafka, http = settings["network.kafka"], settings["network.http"]
kafka = kafka.replace(":0", ":700" + sys.argv[1])
print(json.dumps({"type": "ready", "kafka": kafka, "http": http}), flush=True)
"""
SERVES = READY + "signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))\nsignal.pause()"
IGNORES_SIGTERM = "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)" + READY + "signal.pause()"
REFUSES = """
import sys
sys.stdin.read()
print('{"type": "refused", "reason": "port 9 is in use"}', flush=True)
sys.exit(1)
"""
FAILS = "import sys; sys.exit(3)"
HANGS = "import signal; signal.pause()"

Make = Callable[[str], Supervisor]


@pytest.fixture
async def make(tmp_path: Path) -> AsyncIterator[Make]:
    """Makes a supervisor whose workers run a script."""
    made = []

    def make(script: str) -> Supervisor:
        settings = from_sources(
            {
                "broker.workers": 2,
                "broker.data_dir": str(tmp_path / "data"),
                "network.kafka": "127.0.0.1:0",
                "network.drain_timeout_ms": 0,
            }
        )
        made.append(Supervisor(settings, (sys.executable, "-I", "-S", "-c", script)))
        return made[-1]

    yield make
    for supervisor in made:
        await supervisor.stop()


async def until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110 - the end of a process calls nobody here
        await asyncio.sleep(0.01)


async def until_replaced(worker: WorkerProcess, pid: int) -> None:
    await until(lambda: worker.pid != pid)


async def raises_startup_error(work: Awaitable[None]) -> str:
    with pytest.raises(StartupError) as error:
        await work
    return str(error.value)


async def test_a_worker_that_ends_is_started_again_with_its_addresses(make: Make) -> None:
    supervisor = make(SERVES)
    await supervisor.start()
    worker = supervisor.workers[1]
    assert worker.settings.network.kafka == "127.0.0.1:7002"
    for _ in range(2):
        before = worker.pid
        os.kill(before, signal.SIGKILL)
        await until_replaced(worker, before)
    assert worker.settings.network.kafka == "127.0.0.1:7002"
    assert await supervisor.stop() == []


async def test_the_reason_of_a_worker_that_cannot_start_is_the_supervisors(make: Make) -> None:
    message = await raises_startup_error(make(REFUSES).start())
    assert message in ("worker 1: port 9 is in use", "worker 2: port 9 is in use")


async def test_a_worker_that_ends_before_it_is_ready_is_named(make: Make) -> None:
    message = await raises_startup_error(make(FAILS).start())
    assert "has ended with exit code 3 before it was ready" in message


async def test_a_worker_that_is_never_ready_is_killed(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_process_module, "_READY_LIMIT_S", 0.2)
    supervisor = make(HANGS)
    assert "was not ready within 0 s, and was killed" in await raises_startup_error(supervisor.start())
    await supervisor.stop()  # The start has left the other worker running.
    assert -signal.SIGKILL in [await worker.wait() for worker in supervisor.workers]


async def test_a_start_can_be_interrupted(make: Make) -> None:
    supervisor = make(HANGS)
    starting = asyncio.ensure_future(supervisor.start())
    await until(lambda: bool(supervisor.workers))
    supervisor.stopping.set()
    await starting
    assert await supervisor.stop() == []


async def test_a_worker_that_does_not_stop_is_killed(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor_module, "_STOP_MARGIN_S", 0.05)
    supervisor = make(IGNORES_SIGTERM)
    await supervisor.start()
    assert await supervisor.stop() == [
        f"worker {number} has not stopped within 0 s, and was killed" for number in (1, 2)
    ]


async def test_a_failure_of_the_store_stops_the_supervisor(make: Make) -> None:
    supervisor = make(SERVES)
    await supervisor.start()
    key, _, path = supervisor.workers[0].settings.broker.metadata.removeprefix(SUPERVISED).partition("@")
    store = SocketStore(Path(path), key, lambda _: None)
    await store.open()
    assert await store.commit(PutNode("/a", b"")) == (1,)
    assert supervisor.tree is not None
    supervisor.tree._connection.execute("PRAGMA query_only=1")
    with pytest.raises(StorageFailure, match="readonly"):
        await store.commit(PutNode("/a", b""))
    await supervisor.stopping.wait()
    assert isinstance(supervisor.failure, StorageFailure)
    await store.close()


async def test_the_supervisor_waits_for_workers_of_an_earlier_one(make: Make, tmp_path: Path) -> None:
    earlier = DataDirectory(tmp_path / "data" / "worker-2")
    supervisor = make(SERVES)
    starting = asyncio.ensure_future(supervisor.start())
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(asyncio.shield(starting), 0.1)
    assert not supervisor.workers
    earlier.release()
    await starting


async def test_an_earlier_worker_that_does_not_end_is_named(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor_module, "_PREDECESSORS_LIMIT_S", 0.0)
    earlier = DataDirectory(tmp_path / "data" / "worker-1")
    message = await raises_startup_error(make(SERVES).start())
    assert message.endswith(f"worker-1 is in use by another broker (process {os.getpid()}): stop it")
    earlier.release()


async def test_two_supervisors_do_not_share_a_directory(make: Make) -> None:
    await make(SERVES).start()
    assert "is in use by another broker" in await raises_startup_error(make(SERVES).start())
