"""A broker's session with a metadata store in memory whose nodes are on the event loop of another thread."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from typing import Any, TypeVar

from conveyor.kernel.errors import StorageFailure
from conveyor.kernel.ports import SessionState, StoreOperation, Versioned
from conveyor.testing.memory_store import MemoryStore

Result = TypeVar("Result")


class SharedStore:
    """See the module's docstring. Created on the broker's loop. home: the loop of `session`."""

    def __init__(self, session: MemoryStore, home: asyncio.AbstractEventLoop) -> None:
        self.session_state = SessionState.CONNECTED
        self.session_timeout_ms = session.session_timeout_ms
        self._session = session
        self._home = home
        self._loop = asyncio.get_running_loop()
        self._listeners: list[Callable[[SessionState], None]] = []
        home.call_soon_threadsafe(session.listen, lambda state: self._here(self._enter, state))

    def listen(self, changed: Callable[[SessionState], None]) -> None:
        self._listeners.append(changed)

    async def get(self, path: str, changed: Callable[[], None] | None = None) -> Versioned | None:
        return await self._there(self._session.get(path, self._watch(changed)))

    async def children(self, path: str, changed: Callable[[], None] | None = None) -> list[str]:
        return await self._there(self._session.children(path, self._watch(changed)))

    async def tree(self, path: str) -> dict[str, Versioned]:
        return await self._there(self._session.tree(path))

    async def commit(self, *operations: StoreOperation) -> tuple[int, ...] | None:
        return await self._there(self._session.commit(*operations))

    async def sync(self) -> None:
        await self._there(self._session.sync())

    async def close(self) -> None:
        await self._there(self._session.close())

    async def _there(self, call: Coroutine[Any, Any, Result]) -> Result:
        answer: Awaitable[Result] = asyncio.wrap_future(asyncio.run_coroutine_threadsafe(call, self._home))
        try:
            return await answer
        except StorageFailure as failure:  # One exception belongs to one thread.
            raise type(failure)(str(failure)) from None

    def _watch(self, changed: Callable[[], None] | None) -> Callable[[], None] | None:
        return None if changed is None else lambda: self._here(changed)

    def _here(self, call: Callable[..., None], *arguments: object) -> None:
        with suppress(RuntimeError):  # The broker was killed, and its loop is closed.
            self._loop.call_soon_threadsafe(call, *arguments)

    def _enter(self, state: SessionState) -> None:
        self.session_state = state
        for changed in list(self._listeners):
            changed(state)
