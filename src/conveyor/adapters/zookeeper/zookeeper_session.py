"""The session with a ZooKeeper: connects, reconnects forever, and sends requests while it is connected.

    LOST -> CONNECTED            the first session, and each new one
    CONNECTED -> SUSPENDED       the connection is lost; kazoo fires all watches
    SUSPENDED -> CONNECTED       connected again in time
    SUSPENDED -> LOST            the server has ended the session meanwhile

After each connect the session first sends `sync`: this server may be behind the last one, and kazoo tells the server of
a new session nothing about what the last session has seen. Only then does it become CONNECTED. A request that kazoo
queued under one connection and sent under another fails, because it may have passed that `sync`.

A session whose event loop hangs for a whole timeout ends; see `LoopWatch`.

At most 64 requests are unanswered at a time. kazoo detects a dead server only while it has nothing to send; a server
that stops to answer therefore stops the requests, and then loses its connection.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable
from typing import Any

from kazoo.client import KazooClient
from kazoo.exceptions import (
    BadVersionError,
    ConnectionClosedError,
    ConnectionLoss,
    InvalidACLError,
    KazooException,
    NoAuthError,
    NoChildrenForEphemeralsError,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
    OperationTimeoutError,
    SessionExpiredError,
)
from kazoo.protocol.states import KazooState, KeeperState
from kazoo.retry import KazooRetry
from kazoo.security import CREATOR_ALL_ACL

from conveyor.adapters.zookeeper.kazoo_bridge import KazooLog, LoopHandler, LoopWatch
from conveyor.adapters.zookeeper.zookeeper_address import ZookeeperAddress
from conveyor.adapters.zookeeper.zookeeper_tls import ZookeeperTls
from conveyor.kernel.errors import StorageFailure, StoreUnreachable
from conveyor.kernel.ports import SessionState
from conveyor.kernel.store_paths import parents

log = logging.getLogger(__name__)

CONFLICTS = (BadVersionError, NoChildrenForEphemeralsError, NodeExistsError, NoNodeError, NotEmptyError)
"""Answers about the state of nodes; every other error is a StorageFailure."""

_MEANINGS: dict[type[KazooException], str] = {
    NoAuthError: "the nodes belong to another user, or to the name of another certificate",
    InvalidACLError: "the ZooKeeper has not seen who this broker is, so that no node can belong to it",
}

_NO_ANSWER = (ConnectionClosedError, ConnectionLoss, OperationTimeoutError, SessionExpiredError)

_LONG_SESSION_MS = 2_500
_UNANSWERED_REQUESTS = 64
_LONGEST_REQUEST_S = 10.0
_EXPIRED_AFTER = 1.5
"""Session timeouts. The server ends a session at one of its ticks, and a timeout has at least two."""
_FIRST_PAUSE_S = 0.1
_LONGEST_PAUSE_S = 5.0

Send = Callable[[KazooClient], Any]
"""Sends a request; returns kazoo's AsyncResult."""


