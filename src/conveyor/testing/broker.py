"""A real broker on real TCP, inside the test's process."""

import asyncio
import tempfile
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

import uvloop

from conveyor.kernel.settings import from_sources
from conveyor.server.server import Server
from conveyor.testing.manual_clock import ManualClock
from conveyor.testing.memory_disk import MemoryDisk
from conveyor.testing.memory_store import MemoryStore

_ANY_PORT = {"network.kafka": "127.0.0.1:0", "network.http": "127.0.0.1:0"}
_CLIENTS_MAY_BE_AHEAD = {"topics.message_timestamp_after_max_ms": (1 << 63) - 1}
"""With a manual clock: what stamps the records is the clients' clock, which does not stand still."""


class BrokerClock:
    """Moves the broker's manual clock from the test's thread."""

    def __init__(self, clock: ManualClock, loop: Callable[[], asyncio.AbstractEventLoop]) -> None:
        self._clock = clock
        self._loop = loop

    def now_ms(self) -> int:
        return self._clock.now_ms()

    def advance(self, *, seconds: float = 0, ms: int = 0) -> None:
        """Move on; what falls due has happened when this returns."""

        loop = self._loop()

        async def move() -> None:
            self._clock.advance(seconds=seconds, ms=ms)

        asyncio.run_coroutine_threadsafe(move(), loop).result()


class Broker:
    """Start with `with Broker() as broker:` (or `async with`), then connect any client to `bootstrap_servers`.

    data_dir: where to keep data; by default a temporary directory that goes with the broker.
    memory: keep everything in memory instead; `disk` then is the `MemoryDisk`, which can be made to fail.
    manual_clock: time stands still until `broker.clock.advance(seconds=...)`.
    settings: any of the broker's, by name: {"topics.segment_bytes": 1 << 20}.

    The broker runs on a thread of its own, so tests may be synchronous or not. `stop` and `start` restart it on the
    same data and the same ports.
    """

    def __init__(
        self,
        data_dir: Path | str | None = None,
        *,
        memory: bool = False,
        manual_clock: bool = False,
        settings: Mapping[str, object] | None = None,
        disk: MemoryDisk | None = None,
    ) -> None:
        self.disk = disk if disk is not None else MemoryDisk() if memory else None
        self._settings = {**_ANY_PORT, **(_CLIENTS_MAY_BE_AHEAD if manual_clock else {}), **(settings or {})}
        self._temporary = None
        if data_dir is None and self.disk is None:
            self._temporary = tempfile.TemporaryDirectory(prefix="conveyor-")
            data_dir = self._temporary.name
        if data_dir is not None:
            self._settings["broker.data_dir"] = str(data_dir)
        self._storage = Path(data_dir or ".") if self.disk is None else (self.disk, MemoryStore())
        self._manual_clock = ManualClock() if manual_clock else None
        self._server: Server | None = None
        self._thread: threading.Thread | None = None
        self._started = threading.Event()
        self._failure: BaseException | None = None

    @property
    def bootstrap_servers(self) -> str:
        """`host:port` for Kafka clients. Raises ValueError before the first start."""
        return str(self._started_server().kafka_address)

    @property
    def http_url(self) -> str:
        """`http://host:port`, no slash at the end. Raises ValueError before the first start."""
        return f"http://{self._started_server().http_address}"

    @property
    def clock(self) -> BrokerClock:
        """The manual clock. Raises ValueError if the broker was made without one."""
        if self._manual_clock is None:
            raise ValueError("this broker runs on the machine's clock: make it with Broker(manual_clock=True)")
        return BrokerClock(self._manual_clock, self._started_loop)

    def start(self) -> Self:
        """Returns when requests are accepted. Raises what kept the broker from starting."""
        self._started.clear()
        self._thread = threading.Thread(target=self._run, name="conveyor-broker", daemon=True)
        self._thread.start()
        self._started.wait()
        failure = self._take_failure()
        if failure is not None:
            self._thread.join()
            raise failure
        addresses = self._started_server().kafka_address, self._started_server().http_address
        self._settings |= {"network.kafka": str(addresses[0]), "network.http": str(addresses[1])}
        return self

    def stop(self) -> None:
        """Stop cleanly. Raises what stopped the broker before, if something did."""
        if self._thread is None:
            return
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._started_server().stopping.set)
        self._thread.join()
        self._thread = None
        failure = self._take_failure()
        if failure is not None:
            raise failure

    def _started_server(self) -> Server:
        if self._server is None:
            raise ValueError("this broker has not been started: start it first, with `with Broker() as broker:`")
        return self._server

    def _started_loop(self) -> asyncio.AbstractEventLoop:
        self._started_server()
        return self._loop

    def _take_failure(self) -> BaseException | None:
        """What went wrong on the broker's thread, told once."""
        failure, self._failure = self._failure, None
        return failure

    def __enter__(self) -> Self:
        try:
            return self.start()
        except BaseException:
            self._clean_up()
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.stop()
        finally:
            self._clean_up()

    async def __aenter__(self) -> Self:
        return await asyncio.to_thread(self.__enter__)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await asyncio.to_thread(self.__exit__, kind, error, trace)

    def _clean_up(self) -> None:
        if self._temporary is not None:
            self._temporary.cleanup()

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            try:
                runner.run(self._serve())
            except BaseException as failure:  # noqa: BLE001 - handed to the test's thread, which raises it
                self._failure = failure
            finally:
                self._started.set()

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        server = Server(from_sources(self._settings), self._storage)
        await server.start(self._manual_clock)
        self._server = server
        self._started.set()
        await server.stopping.wait()
        await server.stop()
        if server.failure is not None:
            raise server.failure
