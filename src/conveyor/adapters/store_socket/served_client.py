"""The owner's side of one client: its connection, its session, and its requests, which run one after another."""

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Sequence

from conveyor.adapters.sqlite_store import SqliteSession
from conveyor.adapters.store_socket import store_calls as calls
from conveyor.adapters.store_socket.store_channel import StoreChannel
from conveyor.broker.remote.call_frames import Answered, Ask, Refused, Withdraw, decode_from_asker, encode_frame
from conveyor.broker.remote.calls import CallHandlers
from conveyor.broker.remote.wire_errors import to_wire
from conveyor.kernel.errors import ProtocolViolation, RequestError, StorageFailure, metadata_failure
from conveyor.kernel.ports import StoreOperation, Versioned
from conveyor.kernel.store_watches import Watch

log = logging.getLogger(__name__)

MAX_QUEUED_REQUESTS = 256
MAX_WATCHES = 10_000
_RETRY_S = 0.25

OpenSession = Callable[["ServedClient", calls.Greeting], Awaitable[SqliteSession | None]]
"""Returns None if the client is not one of the owner's."""


class ServedClient:
    """session: None before the client was welcomed. has_greeted: whether it has greeted with the right key.
    has_ended: set when the connection and the session have ended.

    Requests that wait when the connection ends are dropped.
    """

    def __init__(self, open_session: OpenSession, session_timeout_ms: int) -> None:
        self.session: SqliteSession | None = None
        self.has_greeted = False
        self.began_s = asyncio.get_running_loop().time()
        self.has_ended = asyncio.Event()
        self.channel = StoreChannel(
            max_received_bytes=calls.MAX_REQUEST_BYTES,
            max_unsent_bytes=2 * calls.MAX_REPLY_BYTES,
            received=self._queue_request,
            lost=self._lose,
        )
        self._open_session = open_session
        self._session_timeout_ms = session_timeout_ms
        self._handlers = self._make_handlers()
        self._requests: deque[Ask] = deque()
        self._has_work = asyncio.Event()
        self._is_lost = False
        self._current_id = 0
        """The call that runs; 0 if none does."""
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

    def _make_handlers(self) -> CallHandlers[None]:
        handlers: CallHandlers[None] = CallHandlers()
        handlers.register(calls.GREET, self._greet)
        handlers.register(calls.GET, self._get)
        handlers.register(calls.CHILDREN, self._children)
        handlers.register(calls.TREE, lambda _, path: self._greeted().tree(path))
        handlers.register(calls.COMMIT, self._commit)
        handlers.register(calls.SYNC, lambda _, __: self._greeted().sync())
        handlers.register(calls.END_SESSION, lambda _, __: self._greeted().close())
        return handlers

    def _queue_request(self, frame: memoryview) -> None:
        ask = decode_from_asker(frame)
        if isinstance(ask, Withdraw):
            raise ProtocolViolation("a call to the metadata store cannot be withdrawn")
        if len(self._requests) >= MAX_QUEUED_REQUESTS:
            raise ProtocolViolation(f"more than {MAX_QUEUED_REQUESTS} requests of one client wait")
        self._requests.append(ask)
        self._has_work.set()

    def _lose(self) -> None:
        self._is_lost = True
        self._has_work.set()

    async def _serve(self, ask: Ask) -> None:
        self._current_id, self._is_current_changed = ask.call_id, False
        answer: Answered | Refused
        try:
            answer = Answered(ask.call_id, await self._handlers.answer_encoded(None, ask.name, ask.payload))
        except StorageFailure as failure:
            answer = Refused(ask.call_id, to_wire(metadata_failure(failure)))
        except RequestError as error:
            answer = Refused(ask.call_id, to_wire(error))
        except ProtocolViolation as violation:
            return self._refuse(str(violation))
        self.channel.send(encode_frame(answer))
        self._current_id = 0
        if self._is_current_changed:
            self._send_event(ask.call_id)
        if self.session is None:
            self.channel.close()

    def _greeted(self) -> SqliteSession:
        if self.session is None:
            raise ProtocolViolation("a call before the greeting")
        return self.session

    async def _greet(self, _: None, greeting: calls.Greeting) -> calls.Welcome | None:
        if self.session is not None:
            raise ProtocolViolation("a second greeting")
        self.session = await self._open_session(self, greeting)
        if self.session is None:
            log.warning("client of the metadata store refused reason=another process has started it")
            return None
        return calls.Welcome(self.session.number, self._session_timeout_ms)

    async def _get(self, _: None, read: calls.Read) -> Versioned | None:
        return await self._greeted().get(read.path, self._watch() if read.is_watched else None)

    async def _children(self, _: None, read: calls.Read) -> list[str]:
        return await self._greeted().children(read.path, self._watch() if read.is_watched else None)

    async def _commit(self, _: None, operations: Sequence[StoreOperation]) -> tuple[int, ...] | None:
        return await self._greeted().commit(*operations)

    def _watch(self) -> Watch:
        """Return a watch whose event follows the answer to the call that runs."""
        call_id = self._current_id
        self._watches_count += 1
        if self._watches_count > MAX_WATCHES:
            self._refuse(f"more than {MAX_WATCHES} watches of one client")

        def fire() -> None:
            self._watches_count -= 1
            if call_id == self._current_id:
                self._is_current_changed = True
            else:
                self._send_event(call_id)

        return fire

    def _send_event(self, call_id: int) -> None:
        self.channel.send(encode_frame(Answered(call_id, b"")))

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