class ZookeeperSession:
    """See the module's docstring. Call `open` first. Every method raises StorageFailure.

    owns_nodes: only this user, or who shows a certificate of this name, has access to the nodes that it creates.
    """

    def __init__(
        self, address: ZookeeperAddress, session_timeout_ms: int, tls: ZookeeperTls | None, *, owns_nodes: bool
    ) -> None:
        self.state = SessionState.LOST
        self.listeners: list[Callable[[SessionState], None]] = []
        self._address = address
        self._prefix = f"metadata store: ZooKeeper at {address.servers}: "
        self._asked_timeout_ms = session_timeout_ms
        self._tls = tls
        self._owns_nodes = owns_nodes
        self._loop = asyncio.get_running_loop()
        self._log = KazooLog()
        self._watch = LoopWatch(self._loop)
        self._client = self._new_client()
        self._connection = 0
        """Rises with each change of kazoo's state, so that a request can tell its connection from a later one."""
        self._is_connected = asyncio.Event()
        self._patient_until = 0.0
        self._has_root = False
        self._unanswered = asyncio.Semaphore(_UNANSWERED_REQUESTS)
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_closing = False

    @property
    def timeout_ms(self) -> int:
        """The timeout that the server has granted."""
        return self._log.session_timeout_ms

    async def open(self, wait_s: float) -> None:
        """Connect, and create the root if it is missing. Raises StorageFailure if that takes longer."""
        self._patient_until = self._loop.time() + wait_s
        self._client.start_async()
        try:
            await self._wait_until_connected()
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        """End the session, if the server can be reached; otherwise it ends by itself after its timeout."""
        self._is_closing = True
        self._watch.stop()
        self._client.handler.calls_watches = False
        self._enter(SessionState.LOST)
        self._patient_until = 0.0
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.to_thread(_stop, self._client)

    async def request(self, send: Send) -> Any:
        """Send a request and return the answer. While disconnected, wait for a session timeout, but no longer.

        Raises StoreUnreachable, StorageFailure; the errors in CONFLICTS.
        """
        try:
            async with asyncio.timeout(_LONGEST_REQUEST_S):
                await self._wait_until_connected()
                async with self._unanswered:
                    await self._wait_until_connected()
                    return await self._send(send)
        except TimeoutError as error:
            raise self._unreachable(f"it has not answered for {_LONGEST_REQUEST_S:.0f} s") from error

    async def _send(self, send: Send) -> Any:
        connection, answered = self._connection, self._loop.create_future()

        def resolve(result: Any) -> None:
            if answered.done():
                return
            if connection != self._connection:
                answered.set_exception(self._unreachable(f"the connection was lost ({self._log.reason})"))
            elif isinstance(result.exception, Exception):
                answered.set_exception(self._error(result.exception))
            else:
                answered.set_result(result.value)

        handler = self._client.handler
        send(self._client).rawlink(lambda result: handler.post(resolve, result))
        return await answered

    async def _wait_until_connected(self) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(max(self._patient_until, self._loop.time())):
                await self._is_connected.wait()
        if self.state is not SessionState.CONNECTED:
            raise self._unreachable(f"no connection ({self._log.reason})")

    def _new_client(self) -> KazooClient:
        handler, credentials = LoopHandler(self._loop, self._watch, self._tls), self._address.credentials
        client = KazooClient(
            hosts=self._address.servers,
            timeout=self._asked_timeout_ms / 1000,
            handler=handler,
            auth_data=[("digest", credentials)] if credentials else None,
            default_acl=CREATOR_ALL_ACL if self._owns_nodes else None,
            connection_retry=KazooRetry(
                max_tries=-1, delay=_FIRST_PAUSE_S, max_delay=_LONGEST_PAUSE_S, sleep_func=handler.sleep_func
            ),
            logger=self._log,
        )
        client.add_listener(lambda state: handler.post(self._observe, client, state, client.client_state))
        return client

    def _observe(self, client: KazooClient, state: KazooState, keeper_state: KeeperState) -> None:
        """Follow a change of kazoo's state."""
        if self._is_closing or client is not self._client:
            return
        self._connection += 1
        if state == KazooState.CONNECTED:
            self._begin(self._become_connected(self._connection))
            return
        if keeper_state == KeeperState.EXPIRED_SESSION:
            self._enter(SessionState.LOST)
            return
        if self.state is SessionState.CONNECTED:
            self._enter(SessionState.SUSPENDED)
        if state == KazooState.LOST:  # kazoo gives up after a reply that it cannot read.
            self._begin(self._replace_client())

    def _begin(self, work: Any) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._loop.call_exception_handler({"message": "zookeeper session", "exception": error})

    async def _become_connected(self, connection: int) -> None:
        assert self.timeout_ms > 0, "kazoo no longer logs the granted session timeout"
        while connection == self._connection:
            try:
                await self._send(lambda client: client.sync_async(self._address.root or "/"))
                await self._create_root()
            except (StorageFailure, *CONFLICTS) as failure:
                self._log.reason = str(failure).removeprefix(self._prefix) or type(failure).__name__
                await asyncio.sleep(_FIRST_PAUSE_S)
            else:
                self._enter(SessionState.CONNECTED)
                return

    async def _create_root(self) -> None:
        """Create the root and its parents, once: if somebody deletes the root later, commits fail."""
        root = self._address.root
        if self._has_root or not root:
            return
        if await self._send(lambda client: client.exists_async(root)) is None:
            for path in (*parents(root), root):
                await self._create(path)
        elif self._owns_nodes:
            await self._warn_of_open_nodes(root)
        self._has_root = True

    async def _warn_of_open_nodes(self, root: str) -> None:
        acl, _ = await self._send(lambda client: client.get_acls_async(root))
        if any(entry.id.scheme == "world" for entry in acl):
            log.warning(
                "every client of the ZooKeeper can read the secret of the cluster: its nodes in %s were created before"
                " they had an owner; see docs/cluster.md#zookeeper",
                root,
            )

    async def _create(self, path: str) -> None:
        with contextlib.suppress(NodeExistsError):
            await self._send(lambda client: client.create_async(path))

    async def _replace_client(self) -> None:
        """Begin a new session, when the server has certainly ended the old one."""
        await asyncio.to_thread(_stop, self._client)
        await asyncio.sleep(max(_FIRST_PAUSE_S, _EXPIRED_AFTER * self.timeout_ms / 1000))
        self._enter(SessionState.LOST)
        self._client = self._new_client()
        self._client.start_async()

    def _enter(self, state: SessionState) -> None:
        if state is self.state:
            return
        if self.state is SessionState.CONNECTED:
            self._patient_until = self._loop.time() + self.timeout_ms / 1000
        self.state = state
        if state is SessionState.CONNECTED:
            self._watch.start(self.timeout_ms / 1000)
            self._is_connected.set()
        else:
            self._is_connected.clear()
        if self._is_closing:
            return
        self._log_transition()
        for changed in self.listeners:
            changed(state)

    def _log_transition(self) -> None:
        if self.state is not SessionState.CONNECTED:
            log.warning("zookeeper session state=%s reason=%s", self.state.name.lower(), self._log.reason)
            return
        log.info("zookeeper session state=connected address=%s timeout_ms=%d", self._address, self.timeout_ms)
        if self.timeout_ms > max(_LONG_SESSION_MS, self._asked_timeout_ms):
            log.warning(
                "zookeeper granted a session timeout of %d ms, %d ms were asked for: a broker that dies is noticed that"
                " late. Set tickTime=500 in the servers' zoo.cfg",
                self.timeout_ms,
                self._asked_timeout_ms,
            )

    def _error(self, error: Exception) -> Exception:
        if isinstance(error, (StorageFailure, *CONFLICTS)):
            return error
        reason = repr(error)
        if isinstance(error, KazooException):
            meaning = _MEANINGS.get(type(error), "")
            reason = f"{type(error).__name__}: {meaning}" if meaning else f"{type(error).__name__} {error}".strip()
        return self._unreachable(reason) if isinstance(error, _NO_ANSWER) else StorageFailure(self._prefix + reason)

    def _unreachable(self, reason: str) -> StoreUnreachable:
        return StoreUnreachable(self._prefix + reason)


def _stop(client: KazooClient) -> None:
    """Blocks while the client ends its session. Two threads may call this: `close` stops a replaced client, too."""
    with client.handler.stopping, contextlib.suppress(KazooException):
        client.stop()
        client.close()
