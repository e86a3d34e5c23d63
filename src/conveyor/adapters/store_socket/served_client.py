"""The owner's side of one client: its connection, its session, and its requests, which run one after another."""

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable

from conveyor.adapters.sqlite_store import SqliteSession
from conveyor.adapters.store_socket import store_frames as frames
from conveyor.adapters.store_socket.store_channel import StoreChannel
from conveyor.kernel.errors import ProtocolViolation, StorageFailure
from conveyor.kernel.store_watches import Watch

log = logging.getLogger(__name__)

MAX_QUEUED_REQUESTS = 256
MAX_WATCHES = 10_000
_RETRY_S = 0.25

OpenSession = Callable[["ServedClient", frames.Hello], Awaitable[SqliteSession | None]]
"""Returns None if the client is not one of the owner's."""


class ServedClient:
    """session: None before the client was welcomed. has_greeted: whether it has said Hello with the right key.
    has_ended: set when the connection and the session have ended.

    Requests that wait when the connection ends are dropped.
    """

    def __init__(self, open_session: OpenSession, session_timeout_ms: int) -> None:
        self.session: SqliteSession | None = None
        self.has_greeted = False
        self.began_s = asyncio.get_running_loop().time()
        self.has_ended = asyncio.Event()
        self.channel = StoreChannel(
            frames.client_messages,
            max_received_bytes=frames.MAX_REQUEST_BYTES,
            max_unsent_bytes=2 * frames.MAX_REPLY_BYTES,
            received=self._queue_request,
            lost=self._lose,
        )
        self._open_session = open_session
        self._session_timeout_ms = session_timeout_ms
        self._requests: deque[frames.ClientMessage] = deque()
        self._has_work = asyncio.Event()
        self._is_lost = False
        self._current_number = 0
        """The request that runs; 0 if none does."""
        self._is_current_changed = False
        self._watches_count = 0

    async def run(self) -> None:
        """Serve the client until its connection ends, then end its session."""
        while not self._is_lost:
            if self._requests:
                await self._serve(self._requests.popleft())
                continue
            self._has_work.clear()
            await self._has_work.wait()
        if self.session is not None:
            await self._end_session(self.session)
        self.has_ended.set()

    def _queue_request(self, message: frames.ClientMessage) -> None:
        if len(self._requests) >= MAX_QUEUED_REQUESTS:
            raise ProtocolViolation(f"more than {MAX_QUEUED_REQUESTS} requests of one client wait")
        self._requests.append(message)
        self._has_work.set()

    def _lose(self) -> None:
        self._is_lost = True
        self._has_work.set()

    async def _serve(self, message: frames.ClientMessage) -> None:
        if isinstance(message, frames.Hello):
            await self._greet(message)
        elif self.session is None:
            self._refuse("a request before Hello")
        else:
            await self._execute(self.session, message)

    async def _greet(self, hello: frames.Hello) -> None:
        if self.session is not None:
            self._refuse("a second Hello")
            return
        self.session = await self._open_session(self, hello)
        if self.session is None:
            log.warning("client of the metadata store refused reason=another process has started it")
            self.channel.send(frames.encode(frames.Unwelcome()))
            self.channel.close()
        else:
            self.channel.send(frames.encode(frames.Welcome(self.session.number, self._session_timeout_ms)))

    async def _execute(self, session: SqliteSession, request: frames.Request) -> None:
        self._current_number, self._is_current_changed = request.number, False
        try:
            reply = await self._reply(session, request)
        except StorageFailure as failure:
            reply = frames.failed(request.number, failure)
        content = frames.encode(reply)
        if len(content) > frames.MAX_REPLY_BYTES:
            reason = f"metadata store: a reply of {len(content)} bytes; the limit is {frames.MAX_REPLY_BYTES}"
            content = frames.encode(frames.FailedReply(request.number, is_disk_full=False, reason=reason))
        self.channel.send(content)
        self._current_number = 0
        if self._is_current_changed:
            self.channel.send(frames.encode(frames.WatchFired(request.number)))

    async def _reply(self, session: SqliteSession, request: frames.Request) -> frames.Reply:
        number = request.number
        match request:
            case frames.GetNode():
                node = await session.get(request.path, self._watch(number) if request.is_watched else None)
                return (
                    frames.NodeReply(number, None, 0)
                    if node is None
                    else frames.NodeReply(number, node.value, node.version)
                )
            case frames.GetChildren():
                watch = self._watch(number) if request.is_watched else None
                return frames.ChildrenReply(number, await session.children(request.path, watch))
            case frames.GetTree():
                nodes = await session.tree(request.path)
                return frames.TreeReply(number, [(path, node.value, node.version) for path, node in nodes.items()])
            case frames.CommitNodes():
                return frames.CommitReply(number, await session.commit(*map(frames.from_wire, request.operations)))
            case frames.SyncStore():
                await session.sync()
            case frames.Goodbye():
                await session.close()
        return frames.DoneReply(number)

    def _watch(self, number: int) -> Watch:
        """Return a watch whose event follows the reply to its request."""
        self._watches_count += 1
        if self._watches_count > MAX_WATCHES:
            self._refuse(f"more than {MAX_WATCHES} watches of one client")

        def fire() -> None:
            self._watches_count -= 1
            if number == self._current_number:
                self._is_current_changed = True
            else:
                self.channel.send(frames.encode(frames.WatchFired(number)))

        return fire

    def _refuse(self, reason: str) -> None:
        log.warning("client of the metadata store disconnected reason=%s", reason)
        self.channel.abort()

    async def _end_session(self, session: SqliteSession) -> None:
        """Delete the session's ephemeral nodes. While that fails, as on a full disk, try again."""
        is_logged = False
        while True:
            try:
                await session.close()
            except StorageFailure as failure:
                if not is_logged:
                    log.warning("session of the metadata store not ended session=%d reason=%s", session.number, failure)
                is_logged = True
                await asyncio.sleep(_RETRY_S)
            else:
                return
