"""Runs kazoo beside an event loop.

kazoo keeps one thread per connection, which sends requests and receives replies and watch events. By default two more
threads call back, one for replies and one for events, and so lose the order in which the server has sent them. Here the
connection's thread hands every callback to the event loop itself. The loop runs them in that order, so that an event is
seen before every later reply.

That thread also keeps the session alive, even while the event loop hangs. `LoopWatch` prevents this: a broker whose
loop has not run for a whole session timeout loses its connection, and then its session.
"""

import asyncio
import contextlib
import logging
import socket
import ssl
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from kazoo.exceptions import ConnectionDropped
from kazoo.handlers import utils
from kazoo.handlers.threading import AsyncResult, KazooTimeoutError

from conveyor.adapters.zookeeper.zookeeper_tls import ZookeeperTls

log = logging.getLogger(__name__)

_RUNS_PER_TIMEOUT = 6


class LoopWatch:
    """Notes on the event loop, several times in each session timeout, that the loop runs. Any thread may ask."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._ran_s = time.monotonic()
        self._timeout_s = 0.0
        self._next: asyncio.TimerHandle | None = None

    def start(self, timeout_s: float) -> None:
        """Watch, with this session timeout from now on."""
        self.stop()
        self._timeout_s = timeout_s
        self._run()

    def stop(self) -> None:
        self._timeout_s = 0.0
        if self._next is not None:
            self._next.cancel()

    def check(self) -> None:
        """Raises ConnectionDropped if the loop hangs."""
        if self._timeout_s and time.monotonic() - self._ran_s > self._timeout_s:
            raise ConnectionDropped("the event loop of this process hangs")

    def _run(self) -> None:
        self._ran_s = time.monotonic()
        self._next = self._loop.call_later(self._timeout_s / _RUNS_PER_TIMEOUT, self._run)


class LoopHandler:
    """A handler for KazooClient. See `kazoo.interfaces.IHandler`."""

    name = "conveyor"
    timeout_exception = KazooTimeoutError
    sleep_func = staticmethod(time.sleep)

    def __init__(self, loop: asyncio.AbstractEventLoop, watch: LoopWatch, tls: ZookeeperTls | None) -> None:
        self.running = False
        self.calls_watches = True
        """Cleared when the session is closed."""
        self.stopping = threading.Lock()
        """Held while the client is stopped."""
        self.completion_queue = _CallAtOnce()
        self._loop = loop
        self._watch = watch
        self._tls = tls

    def start(self) -> None:
        self.running = True

    def stop(self) -> None:
        self.running = False

    def dispatch_callback(self, callback: Any) -> None:
        """Call a watch."""
        if self.calls_watches:
            self.post(callback.func, *callback.args)

    def post(self, function: Callable[..., object], *arguments: Any) -> None:
        """Call a function on the loop. Any thread may call this; after the loop has closed it does nothing."""
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(function, *arguments)

    def spawn(self, function: Callable[..., object], *arguments: Any, **named: Any) -> threading.Thread:
        def run() -> None:
            try:
                function(*arguments, **named)
            except Exception:
                log.debug("thread of kazoo ended", exc_info=True)

        thread = threading.Thread(target=run, name="zookeeper", daemon=True)
        thread.start()
        return thread

    def async_result(self) -> Any:
        return AsyncResult(self)

    def select(self, readers: Sequence[Any], *arguments: Any, **named: Any) -> Any:
        """Wait until there is something to read, such as a reply that TLS has decrypted with the previous one."""
        self._watch.check()
        decrypted = [reader for reader in readers if isinstance(reader, ssl.SSLSocket) and reader.pending()]
        return (decrypted, [], []) if decrypted else utils.selector_select(readers, *arguments, **named)

    def create_connection(
        self, address: tuple[str, int], hostname: str | None = None, timeout: float | None = None, **named: Any
    ) -> socket.socket:
        """Connect, with this handler's TLS. kazoo's own function leaves the socket open when the handshake fails."""
        self._watch.check()
        connection = socket.create_connection(address, timeout)
        try:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return self._tls.context.wrap_socket(connection, server_hostname=hostname) if self._tls else connection
        except BaseException:
            connection.close()
            raise

    def create_socket_pair(self) -> Any:
        return utils.create_socket_pair(socket)

    def event_object(self) -> threading.Event:
        return threading.Event()

    def lock_object(self) -> Any:
        return threading.Lock()

    def rlock_object(self) -> Any:
        return threading.RLock()


class _CallAtOnce:
    """Takes the place of the queue of completed requests: calls back in the thread that completes them."""

    def put(self, callback: Callable[[], object]) -> None:
        callback()


class KazooLog:
    """A logger for KazooClient, which logs every failed attempt to connect, and credentials at level DEBUG.

    reason: why the last connection or attempt has failed. session_timeout_ms: what the server has granted; kazoo tells
    it nowhere else. The connection's thread sets both.
    """

    def __init__(self) -> None:
        self.reason = "it has not answered yet"
        self.session_timeout_ms = 0

    def log(self, level: int, message: object, *arguments: Any) -> None:
        if str(message).startswith("Session created"):
            self.session_timeout_ms = arguments[2]

    def debug(self, message: object, *arguments: Any) -> None:
        """Requests and replies."""

    def info(self, message: object, *arguments: Any) -> None:
        """Transitions, which the session logs."""

    def warning(self, message: object, *arguments: Any) -> None:
        text = str(message) % arguments if arguments else str(message)
        if not text.startswith("Transition"):
            self.reason = text

    warn = warning

    def error(self, message: object, *arguments: Any) -> None:
        self.warning(message, *arguments)

    def exception(self, message: object, *arguments: Any) -> None:
        self.warning(message, *arguments)
        log.debug("kazoo: %s", self.reason, exc_info=True)  # noqa: LOG014 - kazoo calls this from a handler
