"""A real broker on real TCP, inside the test's process."""

import asyncio
import contextlib
import tempfile
import threading
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import Self

import uvloop

from conveyor.server.server import Server
from conveyor.settings.tree import from_sources
from conveyor.testing.broker_addresses import Addressed
from conveyor.testing.broker_clock import BrokerClock, EmbeddedClock, RunningServer
from conveyor.testing.broker_security import BrokerSecurity, Secured
from conveyor.testing.held_port import HeldPort, hold_listeners
from conveyor.testing.manual_clock import DEFAULT_START_MS
from conveyor.testing.memory_disk import MemoryDisk
from conveyor.testing.memory_store import MemoryStore
from conveyor.testing.settling_loop import SettlingLoop

_WITH_MANUAL_CLOCK = {
    "topics.message_timestamp_type": "LogAppendTime",
    "topics.message_timestamp_after_max_ms": (1 << 63) - 1,
}
"""The broker stamps the records, because the clients' clocks show another time. A topic can still choose CreateTime."""


class Broker(Secured, Addressed):
    """Start with `with Broker() as broker:` (or `async with`), then connect any client to `bootstrap_servers`.

    data_dir: the data directory; by default a temporary directory that is removed with the broker.
    memory: keep all data in memory; the attribute `disk` is then the `MemoryDisk`, which can inject faults.
    disk: a `MemoryDisk` of the test, which implies `memory`.
    manual_clock: time stands still until `broker.clock.advance(seconds=...)`. It starts at a fixed time in November
    2023, or at the given time, which needs a time zone. Records get the broker's time; clients still measure their
    timeouts with real clocks.
    settings: broker settings by name: {"topics.segment_bytes": 1 << 20}.
    security: clients connect by TLS and log in: Kafka clients by SCRAM or PLAIN, HTTP clients by Basic, as `admin_user`
    with `admin_password`, who may do everything; others may do only what an ACL allows. The authority of the
    certificate is in `ca_file` (PEM).
    Raises ValueError for a data directory together with `memory` or `disk`.
    The broker runs on its own thread, so tests may be synchronous or not. `stop` and `start` restart it with the same
    data and the same ports.
    """

    def __init__(
        self,
        data_dir: Path | str | None = None,
        *,
        memory: bool = False,
        manual_clock: bool | datetime = False,
        settings: Mapping[str, object] | None = None,
        disk: MemoryDisk | None = None,
        security: bool = False,
    ) -> None:
        if data_dir is not None and (memory or disk is not None):
            raise ValueError("a broker keeps its data in a directory or in memory: omit data_dir, or memory and disk")
        self._manual_clock = EmbeddedClock(_start_ms(manual_clock)) if manual_clock else None
        self._clock = None if self._manual_clock is None else BrokerClock(self._manual_clock, self._running)
        self.disk = disk if disk is not None else MemoryDisk() if memory else None
        self.security = BrokerSecurity() if security else None
        self._settings: dict[str, object] = {**(_WITH_MANUAL_CLOCK if manual_clock else {}), **(settings or {})}
        if self.security is not None:
            self._settings = self.security.settings | self._settings
        self._ports: dict[str, HeldPort] = {}
        self._temporary = None
        if data_dir is None and self.disk is None:
            self._temporary = tempfile.TemporaryDirectory(prefix="conveyor-")
            data_dir = self._temporary.name
        if data_dir is not None:
            self._settings["broker.data_dir"] = str(data_dir)
        self._storage = Path(data_dir or ".") if self.disk is None else (self.disk, MemoryStore())
        self._thread: threading.Thread | None = None
        self._started = threading.Event()
        self._failure: BaseException | None = None

    @property
    def clock(self) -> BrokerClock:
        """The manual clock. Raises ValueError if the broker has none."""
        if self._clock is None:
            raise ValueError("this broker uses the system clock: create it with Broker(manual_clock=True)")
        return self._clock

    def start(self) -> Self:
        """Start, and return once requests are accepted. Raises the failure that prevented the start, ValueError if
        the broker runs.
        """
        if self._thread is not None and self._thread.is_alive():
            raise ValueError("this broker is already running: stop it first")
        self._ports |= hold_listeners(self._settings)
        addresses = {name: port.address for name, port in self._ports.items()}
        self._settings |= addresses if self.security is None else self.security.listeners(addresses)
        self._started.clear()
        self._thread = threading.Thread(target=self._run, name="conveyor-broker", daemon=True)
        self._thread.start()
        self._started.wait()
        failure = self._take_failure()
        if failure is not None:
            self._thread.join()
            raise failure
        listeners = self._started_server().listeners
        self._settings |= {"network.kafka": str(listeners), "network.http": str(listeners.http)}
        return self

    def stop(self) -> None:
        """Stop cleanly. Raises the failure that had stopped the broker before, if there was one."""
        if self._thread is None:
            return
        with contextlib.suppress(RuntimeError):  # The loop is closed if a bug has stopped the broker.
            self._loop.call_soon_threadsafe(self._started_server().stopping.set)
        self._thread.join()
        self._thread = None
        failure = self._take_failure()
        if failure is not None:
            raise failure

    def _running(self) -> RunningServer | None:
        server = self._started_server()
        if self._thread is None or not self._thread.is_alive():
            return None
        assert isinstance(self._loop, SettlingLoop), "a broker with a manual clock has a loop that settles"
        return RunningServer(server, self._loop)

    def _take_failure(self) -> BaseException | None:
        """Return the failure of the broker's thread, once."""
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
        if self.security is not None:
            self.security.remove()
        if self._temporary is not None:
            self._temporary.cleanup()
        for port in self._ports.values():
            port.close()

    def _run(self) -> None:
        loop_factory = uvloop.new_event_loop if self._manual_clock is None else SettlingLoop
        with asyncio.Runner(loop_factory=loop_factory) as runner:
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
        if self.security is not None:
            await self.security.add_admin(server.broker)
        self._server = server
        self._started.set()
        await server.stopping.wait()
        await server.stop()
        if self._manual_clock is not None:
            self._manual_clock.forget_callbacks()
        if server.failure is not None:
            raise server.failure


def _start_ms(manual_clock: bool | datetime) -> int:
    if not isinstance(manual_clock, datetime):
        return DEFAULT_START_MS
    if manual_clock.tzinfo is None:
        raise ValueError(f"a manual clock that begins at {manual_clock} needs a time zone, for example tzinfo=UTC")
    return round(manual_clock.timestamp() * 1000)
