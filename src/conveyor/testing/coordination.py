"""The metadata of a cluster in a test: a tree in memory, and the sessions of the brokers, on a thread of their own."""

import asyncio
import threading
from collections.abc import Coroutine, Iterable
from typing import Any, TypeVar

from conveyor.kernel.ports import SessionState
from conveyor.testing.memory_store import MemoryStore, MemoryTree

Result = TypeVar("Result")

_PATIENCE_S = 60.0


class Coordination:
    """See the module's docstring."""

    def __init__(self, session_timeout_ms: int) -> None:
        self.loop = asyncio.new_event_loop()
        self._session_timeout_ms = session_timeout_ms
        self._tree = MemoryTree()
        self._sessions: dict[int, MemoryStore] = {}
        self._cut: frozenset[int] = frozenset()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        if self.loop.is_closed():
            raise ValueError("this cluster was stopped: create another one")
        if self._thread is None:
            self._thread = threading.Thread(target=self.loop.run_forever, name="conveyor-metadata", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        if self._thread is not None:
            self._run(self._end_calls())
            self.loop.call_soon_threadsafe(self.loop.stop)
            self._thread.join()
            self._thread = None
            self.loop.close()

    def open_session(self, node_id: int) -> MemoryStore:
        """Return a new session of a broker."""
        return self._run(self._open_session(node_id))

    def end_session(self, node_id: int) -> None:
        """End the session of a broker that was killed."""
        self._run(self._end_session(node_id))

    def cut(self, node_ids: Iterable[int]) -> None:
        """Cut these brokers off. Their sessions end after the session timeout."""
        self._run(self._set_cut(frozenset(node_ids)))

    def heal(self) -> None:
        self._run(self._set_cut(frozenset()))

    async def _end_calls(self) -> None:
        """End what brokers have asked for before they were killed."""
        calls = asyncio.all_tasks() - {asyncio.current_task()}
        for call in calls:
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)

    async def _open_session(self, node_id: int) -> MemoryStore:
        session = self._sessions[node_id] = self._tree.open_session(self._session_timeout_ms)
        if node_id in self._cut:
            session.cut()
        return session

    async def _end_session(self, node_id: int) -> None:
        session = self._sessions.pop(node_id)
        session.abandon()
        session.expire()

    async def _set_cut(self, node_ids: frozenset[int]) -> None:
        before, self._cut = self._cut, node_ids
        for node_id in before - node_ids:
            if node_id in self._sessions:
                self._sessions[node_id].reconnect()
        for node_id in node_ids - before:
            session = self._sessions.get(node_id)
            if session is not None:
                session.cut()
                self.loop.call_later(self._session_timeout_ms / 1000, self._expire, node_id, session)

    def _expire(self, node_id: int, session: MemoryStore) -> None:
        if self._sessions.get(node_id) is session and session.session_state is SessionState.SUSPENDED:
            session.expire()

    def _run(self, work: Coroutine[Any, Any, Result]) -> Result:
        if self._thread is None:
            work.close()
            raise ValueError("this cluster does not run: start it first, with `with Cluster() as cluster:`")
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(_PATIENCE_S)
