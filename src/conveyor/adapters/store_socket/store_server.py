"""Serves a metadata store to other processes of this machine, over a Unix socket that only this user can open.

    a process connects -> greets with the owner's key -> a session -> calls, one after another -> the session ends

A connection is a session: when it ends, so does the session, with its ephemeral nodes and its watches. The session also
ends if nothing was heard from the client for a session timeout; a client sends keep-alives when it has nothing else to
send. A pause of this process itself is not the clients' silence. A client that has not greeted within a session
timeout is disconnected, whatever it sends, and takes no place of those that have.

A client that connects again names its last session. That session has ended before the new one begins, so a client never
finds an ephemeral node of its own.
"""

import asyncio
import hmac
import logging
import os
import socket
from collections.abc import Callable
from pathlib import Path

from conveyor.adapters.sqlite_store import SqliteSession
from conveyor.adapters.sqlite_tree import SqliteTree
from conveyor.adapters.store_socket import store_calls as calls
from conveyor.adapters.store_socket.served_client import ServedClient
from conveyor.kernel.access.refusal_log import RefusalLog

log = logging.getLogger(__name__)

_CHECKS_PER_TIMEOUT = 8
_PAUSED_AFTER_CHECKS = 2
"""A check that is late by this many intervals shows that this process was paused."""
_PRIVATE = 0o177


class StoreServer:
    """See the module's docstring. Call `start`, and `stop` at the end; the caller closes the tree.

    key: what clients must know. failed: called with a bug.
    max_clients: connections at a time that have greeted; more are refused. As many may not have done so yet; another
    one ends the oldest of them, so that silent connections keep no client out.
    """

    def __init__(
        self,
        tree: SqliteTree,
        *,
        key: str,
        session_timeout_ms: int,
        max_clients: int,
        failed: Callable[[BaseException], None],
    ) -> None:
        self._tree = tree
        self._key = key
        self._session_timeout_ms = session_timeout_ms
        self._max_clients = max_clients
        self._failed = failed
        self._clients: dict[ServedClient, asyncio.Task[None]] = {}
        self._server: asyncio.Server | None = None
        self._path: Path | None = None
        self._check: asyncio.TimerHandle | None = None
        self._check_due_s = 0.0
        self._refusals = RefusalLog()

    async def start(self, path: Path) -> None:
        """Listen at a path. A socket that an earlier process has left there is replaced. Raises OSError."""
        bound, self._path = _bind(path), path
        self._server = await asyncio.get_running_loop().create_unix_server(self._accept, sock=bound)
        self._check_later()

    async def stop(self) -> None:
        """End all connections, and listen no more. The ephemeral nodes remain until the file is opened again."""
        if self._server is not None:
            self._server.close()
        if self._check is not None:
            self._check.cancel()
        if self._path is not None:
            self._path.unlink(missing_ok=True)
        serving = dict(self._clients)
        for client, task in serving.items():
            client.channel.abort()
            task.cancel()
        await asyncio.gather(*serving.values(), return_exceptions=True)
        for client in serving:
            await client.channel.has_ended.wait()

    def _accept(self) -> asyncio.BaseProtocol:
        client = ServedClient(self._open_session, self._session_timeout_ms)
        newcomers = [other for other in self._clients if not other.has_greeted]
        if len(self._clients) - len(newcomers) >= self._max_clients:
            self._log_refusal(f"{self._max_clients} are connected")
            client.channel.abort()
            return client.channel
        for oldest in newcomers[: max(0, len(newcomers) - self._max_clients + 1)]:
            self._log_refusal("others have connected, and it has not greeted")
            oldest.channel.abort()
        task = self._clients[client] = asyncio.get_running_loop().create_task(client.run())
        task.add_done_callback(lambda task: self._ended(client, task))
        return client.channel

    def _log_refusal(self, reason: str) -> None:
        level = self._refusals.level(asyncio.get_running_loop().time())
        log.log(level, "client of the metadata store refused reason=%s refused=%d", reason, self._refusals.count)

    async def _open_session(self, newcomer: ServedClient, greeting: calls.Greeting) -> SqliteSession | None:
        if not hmac.compare_digest(greeting.key.encode(), self._key.encode()):
            return None
        newcomer.has_greeted = True
        for client in list(self._clients):
            if client.session is not None and client.session.number == greeting.previous:
                client.channel.abort()
                await client.has_ended.wait()
        return SqliteSession(self._tree)

    def _ended(self, client: ServedClient, task: "asyncio.Task[None]") -> None:
        del self._clients[client]
        if not task.cancelled() and (error := task.exception()) is not None:
            self._failed(error)

    def _check_later(self) -> None:
        loop, interval_s = asyncio.get_running_loop(), self._session_timeout_ms / 1000 / _CHECKS_PER_TIMEOUT
        self._check_due_s = loop.time() + interval_s
        self._check = loop.call_at(self._check_due_s, self._check_silence, interval_s)

    def _check_silence(self, interval_s: float) -> None:
        """End the connections of silent clients. After a pause of this process, their messages may still wait."""
        now_s = asyncio.get_running_loop().time()
        was_paused = now_s - self._check_due_s > _PAUSED_AFTER_CHECKS * interval_s
        for client in self._clients:
            if was_paused:
                client.channel.heard_s = now_s
                client.began_s = now_s
            elif not client.has_greeted and now_s - client.began_s > self._session_timeout_ms / 1000:
                self._log_refusal("no greeting within a session timeout")
                client.channel.abort()
            elif now_s - client.channel.heard_s > self._session_timeout_ms / 1000:
                session = 0 if client.session is None else client.session.number
                log.warning("session of the metadata store expired session=%d", session)
                client.channel.abort()
        self._check_later()


def _bind(path: Path) -> socket.socket:
    """Return a socket that only this user can connect to, from the moment on that it exists."""
    path.unlink(missing_ok=True)
    bound = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    mask = os.umask(_PRIVATE)
    try:
        bound.bind(str(path))
    except BaseException:
        bound.close()
        raise
    finally:
        os.umask(mask)
    return bound
