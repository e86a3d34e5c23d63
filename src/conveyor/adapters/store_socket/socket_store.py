"""A `conveyor.kernel.ports.MetadataStore` that another process of this machine owns and serves; see `StoreServer`.

    open -> CONNECTED
    the connection ends -> SUSPENDED; all watches fire, all requests fail
    connected again -> LOST, then CONNECTED with a new session: the end of a connection is the end of its session
    no process listens at the socket, or another owner does -> gone; nothing succeeds any more

The owner ends the session of a client from which it hears nothing. Keep-alives come from the event loop, so a process
whose loop hangs is silent. At most 64 requests are unanswered at a time. A request fails after 10 seconds; a commit
that has failed this way still precedes every later request of the same session.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from conveyor.adapters.store_socket import store_calls as calls
from conveyor.adapters.store_socket.store_channel import StoreChannel
from conveyor.broker.remote.call_frames import Answered, Ask, Refused, decode_from_answerer, encode_frame
from conveyor.broker.remote.calls import Call
from conveyor.broker.remote.wire_errors import from_wire
from conveyor.kernel.errors import RequestError, StorageFailure
from conveyor.kernel.ports import SessionState, StoreOperation, Versioned
from conveyor.kernel.store_watches import Watch

log = logging.getLogger(__name__)

_UNANSWERED_REQUESTS = 64
_LONGEST_REQUEST_S = 10.0
_GREETING_LIMIT_S = 10.0
_GOODBYE_LIMIT_S = 2.0
_PAUSE_S = 0.1
_KEEP_ALIVES_PER_TIMEOUT = 6

Request = TypeVar("Request")
Reply = TypeVar("Reply")


class OwnerGone(StorageFailure):
    """The process that owns the store has ended."""


class _Pending(NamedTuple):
    """A call without an answer."""

    call: Call[Any, Any]
    answered: "asyncio.Future[Any]"
    changed: Watch | None


class SocketStore:
    """See the module's docstring. Call `open` first. key: what the owner has given to this process.

    gone: called with the failure when the owner has ended.
    """

    def __init__(self, path: Path, key: str, gone: Callable[[StorageFailure], None]) -> None:
        self.session_state = SessionState.LOST
        self.session_timeout_ms = 0
        self._path = path
        self._key = key
        self._gone = gone
        self._loop = asyncio.get_running_loop()
        self._listeners: list[Callable[[SessionState], None]] = []
        self._channel: StoreChannel | None = None
        self._greeting: tuple[int, asyncio.Future[None]] | None = None
        """The id of the last greeting, and its outcome."""
        self._session = 0
        self._call_ids = count(1)
        self._pending: dict[int, _Pending] = {}
        self._watches: dict[int, Watch] = {}
        self._unanswered = asyncio.Semaphore(_UNANSWERED_REQUESTS)
        self._is_decided = asyncio.Event()
        """Set while the session is connected, and when the owner has ended: a request need not wait."""
        self._patient_until = 0.0
        self._keep_alive: asyncio.TimerHandle | None = None
        self._reconnecting: asyncio.Task[None] | None = None
        self._is_gone = False
        self._is_closing = False

    async def open(self) -> None:
        """Connect. Raises StorageFailure."""
        await self._connect()

    def listen(self, changed: Callable[[SessionState], None]) -> None:
        self._listeners.append(changed)

    async def get(self, path: str, changed: Callable[[], None] | None = None) -> Versioned | None:
        return await self._ask(calls.GET, calls.Read(path, changed is not None), changed)

    async def children(self, path: str, changed: Callable[[], None] | None = None) -> list[str]:
        return await self._ask(calls.CHILDREN, calls.Read(path, changed is not None), changed)

    async def tree(self, path: str) -> dict[str, Versioned]:
        return await self._ask(calls.TREE, path)

    async def commit(self, *operations: StoreOperation) -> tuple[int, ...] | None:
        return await self._ask(calls.COMMIT, operations)

    async def sync(self) -> None:
        await self._ask(calls.SYNC, None)

    async def close(self) -> None:
        """End the session, if the owner can be reached; otherwise it has ended with the connection."""
        with contextlib.suppress(StorageFailure, TimeoutError):
            async with asyncio.timeout(_GOODBYE_LIMIT_S):
                await self._ask(calls.END_SESSION, None)
        self._is_closing = True
        self.session_state = SessionState.LOST
        self._listeners.clear()
        self._watches.clear()
        if self._reconnecting is not None:
            self._reconnecting.cancel()
            await asyncio.gather(self._reconnecting, return_exceptions=True)
        if (channel := self._channel) is not None:
            channel.abort()
            self._disconnect(self._failed("this process has closed it"))
            await channel.has_ended.wait()

    async def _ask(self, call: Call[Request, Reply], request: Request, changed: Watch | None = None) -> Reply:
        call_id = next(self._call_ids)
        content = self._encoded(call_id, call, request)
        try:
            async with asyncio.timeout(_LONGEST_REQUEST_S), self._unanswered:
                channel = await self._connected()
                answered: asyncio.Future[Reply] = _outcome(self._loop)
                self._pending[call_id] = _Pending(call, answered, changed)
                channel.send(content)
                return await answered
        except TimeoutError as error:
            raise self._failed(f"its owner has not answered for {_LONGEST_REQUEST_S:.0f} s") from error
        finally:
            self._pending.pop(call_id, None)

    def _encoded(self, call_id: int, call: Call[Request, Reply], request: Request) -> bytes:
        """Return the frame of a call. Raises StorageFailure."""
        try:
            content = encode_frame(Ask(call_id, call.name, 0, call.encode_request(request), None))
        except RequestError as error:
            raise self._failed(error.message) from error
        if len(content) > calls.MAX_REQUEST_BYTES:
            raise self._failed(
                f"a request of {len(content)} bytes is above the limit of {calls.MAX_REQUEST_BYTES}: divide it"
            )
        return content

    async def _connected(self) -> StoreChannel:
        """Return the connection; while there is none, wait for a session timeout, but no longer."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(max(self._patient_until, self._loop.time())):
                await self._is_decided.wait()
        if self._channel is None:
            raise self._failed("its owner has ended" if self._is_gone else "no connection to its owner")
        return self._channel

    async def _connect(self) -> None:
        """Begin a session. Raises StorageFailure; OwnerGone."""
        channel = StoreChannel(
            max_received_bytes=calls.MAX_REPLY_BYTES + calls.FRAME_BYTES,
            max_unsent_bytes=2 * _UNANSWERED_REQUESTS * calls.MAX_REQUEST_BYTES,
            received=lambda frame: self._receive(channel, frame),
            lost=lambda: self._lose(channel),
        )
        call_id, greeted = self._greeting = next(self._call_ids), _outcome(self._loop)
        greeting = calls.Greeting(self._key, self._session)
        try:
            async with asyncio.timeout(_GREETING_LIMIT_S):
                await self._loop.create_unix_connection(lambda: channel, str(self._path))
                channel.send(self._encoded(call_id, calls.GREET, greeting))
                await greeted
        except (ConnectionRefusedError, FileNotFoundError) as error:
            raise OwnerGone(f"metadata store: its owner has ended, no process listens at {self._path}") from error
        except (OSError, TimeoutError) as error:
            channel.abort()
            raise self._failed(str(error) or "its owner does not answer") from error
        except BaseException:
            channel.abort()
            raise

    def _receive(self, channel: StoreChannel, frame: memoryview) -> None:
        answer = decode_from_answerer(frame)
        if self._greeting is not None and answer.call_id == self._greeting[0]:
            self._receive_greeting(channel, answer)
        elif (changed := self._watches.pop(answer.call_id, None)) is not None:
            changed()
        else:
            self._resolve(answer)

    def _receive_greeting(self, channel: StoreChannel, answer: Answered | Refused) -> None:
        if isinstance(answer, Refused):
            return self._fail_greeting(calls.failure_of(from_wire(answer.error)))
        welcome = calls.GREET.decode_reply(answer.payload)
        if welcome is None:
            reason = f"metadata store: its owner has ended, another one listens at {self._path}"
            return self._fail_greeting(OwnerGone(reason))
        self._begin_session(channel, welcome)

    def _begin_session(self, channel: StoreChannel, welcome: calls.Welcome) -> None:
        self._session, self.session_timeout_ms = welcome.session, welcome.session_timeout_ms
        self._channel = channel
        self._is_decided.set()
        self._send_keep_alives(channel)
        if self._greeting is not None and not self._greeting[1].done():
            self._greeting[1].set_result(None)
        if self.session_state is SessionState.SUSPENDED:
            self._enter(SessionState.LOST)
        self._enter(SessionState.CONNECTED)

    def _fail_greeting(self, failure: StorageFailure) -> None:
        if self._greeting is not None and not self._greeting[1].done():
            self._greeting[1].set_exception(failure)

    def _resolve(self, answer: Answered | Refused) -> None:
        pending = self._pending.get(answer.call_id)
        if pending is None or pending.answered.done():
            return
        if isinstance(answer, Refused):
            pending.answered.set_exception(calls.failure_of(from_wire(answer.error)))
            return
        reply = pending.call.decode_reply(answer.payload)
        if pending.changed is not None:
            self._watches[answer.call_id] = pending.changed
        pending.answered.set_result(reply)

    def _lose(self, channel: StoreChannel) -> None:
        failure = self._failed("the connection to its owner was lost")
        if channel is not self._channel:
            self._fail_greeting(failure)
        elif not self._is_closing:
            self._disconnect(failure)
            self._suspend()
            self._reconnecting = self._loop.create_task(self._reconnect())
            self._reconnecting.add_done_callback(self._stopped_reconnecting)

    def _disconnect(self, failure: StorageFailure) -> None:
        """Fail all requests; later ones wait for the next connection."""
        self._channel = None
        self._is_decided.clear()
        if self._keep_alive is not None:
            self._keep_alive.cancel()
        for pending in self._pending.values():
            if not pending.answered.done():
                pending.answered.set_exception(failure)

    def _suspend(self) -> None:
        self._patient_until = self._loop.time() + self.session_timeout_ms / 1000
        self._enter(SessionState.SUSPENDED)
        watches, self._watches = self._watches, {}
        for changed in watches.values():
            changed()

    async def _reconnect(self) -> None:
        """Connect again, until the owner is gone."""
        while True:
            try:
                await self._connect()
            except OwnerGone as failure:
                self._is_gone = True
                self._is_decided.set()
                self._gone(failure)
                return
            except StorageFailure as failure:
                log.warning("not connected to the metadata store reason=%s", failure)
                await asyncio.sleep(_PAUSE_S)
            else:
                return

    def _stopped_reconnecting(self, task: "asyncio.Task[None]") -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self._loop.call_exception_handler({"message": "metadata store", "exception": error})

    def _send_keep_alives(self, channel: StoreChannel) -> None:
        if channel is self._channel:
            channel.send_keep_alive()
            interval_s = self.session_timeout_ms / 1000 / _KEEP_ALIVES_PER_TIMEOUT
            self._keep_alive = self._loop.call_later(interval_s, self._send_keep_alives, channel)

    def _enter(self, state: SessionState) -> None:
        if state is self.session_state:
            return
        self.session_state = state
        log.log(
            logging.INFO if state is SessionState.CONNECTED else logging.WARNING,
            "session of the metadata store state=%s session=%d",
            state.name.lower(),
            self._session,
        )
        for changed in list(self._listeners):
            changed(state)

    def _failed(self, reason: str) -> StorageFailure:
        return StorageFailure(f"metadata store: {reason}")


def _outcome(loop: asyncio.AbstractEventLoop) -> "asyncio.Future[Any]":
    """Return a future whose exception may remain unseen: its caller may be cancelled at the same time."""
    future: asyncio.Future[Any] = loop.create_future()
    future.add_done_callback(lambda done: done.cancelled() or done.exception())
    return future
